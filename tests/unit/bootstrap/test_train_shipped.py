"""`gpucast train` on a small data set of networks: trained predictors are listed beside those shipped before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app import __version__
from app.bootstrap.train_shipped import (
    NETWORKS,
    OPERATORS,
    OPERATORS_BY_STACK,
    OWN,
    Start,
    add_gpus,
    sources_of,
    start_of,
    train_operators,
    train_shipped,
    trainable,
    trained_parts,
)
from app.engine.shipped import Shipped, shipped_versions, write_list
from app.errors import BadInput
from app.predictors.auto.predictor import Auto
from app.services.learning.retrain import set_hash
from app.store import artifacts
from app.store.artifacts import ArtifactRefused
from app.tables.arrays import Floats
from app.tables.measurements import Evidence, OperatorRuns
from app.training import operator_start
from app.training.candidate import candidate
from tests.busy_machine import until
from tests.unit.formats.test_operator_tables import TIMM
from tests.unit.training.test_candidate import GPUS, made, training_data

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with step times of made-up ConvNets on two GPUs, and measurements of our own."""
    linear = {"gpu": "l40s", "software": "pytorch-2.13", "source": "own", "latency_ms": 3.0, "op": "linear"}
    pq.write_table(
        pa.Table.from_pylist([linear | {"m": 64, "n": 64, "k": 64, "dtype": "bf16"}]), tmp_path / "own.parquet"
    )
    draw = np.random.default_rng(5)
    rows = []
    for device, seconds in (("rtx3090", 1e-3), ("rtx4090", 5e-4)):
        for gmacs, macts, params_m in np.exp(draw.uniform(0.0, 3.0, (60, 3))).round(2).tolist():
            counts = {"gmacs": gmacs, "macts": macts, "params_m": params_m}
            rows.append(TIMM | {"device": device, "step_time_ms": 1e3 * seconds * (20 * gmacs + 5 * macts)} | counts)
    monkeypatch.setenv("GPUCAST_SEED_MEASUREMENTS_DIR", str(tmp_path))
    (tmp_path / "data" / "vision_models").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "vision_models" / "vision_models.parquet")
    return tmp_path / "data"


def test_training_some_predictors_keeps_the_others(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "out"
    card = {"trained_on": {"rows": 1, "gpus": []}, "validation": []}
    before = {
        name: artifacts.publish(out, {"predictor": name}, {"predictor": name, "card": card})
        for name in ("auto", "convmeter", "forest")
    }
    write_list(out, before)
    kept = {path.name: path.read_bytes() for path in out.glob(f"{before['auto']}.*")}
    assert len(kept) == 2
    size = train_shipped(data, out, ["convmeter"], print)
    found = shipped_versions(out)
    assert found.keys() == {"auto", "convmeter"}  # `forest` learns from kernels, and does not ship
    assert found["convmeter"].card["trained_on"] == {"rows": 120, "gpus": ["rtx-3090", "rtx-4090"]}
    assert found["convmeter"].manifest["sources"] == [{"origin": NETWORKS[0].origin, "licence": "Apache-2.0"}, OWN]
    assert {path.stem for path in out.iterdir()} == {before["auto"], found["convmeter"].sha256, "shipped"}
    assert {name: (out / name).read_bytes() for name in kept} == kept
    assert size == sum(path.stat().st_size for path in out.iterdir() if path.stem != "shipped")


def test_a_training_that_is_terminated_leaves_no_server_and_no_folder(tmp_path: Path, data: Path) -> None:
    asked = ["train", "--data", str(data), "--out", str(tmp_path / "out"), "--predictor", "convmeter"]
    with TemporaryDirectory() as folder:  # `tmp_path` is too long for a socket
        work = Path(folder)
        training = subprocess.Popen([sys.executable, "-m", "app.cli", *asked], env={**os.environ, "TMPDIR": folder})
        pid = until(lambda: [path for path in work.glob("**/postmaster.pid") if "ready" in path.read_text()])[0]
        server = psutil.Process(int(pid.read_text().split()[0]))
        training.terminate()
        assert training.wait(60) != 0
        assert [*work.glob("gpucast-train-*")] == []
        with suppress(psutil.NoSuchProcess):
            assert server.status() == psutil.STATUS_ZOMBIE  # nobody waits for it in a container


def test_missing_data_sets_and_untrainable_names_are_rejected(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BadInput, match="neusight"):
        train_shipped(data, tmp_path / "out", ["convmeter", "li"], print)
    with pytest.raises(BadInput, match="forest cannot ship"):
        train_shipped(data, tmp_path / "out", ["forest"], print)
    assert not (tmp_path / "out").exists()


def test_networks_train_predictors_of_networks_only() -> None:
    assert [name for name in trainable() if sources_of(name) == NETWORKS] == ["convmeter", "convmeter_ols"]
    assert {sources_of(name) for name in trainable()} == {OPERATORS, OPERATORS_BY_STACK, NETWORKS}


def kept_rows(tmp_path: Path, **manifest: object) -> Start:
    """`auto` that knows products, of which another operator is to be trained."""
    run = made("tesla-t4", "nvidia-l4")
    about = {"training_set_sha256": set_hash([run]), "schema": {"operators": ["linear"]}, "code_version": "0.1.0"}
    return Start("auto", Shipped("auto", tmp_path, "0" * 64, {**about, **manifest}), ("bmm",))


def test_operators_are_kept_only_if_their_rows_are_the_same(tmp_path: Path) -> None:
    linear, batched = made("tesla-t4", "nvidia-l4"), made("tesla-t4", "nvidia-l4", op="bmm")
    changed = linear.take(np.arange(20))
    parts = trained_parts([linear])
    for start in (kept_rows(tmp_path), kept_rows(tmp_path, operators=parts)):
        with pytest.raises(BadInput, match=r"The rows of .* are not those that auto ships trained on"):
            train_operators(start, training_data(changed, batched), print)
        found = trained_parts([linear, batched], start)
        assert found["bmm"]["code_version"] == __version__
        assert found["linear"]["rows_sha256"] == parts["linear"]["rows_sha256"]
    assert trained_parts([linear, batched], kept_rows(tmp_path, operators=parts))["linear"] == parts["linear"]
    assert trained_parts([linear], kept_rows(tmp_path))["linear"]["code_version"] == "0.1.0"


def test_operators_are_kept_though_features_of_those_trained_anew_changed(tmp_path: Path) -> None:
    runs = made("tesla-t4", "nvidia-l4"), made("tesla-t4", "nvidia-l4", op="bmm")
    before = candidate(
        operator_start.Start.on("auto"), training_data(*runs), [], target_gpu=None, report=lambda _: None
    ).trained
    for changed, told in (("bmm", ""), ("linear", "features of linear: m removed")):
        payload = deepcopy(before.payload)
        payload["schema"]["axes"][f"features of {changed}"].insert(0, "m")
        about = {"schema": payload["schema"], "card": before.card, "operators": trained_parts(runs)}
        shipped = Shipped("auto", tmp_path, artifacts.publish(tmp_path, payload, about), about)
        start, lines = Start("auto", shipped, ("bmm",)), list[str]()
        with pytest.raises(ArtifactRefused, match=told) if told else nullcontext():
            found = train_operators(start, training_data(*runs), lines.append)
            assert found.payload["schema"] == before.payload["schema"]
        assert bool(lines) is not bool(told)  # refused before anything is trained


NEW = "a100-pcie-40gb"


def predicted(payload: Mapping[str, Any], run: OperatorRuns) -> Floats:
    """Seconds of rows by `auto`, without evidence."""
    i = np.arange(len(run))
    nothing = Evidence(run.rows.take(i[:0]), i[:0])
    return Auto.from_state(payload["state"]).predict(run.rows.ops, GPUS, i, run.rows.gpu, evidence=nothing).latency_s


def published(folder: Path, *runs: OperatorRuns) -> Shipped:
    """`auto` trained on rows, as it would ship."""
    data = training_data(*runs)
    trained = candidate(operator_start.Start.on("auto"), data, [], target_gpu=None, report=lambda _: None).trained
    about = {"schema": trained.payload["schema"], "card": trained.card, "operators": trained_parts(runs)}
    return Shipped("auto", folder, artifacts.publish(folder, trained.payload, about), about)


def test_new_gpus_are_added_and_what_is_known_stays(tmp_path: Path) -> None:
    every = made("tesla-t4", "nvidia-l4", NEW)
    fresh = np.array(GPUS.ids)[every.rows.gpu] == NEW
    known, new = every.take(np.flatnonzero(~fresh)), every.take(np.flatnonzero(fresh))
    shipped = published(tmp_path, known)
    start = Start("auto", shipped, (), (NEW,))
    found, parts = add_gpus(start, training_data(every), lambda _: None)
    before, after = (predicted(payload, every) for payload in (shipped.payload(), found.payload))
    np.testing.assert_allclose(after[~fresh], before[~fresh])
    assert np.abs(np.log(after[fresh] / new.rows.latency_s)).mean() < 0.1
    assert parts == trained_parts([every])
    assert (
        {"tesla-t4", "nvidia-l4", NEW} == {*found.card["trained_on"]["gpus"]} == {*found.payload["operators"]["gpus"]}
    )
    assert {row["gpu"] for row in found.card["validation"]} >= {"all", "tesla-t4", NEW}
    held = [len(payload["operators"]["held_out"]["key"]) for payload in (shipped.payload(), found.payload)]
    assert held[0] < held[1]
    # What was learned of others is not what is there now: the manifest does not claim it.
    assert add_gpus(start, training_data(new), lambda _: None)[1] == trained_parts([known])
    for gpu, why in (("tesla-t4", "is trained on tesla-t4"), ("h100-sxm5-80gb", "no operators of h100-sxm5-80gb")):
        with pytest.raises(BadInput, match=why):
            add_gpus(Start("auto", shipped, (), (gpu,)), training_data(every), print)


def test_single_operators_are_trained_of_what_ships_and_learns_them_apart(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BadInput, match="learns its operators together"):
        train_shipped(data, tmp_path / "out", ["convmeter"], print, operators=["relu"])
    with pytest.raises(BadInput, match="No artefact of auto"):
        start_of("auto", None, ["relu"])
    with pytest.raises(BadInput, match="one after the other"):
        start_of("auto", None, ["relu"], ["l40s"])
