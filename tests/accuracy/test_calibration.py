"""Few-shot calibration of a left-out GPU: planned shapes reduce the error more than random ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from app.config import CHECKOUT
from app.errors import BadInput
from evaluation.commands import command
from evaluation.data import NEUSIGHT_FILE
from evaluation.operators.calibration import evaluate_calibration

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
GPUS = ("tesla-p100-pcie-16gb", "tesla-t4")


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not (DATA / NEUSIGHT_FILE).is_file():
        pytest.skip(f"no data in {DATA}")
    file = tmp_path_factory.mktemp("calibration") / "cells.json"
    asked = ["calibration", "--data", str(DATA), "--family", "softmax", "--rows", "300", "--json", str(file)]
    done = CliRunner().invoke(command, [*asked, *(f"--gpu={gpu}" for gpu in GPUS)])
    assert done.exit_code == 0, done.output
    assert "32 shapes of each family and dtype as planned" in done.output
    return {cell["gpu"]: cell for cell in json.loads(file.read_text())["cells"]}


def test_planned_shapes_remove_a_third_of_the_error_and_more_than_random_ones(cells: dict[str, Any]) -> None:
    assert set(cells) == {*GPUS, "not chosen on", "all"}
    for gpu in GPUS:
        assert cells[gpu]["plan"]["mape"] < 2.0 / 3.0 * cells[gpu]["none"]["mape"]
    assert cells["all"]["plan"]["mape"] < min(cells["all"]["random"]["mape"], 8.0)


def test_unknown_names_are_rejected(tmp_path: Path) -> None:
    shape = {name: [512.0, 512.0] for name in ("m", "n", "k")}
    rows = {"op": ["linear"] * 2, "gpu": ["Tesla P4", "Tesla T4"], "split": ["train"] * 2, "latency_ms": [1.0, 1.0]}
    absent = ("b", "h", "in_channels", "out_channels", "input_size", "kernel_size", "stride", "padding")
    (tmp_path / "neusight").mkdir()
    columns = rows | shape | {name: pa.nulls(2, pa.float64()) for name in absent}
    pq.write_table(pa.table(columns), tmp_path / NEUSIGHT_FILE)
    with pytest.raises(BadInput, match="Unknown family 'x': use one of linear"):
        evaluate_calibration(tmp_path, families=("x",))
    with pytest.raises(BadInput, match="Nothing was measured on 'titan-v': use one of tesla-p4, tesla-t4"):
        evaluate_calibration(tmp_path, gpus=("titan-v",))
