"""Adding a serving stack takes one JSON file: it is predicted, swept, served, and its benchmarks are imported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from app.engine.catalogue import load_seed_specs
from app.engine.engine import Engine, untrained
from app.engine.snapshot import Snapshot
from app.formats.serving.files import DeploymentOptions, read_files, to_row
from app.services.dispatch import predict_workload
from app.services.sweep.chunks import SweepTarget, predict_models
from app.stacks import registry, release
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.wire.predict_body import read_request

GPU = "amd-instinct-mi300x"
MODEL = {"kind": "model", "name": "llama-3-8b", "mode": "decode", "batch": 8, "sequence": 1024, "dtype": "bf16"}
SERVED = {
    **{"kind": "serving", "name": "llama-3-8b", "input_tokens": 1024, "output_tokens": 128},
    "load": {"concurrency": 8},
}
BENCHMARK = {
    **{"hw": "h100", "framework": "quickserve", "precision": "bf16", "tp": 1, "conc": 16, "isl": 1024, "osl": 1024},
    **{"mean_ttft": 0.28, "mean_tpot": 0.0166, "mean_e2el": 15.5, "model": "llama-3-8b"},
    "image": "example/quickserve:2.1.0",
}
SOURCE = "the example of docs/how-to/extend.md"
FACTS: dict[str, Any] = {
    "merges_qkv": True,
    "merges_gate_up": True,
    "budget_tokens": [4096, 4096],
    "large_bytes": 0.0,
    "raises_budget": False,
    "sequences": [64, 64],
    "mixes": True,
    "splits": True,
    "memory_share": 0.9,
    "reserved": 1.0,
    "patience": 0.0,
}
HOST_WAIT = {"fact": "host_wait", "value": {"step_s": 0.02, "sequence_s": 0.0}, "until": "2.0", "source": SOURCE}
QUICKSERVE: dict[str, Any] = {
    "name": "quickserve",
    "title": "QuickServe",
    "kind": "serving",
    "kernels_of": "sglang",
    "names": ["quickserve"],
    "engine_names": ["quickserve"],
    "facts": [
        *({"fact": name, "value": value, "source": SOURCE} for name, value in FACTS.items()),
        HOST_WAIT | {"modes": ["prefill", "decode"]},
    ],
}


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stacks that ship, and one file more."""
    folder = tmp_path / "stacks"
    shutil.copytree(registry.FOLDER, folder)
    (folder / "quickserve.json").write_text(json.dumps(QUICKSERVE), "utf-8")
    monkeypatch.setattr(registry, "FOLDER", folder)
    release.clear()
    yield
    monkeypatch.undo()
    release.clear()


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    specs = [spec for spec in load_seed_specs() if spec.id == GPU]
    return Snapshot.of(Engine(Catalog(specs), GpuTable.from_specs(specs), untrained()))


def ask(snapshot: Snapshot, workload: dict[str, Any]) -> dict[str, Any]:
    body = msgspec.json.encode({"workload": workload, "gpu": GPU, "predictor": "roofline", "detail": True})
    answer = msgspec.to_builtins(predict_workload(snapshot, read_request(body), max_rows=10**6))
    prediction: dict[str, Any] = answer["predictions"][0]
    return prediction


def stack_of(width: list[dict[str, Any]]) -> tuple[str, bool]:
    """The stack that an interval is made for, and whether it was measured."""
    (part,) = [part for part in width if part["component"] == "stack"]
    return part["level"], part["known"]


@pytest.mark.usefixtures("added")
def test_a_new_stack_is_predicted_by_its_rules_with_a_stack_that_nobody_measured(snapshot: Snapshot) -> None:
    new, sglang = (ask(snapshot, MODEL | {"software": name}) for name in ("quickserve-2.1", "sglang-0.5"))
    assert "none of QuickServe was measured: timed with kernels of sglang" in " ".join(new["warnings"])
    assert stack_of(new["width"]) == ("quickserve", False)
    # It adds residuals in kernels of their own.
    counts = [sum(line["operators"] for line in prediction["breakdown"]) for prediction in (new, sglang)]
    assert counts[0] > counts[1]


@pytest.mark.usefixtures("added")
def test_a_fact_of_old_versions_is_no_fact_of_later_ones(snapshot: Snapshot) -> None:
    old, new = (ask(snapshot, MODEL | {"software": f"quickserve-{version}"}) for version in ("1.9", "2.0"))
    assert old["latency_ms"] == pytest.approx(new["latency_ms"] + 20.0)


@pytest.mark.usefixtures("added")
def test_a_new_stack_is_swept_as_it_is_predicted(snapshot: Snapshot) -> None:
    columns = {name: value for name, value in MODEL.items() if name != "kind"} | {"software": "quickserve-2.1"}
    table = pa.table({name: [value] for name, value in columns.items()})
    (swept,) = predict_models(table, SweepTarget(snapshot, GPU, "roofline", 0.8)).to_pylist()
    predicted = ask(snapshot, MODEL | {"software": "quickserve-2.1"})
    assert swept["latency_ms"] == pytest.approx(predicted["latency_ms"], rel=1e-9)


@pytest.mark.usefixtures("added")
def test_a_new_stack_serves_with_its_scheduler(snapshot: Snapshot) -> None:
    new, sglang = (ask(snapshot, SERVED | {"software": name}) for name in ("quickserve", "sglang"))
    settings = new["serving"]["settings"]
    assert (settings["software"], settings["max_batched_tokens"], settings["max_sequences"]) == ("quickserve", 4096, 64)
    widths = [answer["serving"]["tpot_ms"]["width"] for answer in (new, sglang)]
    assert [stack_of(width) for width in widths] == [("quickserve", False), ("sglang", True)]


@pytest.mark.usefixtures("added")
def test_benchmarks_of_a_new_stack_are_imported(tmp_path: Path) -> None:
    path = tmp_path / "agg_bmk.json"
    path.write_text(json.dumps(BENCHMARK), "utf-8")
    (found,), skipped = read_files([path])
    assert not skipped
    row = to_row(found.point, "InferenceX", DeploymentOptions())
    assert row["software"] == "quickserve-2.1.0"


def test_the_stacks_that_ship_are_told_apart_from_unknown_ones(snapshot: Snapshot) -> None:
    unknown, atom = (ask(snapshot, MODEL | {"software": name}) for name in ("quickserve", "atom-0.1.5"))
    assert "'quickserve' is not known here" in " ".join(unknown["warnings"])
    assert "none of ATOM was measured" in " ".join(atom["warnings"])
