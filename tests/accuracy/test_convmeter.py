"""ConvMeter on timm's networks with families held out: the bounds stated in docs/reference/results.md."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import CHECKOUT
from app.errors import NotFound
from evaluation.data import TIMM_FILE, TIMM_FOLDER, read_networks
from evaluation.networks.convmeter import HeldOutTimes, convmeter_cells, evaluate_convmeter, scores
from evaluation.study import paper
from tests.forked import run_command

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / TIMM_FOLDER / TIMM_FILE).is_file(), reason=f"no data in {DATA}")


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    return [cell for cell in evaluate_convmeter(read_networks(DATA), ("family",)) if cell["family"] == "all"]


def mape(cells: list[dict[str, Any]], predictor: str, *words: str) -> float:
    """Over all rows of the runs that have these words."""
    mine = [cell for cell in cells if cell["predictor"] == predictor and set(words) <= set(cell["run"].split())]
    return float(np.average([cell["mape"] for cell in mine], weights=[cell["n"] for cell in mine]))


@needs_data
def test_convmeter_errors_on_held_out_families(cells: list[dict[str, Any]]) -> None:
    assert mape(cells, "convmeter", "nchw", "eager", "infer") < 14.0
    assert mape(cells, "convmeter", "nchw", "eager", "infer") + 2.0 < mape(
        cells, "convmeter_ols", "nchw", "eager", "infer"
    )
    assert mape(cells, "convmeter", "rtx4090", "dynamo") < 15.5
    assert mape(cells, "convmeter", "nchw", "train") < 14.0
    assert not any(cell["unanswered"] for cell in cells if cell["predictor"] == "convmeter")


@needs_data
def test_convnet_errors_as_the_sum_of_operators() -> None:
    found = convmeter_cells(DATA, ("operators",))
    cells = [cell for cell in found if (cell["data"], cell["family"]) == ("timm", "all")]
    assert sum(cell["n"] for cell in cells) > 500
    assert mape(cells, "auto", "eager", "infer") < 14.0
    assert mape(cells, "auto", "dynamo", "infer") < 22.0
    assert mape(cells, "auto", "train") < 26.0


def test_convmeter_errors_on_our_own_networks() -> None:
    """One core of a CPU: 25 and 18 in the paper, 18 and 16 wanted, with networks held out."""
    cells = [cell for cell in convmeter_cells(None, ("family", "network")) if cell["family"] == "all"]
    assert {cell["data"] for cell in cells} == {"own"}
    found = {
        (cell["run"].rpartition(" ")[2], cell["held_out"]): cell["mape"]
        for cell in cells
        if cell["predictor"] == "convmeter" and cell["run"].startswith("epyc-zen3-1-core ")
    }
    assert found["inference", "network"] < 17.5
    assert found["step", "network"] < 16.0
    assert found["blocks", "network"] < 17.0
    assert found["training_update", "network"] < 11.0
    assert found["step_many", "network"] < 11.5
    assert found["training_backward_update_many", "network"] < 12.0
    assert found["inference", "family"] < 19.5
    assert found["step", "family"] < 17.0


def test_scores_by_hand() -> None:
    found = scores(HeldOutTimes(np.array([1.0, 3.0]), np.array([2.0, 3.0]), np.array([False, True])))
    # Errors of 1 s and none; variance about the mean of 2 s is 1 + 1.
    assert found == {
        "n": 2, "r2": 0.5, "rmse_ms": 707.107, "nrmse": 0.354, "mape": 50.0, "median_ape": 50.0, "unanswered": 1,
    }  # fmt: skip


def test_published_errors_are_those_of_the_paper() -> None:
    facts = paper("convmeter")["cells"]
    assert sum(cell["table"] == "2" for cell in facts) == 1 + 9
    assert {(cell["table"], cell["mape"]) for cell in facts} >= {("1", 25.0), ("1", 17.0), ("3", 18.0), ("3", 15.0)}


def test_a_folder_without_networks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="Pass --data the folder"):
        read_networks(tmp_path)


@needs_data
def test_the_command_prints_and_writes_its_results(tmp_path: Path) -> None:
    command = ("evaluate", "convmeter", "--data", DATA, "--held-out")
    done = run_command(*command, "gpu", "--json", tmp_path / "cells.json", env=os.environ, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "the GPU held out" in done.stdout
    written = json.loads((tmp_path / "cells.json").read_text())
    assert written["study"] == "convmeter"
    assert {cell["held_out"] for cell in written["cells"]} == {"gpu"}
    refused = run_command(*command, "moon", env=os.environ)
    assert (refused.returncode, "use one of family, network, gpu, operators" in refused.stderr) == (1, True)
