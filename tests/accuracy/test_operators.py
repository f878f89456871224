"""Errors of operator predictors on measured rows outside their training rows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.errors import BadInput, NotFound
from evaluation.data import NEUSIGHT_FILE, read_cells
from evaluation.operators.evaluate import evaluate_operators
from tests.forked import run_command

pytestmark = pytest.mark.slow

# What P4, P100 and T4 teach of FP32 makes the V100 a quarter too slow: as far off as the roofline
# (docs/reference/results.md).
NO_BETTER = ("leave_one_gpu_out", "tesla-v100-pcie-32gb")
DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))


def whole_families(*predictors: str, **options: Any) -> list[dict[str, Any]]:
    """Cells of whole families, with documented intervals; options are `evaluate_operators`'s."""
    if not (DATA / NEUSIGHT_FILE).is_file():
        pytest.skip(f"no data in {DATA}")
    cells = evaluate_operators(DATA, predictors=predictors, intervals=False, **options)
    return [dict(cell) for cell in cells if cell["whole"]]


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    protocols = ("configurations", "leave_one_gpu_out")
    predictors = ("auto", "auto-untrained", "roofline")
    return whole_families(*predictors, families=("linear",), protocols=protocols, most_test=300, most_train=500)


def test_auto_beats_the_roofline_and_itself_untrained(cells: list[dict[str, Any]]) -> None:
    mape = {(c["protocol"], c["dtype"], c["gpu"], c["predictor"]): c["mape"] for c in cells}
    for protocol, dtype, gpu, _ in [where for where in mape if where[3] == "auto"]:
        found, untrained, roofline = (
            mape[protocol, dtype, gpu, name] for name in ("auto", "auto-untrained", "roofline")
        )
        if (protocol, gpu) != NO_BETTER:
            assert found < roofline, (protocol, dtype, gpu)
        if protocol == "configurations":
            assert found < untrained, (dtype, gpu)


def test_auto_errors_stay_within_bounds(cells: list[dict[str, Any]]) -> None:
    """From 500 rows per GPU, which three serving stacks share; docs/reference/results.md has those from all rows."""
    found = {(c["protocol"], c["dtype"]): c["mape"] for c in cells if (c["predictor"], c["gpu"]) == ("auto", "all")}
    assert found["configurations", "bf16"] < 10.0
    assert found["configurations", "fp8_block"] < 10.5
    assert found["leave_one_gpu_out", "bf16"] < 27.0
    assert found["leave_one_gpu_out", "fp32"] < 21.0


# Of 500 rows per GPU and operator; from all of them docs/reference/results.md has less, beside the goals.
_FP32 = {
    "seen": {"linear": 11.0, "bmm": 13.0, "elementwise": 1.0, "softmax": 9.0, "norm": 6.5},
    "unseen": {"linear": 9.0, "bmm": 15.0, "elementwise": 2.0, "softmax": 10.0, "norm": 9.0},
}


def test_fp32_errors_stay_within_bounds_on_larger_shapes_and_unseen_gpus() -> None:
    families = tuple(_FP32["seen"])
    cells = whole_families("auto", families=families, protocols=("neusight",), most_test=300, most_train=500)
    found = {(c["part"], c["family"], c["gpu"]): c["mape"] for c in cells}
    for part, bounds in _FP32.items():
        for family, most in bounds.items():
            gpu = "all but tesla-p4" if (part, family) == ("seen", "linear") else "all"
            assert found[part, family, gpu] <= most, (part, family)


def test_convolution_errors_with_host_drift_reach_their_goals() -> None:
    """Rows asked with the drift of the process that measured them, which no row learned from has."""
    cells = whole_families("auto", families=("conv2d",), protocols=("neusight", "leave_one_gpu_out"))
    found = {(c["protocol"], c["part"], c["gpu"]): (c["mape"], c["goal"]) for c in cells}
    for protocol, most in (("neusight", 13.0), ("leave_one_gpu_out", 21.0)):
        mape, goal = found[protocol, "as_measured", "all"]
        assert mape <= goal == most, protocol


def test_command_prints_and_writes_every_cell(tmp_path: Path) -> None:
    rows = {
        "op": ["linear", "relu", "addu", "conv", "linear"],
        "gpu": ["Tesla P4", "Tesla T4", "NVIDIA L4", "Tesla P4", "Tesla T4"],
        "split": ["train", "train", "test", "train", "test"],
        "latency_ms": [1.0, 0.05, 0.05, 2.0, 1.0],
        **{name: [512.0, None, None, None, 512.0] for name in ("m", "n", "k")},
        "b": [None, 64.0, 64.0, 8.0, None],
        "h": [None, 768.0, 1024.0, None, None],  # the hash of 768 on a T4 is among those held out
        **{name: [None, None, None, 64.0, None] for name in ("in_channels", "out_channels", "input_size")},
        **{name: [None, None, None, 1.0, None] for name in ("kernel_size", "stride", "padding")},
    }
    (tmp_path / "neusight").mkdir()
    pq.write_table(pa.table(rows), tmp_path / NEUSIGHT_FILE)
    asked = ("evaluate", "operators", "--data", tmp_path, "--predictor", "roofline")
    done = run_command(*asked, "--json", tmp_path / "cells.json", env=os.environ, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "GPUs seen, NeuSight's test dimensions" in done.stdout and "tesla-p4 left out: roofline" in done.stderr
    written = json.loads((tmp_path / "cells.json").read_text())
    assert written["cells"][0]["limits"] == {"test_rows": 4000, "rows": None, "intervals": True}
    found = {(c["protocol"], c["part"], c["op"], c["gpu"]): c["n"] for c in written["cells"]}
    assert found == {
        ("neusight", "seen", "linear", "all"): 1,
        ("neusight", "seen", "linear", "tesla-t4"): 1,
        ("neusight", "seen", "relu", "all"): 1,
        ("neusight", "seen", "relu", "tesla-t4"): 1,
        ("leave_one_gpu_out", "unseen", "linear", "all"): 2,
        ("leave_one_gpu_out", "unseen", "linear", "tesla-p4"): 1,
        ("leave_one_gpu_out", "unseen", "linear", "tesla-t4"): 1,
    }


def test_unknown_names_are_rejected_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Unknown predictor 'oracle': use one of auto"):
        evaluate_operators(tmp_path, predictors=("oracle",))
    with pytest.raises(BadInput, match="Unknown protocol 'x': use one of neusight"):
        evaluate_operators(tmp_path, protocols=("x",))


def test_other_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="Pass --data the folder"):
        read_cells(tmp_path)
    (tmp_path / "neusight").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / NEUSIGHT_FILE)
    with pytest.raises(BadInput, match="columns x, gpu, op"):
        read_cells(tmp_path)
