"""Shipped artefacts: consistent, small, and loaded only by the hash of their content."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bootstrap.train_shipped import MOST_BYTES, OWN, sources_of, trainable
from app.config import SHIPPED_MODELS
from app.engine.catalogue import load_seed_specs
from app.engine.shipped import LIST, Shipped, shipped_versions, write_list
from app.engine.versions import Ready, Stores, shipped_or_untrained
from app.predictors import capabilities
from app.predictors.auto.operators.queries import Trace
from app.predictors.auto.predictor import Auto
from app.services.models.whole_networks import NETWORKS_ONLY
from app.store import artifacts
from app.store.artifacts import ArtifactRefused
from app.store.versions import POOLED
from app.tables.gpus import MOST_IN_A_MACHINE, GpuTable
from app.tables.predictions import INTERPOLATED
from app.training.candidate import candidate
from app.training.operator_start import Start
from tests.unit.operators import operators
from tests.unit.training.test_candidate import made, training_data

SHIPPED = sorted(shipped_versions(SHIPPED_MODELS).items())


def publish(folder: Path) -> str:
    found = candidate(
        Start.on("li"), training_data(made("tesla-t4", "nvidia-l4")), [], target_gpu=None, report=lambda _: None
    )
    told = {"predictor": "li", "gpu_id": "*", "training_set_sha256": "c" * 64, "card": found.trained.card}
    return artifacts.publish(folder, found.trained.payload, told)


def test_shipped_artefacts_are_small_and_all_listed() -> None:
    named = {f"{one.sha256}{suffix}" for _, one in SHIPPED for suffix in (".joblib", ".json")}
    there = {path.name for path in SHIPPED_MODELS.iterdir()}
    assert there - {LIST, "README.md"} == named
    assert sum(path.stat().st_size for path in SHIPPED_MODELS.iterdir()) < MOST_BYTES


@pytest.mark.parametrize(("name", "shipped"), SHIPPED)
def test_shipped_artefacts_match_their_manifest(name: str, shipped: Shipped) -> None:
    payload = shipped.payload()
    told: Any = shipped.manifest
    assert capabilities(name).learns_operators
    assert (payload["predictor"], told["predictor"], told["gpu_id"]) == (name, name, "*")
    assert sorted(shipped.card["trained_on"]["gpus"]) == sorted(payload["operators"]["gpus"])
    assert shipped.card["trained_on"]["rows"] > (10_000 if name in NETWORKS_ONLY else 100_000)
    learned = [{"origin": source.origin, "licence": source.licence} for source in sources_of(name)]
    assert [source for source in told["sources"] if source != OWN] == learned
    assert len(told["training_set_sha256"]) == 64
    for cell in shipped.card["validation"]:
        assert cell["n"] > 0
        assert 0 <= cell["median_ape"] <= 1000
    assert {cell["split"] for cell in shipped.card["validation"]} >= {"gpu_held_out", "configuration_held_out"}
    of = {cell["family"].split("/")[0] for cell in shipped.card["validation"]}
    assert ("kernel" in of) == (name == "auto")
    assert of == {"network"} if name in NETWORKS_ONLY else "network" not in of


def test_collectives_are_known_in_every_dtype_if_in_one() -> None:
    """Nothing that ships is answered out of its range while another dtype of the same collective holds it."""
    learned = Auto.from_state(shipped_versions(SHIPPED_MODELS)["auto"].payload()["state"]).operators_
    gpus = GpuTable.from_specs(load_seed_specs())
    sizes = [{"message_bytes": 2.0**size, "devices": devices} for size in range(10, 29) for devices in (2, 4, 8)]
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for dtype in ("fp16", "bf16", "fp8", "int8"):
            ops = operators(op, *sizes, dtype=dtype)
            for gpu in ("l40s", "a100-sxm4-80gb", "h100-sxm5-80gb", "b200"):
                j = np.full(len(ops), gpus.ids.index(gpu))
                answer = learned.estimate(ops, gpus, np.arange(len(ops)), j)
                assert set(answer.support) == {INTERPOLATED}
                assert answer.stretch is not None and (answer.stretch == 1.0).all()
                traced = learned.traced(ops, gpus, np.arange(len(ops)), j, Trace.of(len(ops)))
                keys = learned.source_cells(traced)
                assert {key for key in keys if key} <= {(op, "fp16"), (op, "int8")}


def test_extrapolated_collectives_grow_with_devices_and_bytes() -> None:
    """On every GPU of the catalogue; within, none is quicker by more than measured ones are quicker than the next.

    Between the 8 processes measured on a CPU and 9, whose times are extrapolated, 1 % may be lost.

    An H100 was measured with 6.5, 17.7 and 7.0 us for 0.5, 1 and 2 KiB among four, and 8.1 us for 1 KiB among eight.
    Where a bridge joins no more, another link takes over: slower, but for what waits for launches.
    """
    learned = Auto.from_state(shipped_versions(SHIPPED_MODELS)["auto"].payload()["state"]).operators_
    gpus = GpuTable.from_specs(load_seed_specs())
    devices, sizes = [2, 3, 4, 6, 8, 9, 12, 16, 24, 72], [2.0**size for size in range(6, 38, 2)]
    grid = [{"message_bytes": size, "devices": n} for n in devices for size in sizes]
    joined = gpus.column("link_domain_gpus")[:, None]
    passed = (joined < devices[1:]) & (joined >= devices[:-1]) & (joined <= MOST_IN_A_MACHINE)
    asked = [(op, 0.0) for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")]
    for op, implementation in (*asked, ("all_reduce", 1.0), ("all_reduce", 2.0)):
        for dtype in ("fp16", "int8"):
            ops = operators(op, *[{**row, "implementation": implementation} for row in grid], dtype=dtype)
            i = np.tile(np.arange(len(ops)), len(gpus))
            latency_s = learned.estimate(ops, gpus, i, np.repeat(np.arange(len(gpus)), len(ops))).latency_s
            table = latency_s.reshape(len(gpus), len(devices), len(sizes))
            wider, larger = table[:, 1:] / table[:, :-1], table[..., 1:] / table[..., :-1]
            assert (wider[:, 4:] > 0.985).all() and (wider > 0.7)[~passed].all()
            assert (wider[..., sizes.index(2.0**20) :] > 1.5)[passed].all()
            assert (larger[..., 13:] > 3.0).all() and (larger > 0.5).all()


def test_only_listed_artefacts_are_loaded(tmp_path: Path) -> None:
    assert shipped_versions(tmp_path) == {}
    sha256 = publish(tmp_path)
    assert shipped_versions(tmp_path) == {}
    write_list(tmp_path, {"li": sha256})
    assert shipped_versions(tmp_path)["li"].version == f"shipped-{sha256[:10]}"
    artefact = tmp_path / f"{sha256}.joblib"
    artefact.write_bytes(artefact.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactRefused, match="damaged"):
        shipped_versions(tmp_path)["li"].payload()
    (tmp_path / LIST).write_text(json.dumps({"predictors": {"li": "../" + sha256}}))
    with pytest.raises(ArtifactRefused):
        shipped_versions(tmp_path)
    (tmp_path / LIST).write_text("{")
    with pytest.raises(ArtifactRefused, match="cannot be read"):
        shipped_versions(tmp_path)


def test_predictors_requested_by_name_ship() -> None:
    named = {"auto", "li", "habitat", "tilewave", "kernel_table", "convmeter", "convmeter_ols"}
    assert named <= {name for name, _ in SHIPPED} <= {*trainable()}


def test_a_new_list_drops_old_artefacts(tmp_path: Path) -> None:
    sha256 = publish(tmp_path)
    stale = artifacts.publish(tmp_path, {"predictor": "li"}, {})
    write_list(tmp_path, {"li": sha256})
    assert not (tmp_path / f"{stale}.joblib").exists()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".joblib", ".json", ".json"]


def test_the_same_rows_make_the_same_artefact(tmp_path: Path) -> None:
    assert publish(tmp_path / "one") == publish(tmp_path / "other")


def test_a_version_in_use_is_not_read_again(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED_MODELS, tmp_path, dirs_exist_ok=True)
    specs = load_seed_specs()

    def load(count: int) -> Ready:
        gpus = GpuTable.from_specs(specs[:count])
        return shipped_or_untrained(Stores(tmp_path / "own", tmp_path), gpus, None, only={"li"})

    first = load(2)
    artifacts.files_of(tmp_path, dict(SHIPPED)["li"].sha256)[0].unlink()
    again = load(3)
    key = ("li", POOLED)
    assert again.served[key].predictor is first.served[key].predictor and not again.problems
    del first, again
    gc.collect()
    assert key not in load(2).served and "cannot be read" in load(2).problems[0]
