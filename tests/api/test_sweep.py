"""`gpucast sweep`: tables in a folder, resumed after a stop, locally and on a Dask cluster."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import LocalCluster
from fastapi.testclient import TestClient

from app.bootstrap.assemble import installed_snapshot
from app.config import Settings
from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.networks import builtin
from app.services.sweep.chunks import FIGURES, SweepTarget, predict_models
from app.services.sweep.model_groups import Table
from app.services.sweep.sweep_rows import open_rows
from tests.forked import run_command

pytestmark = pytest.mark.slow

GRID = {"op": "linear", "dtype": ["fp16", "bf16"], "m": [1, 64, 4096], "n": [1024, 4096], "k": 4096}
GPUS = ("a100-sxm4-80gb", "nvidia-l4")


def sweep(settings: Settings, *arguments: object) -> subprocess.CompletedProcess[str]:
    on = (f"--gpu={gpu}" for gpu in GPUS)
    return run_command("sweep", *arguments, *on, env=os.environ | settings.environment(), timeout=200)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))}


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    return path


def test_every_combination_equals_the_route(client: TestClient, settings: Settings, grid: Path, tmp_path: Path) -> None:
    run = sweep(settings, grid, tmp_path / "out", "--chunk-rows", 5)
    assert run.returncode == 0, run.stderr
    assert "0 of 3 chunks are done" in run.stderr and "3 files" in run.stdout
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == 12 * len(GPUS)
    rows = [row for row in table.to_pylist() if row["gpu"] == GPUS[0]]
    assert [(row["dtype"], row["m"], row["n"]) for row in rows] == [
        (dtype, m, n)
        for dtype in GRID["dtype"]
        for m in GRID["m"]
        for n in GRID["n"]  # type: ignore[attr-defined]
    ]
    columns = {name: [row[name] for row in rows] for name in ("dtype", "m", "n")}
    asked: Mapping[str, Any] = {"op": "linear", "k": 4096, **columns}
    answer = client.post("/predict/batch", params={"gpu": GPUS[0]}, json=asked).json()
    assert [row["latency_ms"] for row in rows] == answer["latency_ms"]
    assert [row["high_ms"] for row in rows] == answer["high_ms"]


MODELS = {
    "name": "gpt2",
    "batch": [1, 4],
    "sequence": [64, 512],
    "config.n_layer": [2, 12],
    "parallelism.tensor": [1, None],
}
TRAINED = {
    "name": ["resnet18", "mobilenet_v2"],
    "mode": "training",
    "optimizer": "adamw",
    "batch": [8, 32],
    "image_size": [96, 224],
    "parallelism.data": [1, 4],
}


@pytest.mark.parametrize("models", [MODELS, TRAINED])
def test_models_equal_the_route(client: TestClient, settings: Settings, tmp_path: Path, models: dict[str, Any]) -> None:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(models))
    run = sweep(settings, path, tmp_path / "out", "--chunk-rows", 11)
    assert run.returncode == 0, run.stderr
    table = pq.read_table(tmp_path / "out")
    assert table.num_rows == 16 * len(GPUS)
    for row in table.take([0, 5, 10, 15, 31]).to_pylist():
        _require_equal(row, client, row["gpu"], _workload({name: row[name] for name in models}))


def _require_equal(row: Mapping[str, Any], client: TestClient, gpu: str, workload: Mapping[str, Any]) -> None:
    body = client.post("/predict", json={"gpu": gpu, "workload": {"kind": "model", **workload}}).json()
    (answer,) = body["predictions"]
    interval, phases = answer["interval_ms"], answer["phases_ms"]
    used = answer["memory"]
    expected = [answer["latency_ms"], interval["low"], interval["high"], *phases.values()]
    expected += [*used["breakdown"].values(), used["required_bytes"]]
    assert [row[name] for name in FIGURES] == pytest.approx(expected, rel=1e-9), workload
    assert row["fits"] == used["fits"]


def _rows(**columns: Any) -> list[dict[str, Any]]:
    """Every combination."""
    return [dict(zip(columns, row, strict=True)) for row in product(*columns.values())]


def test_random_models_equal_the_route(client: TestClient, settings: Settings) -> None:
    sizes: dict[str, Any] = {"batch": [1, 6], "sequence": [1, 100, 512]}
    dealt: dict[str, Any] = sizes | {"sequence": [2, 100, 512]}
    rows = [
        *_rows(name=["llama-3-8b", "gemma-2-2b"], mode=["prefill", "decode"], dtype=["bf16"], **sizes),
        *_rows(name=["flan-t5-xl"], mode=["decode"], dtype=["bf16"], **sizes),
        *_rows(name=["mixtral-8x7b", "deepseek-v3"], mode=["prefill"], dtype=["bf16"], **sizes),
        *_rows(name=["mistral-7b"], dtype=["fp16"], attention=["flash"], batch=[1, 3], sequence=[1000, 4096, 8192]),
        *_rows(name=["flan-t5-xl", "switch-base-8", "bert-base", "opt-1.3b"], dtype=["fp32"], **sizes),
        *({**row, "parallelism.tensor": tensor} for tensor in (2, 8) for row in _rows(name=["llama-3-8b"], **sizes)),
        *({**row, "parallelism.tensor": 2, "parallelism.sequence": True} for row in _rows(name=["gpt2"], **dealt)),
        *({**row, "parallelism.pipeline": 3} for row in _rows(name=["gpt2"], **{"config.n_layer": [3, 5], **sizes})),
        *_rows(name=["gpt2", "bert-base"], fused=[True], **sizes),
        *_rows(name=["resnet18"], fused=[True], batch=[2, 6], image_size=[96]),
        *_rows(name=["vit-b-16"], batch=[2, 6], image_size=[224, None]),
    ]
    answers = _answers(rows, settings)
    for k in range(0, len(rows), 4):
        _require_equal(answers[k], client, GPUS[0], _workload(rows[k]))


def test_copies_of_input_equal_the_route(client: TestClient, settings: Settings) -> None:
    rows = _rows(name=["resnet18"], batch=[2], image_size=[96], input_copy=["none", "pinned"])
    for row, answer in zip(rows, _answers(rows, settings), strict=True):
        _require_equal(answer, client, GPUS[0], _workload(row))


def test_diffusion_transformers_equal_the_route(client: TestClient, settings: Settings) -> None:
    rows = _rows(name=["wan2.1-t2v-1.3b"], dtype=["bf16"], image_size=[256], image_width=[None, 128], frames=[5, 9])
    for row, answer in zip(rows, _answers(rows, settings, together=False), strict=True):
        _require_equal(answer, client, GPUS[0], _workload(row))
    with pytest.raises(BadInput, match="frames"):
        _answers(_rows(name=["gpt2"], sequence=[8], frames=[5]), settings, together=False)


def _answers(
    rows: list[dict[str, Any]], settings: Settings, *, together: Sequence[bool] | bool = True
) -> list[dict[str, Any]]:
    """Answers of a sweep, whose rows are predicted `together` or one by one."""
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    assert (Table(table, ()).together == together).all()
    answers: list[dict[str, Any]] = predict_models(
        table, SweepTarget(_snapshot(settings), GPUS[0], "auto", 0.8)
    ).to_pylist()
    return answers


def _workload(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row asks for, as a request has it."""
    given = {name: value for name, value in row.items() if value is not None}
    own = {name.partition(".")[2]: given.pop(name) for name in row if name.startswith("config.")}
    split = {
        name.partition(".")[2]: given.pop(name) for name in row if name.startswith("parallelism.") and name in given
    }
    if own:
        given["config"] = {**(builtin.find_config(given.pop("name")) or {}), **own}
    return {**given, "parallelism": split}


@pytest.mark.parametrize("seed", range(3))
def test_random_training_and_image_sizes(client: TestClient, settings: Settings, seed: int) -> None:
    draw = random.Random(seed)
    rows = []
    for _ in range(4):
        training: dict[str, Any] = {
            "mode": "training",
            "dtype": draw.choice(["fp32", "bf16"]),
            "optimizer": draw.choice(["none", "sgd", "adamw"]),
            "recompute": draw.random() < 0.5,
            "gradient_accumulation": draw.choice([1, 2]),
            "parallelism.data": draw.choice([1, 4]),
            "parallelism.zero": draw.choice([0, 0, 1, 2, 3]),
            "fused": draw.random() < 0.3,
        }
        staged = {"parallelism.pipeline": draw.choice([1, 3]), "parallelism.schedule": draw.choice(["gpipe", "1f1b"])}
        split = {"parallelism.microbatches": draw.choice([1, 2]), "parallelism.tensor": draw.choice([1, 2])}
        depths, widths = {"config.n_layer": [3, 4, 12]}, {"config.n_embd": [256, 1536], "config.n_head": [8]}
        for run, name, sizes in (
            (training | split | staged, "gpt2", depths | widths),
            (training | split, draw.choice(["llama-3-8b", "flan-t5-xl", "mixtral-8x7b"]), {}),
        ):
            sequences = [draw.randint(2, 500) for _ in range(2)]
            rows += [run | row for row in _rows(name=[name], batch=[32, 96], sequence=sequences, **sizes)]
        nets = ["resnet18", "googlenet", "efficientnet_b0", "shufflenet_v2_x1_0", "densenet121", "resnet50/Bottleneck4"]
        for run in (training, {"mode": "inference"}):
            images = [None, draw.randint(96, 300)]
            rows += [run | row for row in _rows(name=[draw.choice(nets)], batch=[32, 96], image_size=images)]
    answers = _answers(rows, settings)
    for k in draw.sample(range(len(rows)), 16):
        _require_equal(answers[k], client, GPUS[0], _workload(rows[k]))


def test_training_that_is_short_of_memory_recomputes_as_the_route_does(client: TestClient, settings: Settings) -> None:
    """8 GB of optimiser and weights; 25, 50 and 197 GB of activations, of 80 GB."""
    run = {"mode": "training", "software": "pytorch-2.6", "parallelism.data": 8, "parallelism.zero": 3}
    rows = [run | row for row in _rows(name=["llama-3-8b"], batch=[8, 24, 40, 512], sequence=[4096])]
    answers = _answers(rows, settings)
    assert [row["fits"] for row in answers] == [True, True, True, False]
    for answer, row in zip(answers, rows, strict=True):
        _require_equal(answer, client, GPUS[0], _workload(row))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch": 0}, "row 1: workload.batch: expected a number >= 1"),
        ({"batch": "many"}, "batch: must be one value"),
        ({"sequence": 4096}, "row 1: sequence: the model has positions for 1024"),
        ({"sequence": None}, "row 1: workload.sequence: tokens per sequence are missing"),
        ({"config.n_head": 5}, "row 1: config.n_head: 5 does not divide"),
        ({"parallelism.tensor": 5}, "row 1: parallelism.tensor: must divide"),
        (
            {"parallelism.pipeline": 13},
            "row 1: parallelism.pipeline: stages hold whole layers, of which the model has 12",
        ),
        ({"parallelism.microbatches": 2}, "workload.batch: 1 cannot be split"),
        ({"name": "gpt5"}, "row 1: name: 'gpt5' is not a built-in transformer"),
        ({"dtype": "fp8"}, "row 1: The network cannot run: a100-sxm4-80gb does not compute in fp8"),
        ({"speed": 1}, "'speed': unknown column"),
        ({"output_tokens": 1}, "'output_tokens': unknown column"),
        ({"name": "alexnet"}, "row 1: name: 'alexnet' is not a built-in transformer"),
    ],
)
def test_a_wrong_configuration_is_named(settings: Settings, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    right = {"name": "gpt2", "batch": 1, "sequence": 64, "dtype": "fp16", "config.n_head": 12}
    path = tmp_path / "grid.json"
    ((field, value),) = wrong.items()
    path.write_text(json.dumps(right | {field: [right.get(field), value]}))
    with pytest.raises(BadInput) as refused:
        predict_models(open_rows(path).table(0, 2), SweepTarget(_snapshot(settings), GPUS[0], "auto", 0.8))
    assert words in refused.value.detail


def test_an_image_too_small_is_named(settings: Settings) -> None:
    with pytest.raises(BadInput) as refused:
        _answers(_rows(name=["alexnet"], batch=[2], image_size=[224, 96, 31]), settings)
    assert "row 2: image_size: alexnet needs images of at least 63 pixels" in refused.value.detail


@lru_cache(maxsize=1)
def _snapshot(settings: Settings) -> Snapshot:
    return installed_snapshot(settings)[0]


def test_a_sweep_resumes_where_it_stopped(settings: Settings, grid: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert sweep(settings, grid, folder, "--chunk-rows", 5).returncode == 0
    whole = parts(folder)
    kept = folder / "part-00000000.parquet"
    before = kept.stat().st_mtime_ns
    (folder / "part-00000001.parquet").unlink()
    run = sweep(settings, grid, folder, "--chunk-rows", 5)
    assert "2 of 3 chunks are done" in run.stderr
    assert parts(folder) == whole and kept.stat().st_mtime_ns == before


def test_another_sweep_cannot_use_the_folder(settings: Settings, grid: Path, tmp_path: Path) -> None:
    assert sweep(settings, grid, tmp_path / "out").returncode == 0
    refused = sweep(settings, grid, tmp_path / "out", "--predictor", "roofline")
    assert refused.returncode == 1 and "has another sweep (predictor, versions differ)" in refused.stderr
    assert sweep(settings, grid, tmp_path / "out", "--predictor", "roofline", "--restart").returncode == 0


def test_a_parquet_file_on_a_dask_cluster(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    source = tmp_path / "rows.parquet"
    table = pa.table({"op": ["softmax"] * 40, "dtype": ["fp32"] * 40, "b": [8] * 40, "h": list(range(1, 41))})
    pq.write_table(table, source, row_group_size=16)
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        run = sweep(settings, source, tmp_path / "out", "--chunk-rows", 7, "--dask", cluster.scheduler_address)
    assert run.returncode == 0, run.stderr
    assert sweep(settings, source, tmp_path / "alone", "--chunk-rows", 7).returncode == 0
    assert len(parts(tmp_path / "out")) == 6 and parts(tmp_path / "out") == parts(tmp_path / "alone")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"op": "linear", "speed": 1}, "'speed': unknown field"),
        ({"dtype": "bf16"}, "including `op` or `name`"),
        ([1], "JSON object"),
        ({"op": "linear", "m": [1, "x"]}, "m: must be one value"),
        ({"op": "linear", "m": []}, "0 rows"),
    ],
)
def test_bad_grids_are_refused_by_name(tmp_path: Path, given: object, words: str) -> None:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(given))
    with pytest.raises(BadInput, match=words):
        open_rows(path)


def test_an_invalid_row_is_named_and_leaves_no_file(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"op": "linear", "dtype": "bf16", "m": [1, -2], "n": 8, "k": 8}))
    run = sweep(settings, path, tmp_path / "out")
    assert run.returncode == 1 and "m.1" in run.stderr and "Rows from 0" in run.stderr
    assert not parts(tmp_path / "out")
