"""Errors in the clean kernel experiments stay within bounds; no test row was trained on."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.config import CHECKOUT, SEED_MEASUREMENTS
from app.predictors.auto.predictor import Auto
from app.predictors.papers.cross_gpu_kernels import Efficiency
from evaluation.kernels.experiments import clean_experiments

SHARED = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
DATA = SHARED / "cuda_kernels"

pytestmark = [pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}"), pytest.mark.slow]


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str, str, str], dict[str, Any]]:
    found, notes = clean_experiments(DATA, [Auto, Efficiency])
    assert notes == ()
    return {(cell["predictor"], cell["experiment"], cell["gpu"], cell["metric"]): cell for cell in found}


# Bounds set before the figures were seen: the project's own goals.
@pytest.mark.parametrize(
    ("experiment", "gpu", "most", "n"),
    [("1", "all", 19.0, 422), ("1", "titan-v", 16.0, 112), ("2", "all", 5.0, 47), ("3", "all", 20.0, 116)],
)
def test_auto_mape(cells: dict[Any, dict[str, Any]], experiment: str, gpu: str, most: float, n: int) -> None:
    cell = cells["auto", experiment, gpu, "mape"]
    assert cell["n"] == n
    assert cell["measured"] <= most


@pytest.mark.parametrize("experiment", ["1", "1-untrained"])
def test_intervals_have_their_nominal_coverage(cells: dict[Any, dict[str, Any]], experiment: str) -> None:
    assert 74.0 <= cells["auto", experiment, "all", "coverage_80"]["measured"] <= 86.0


def test_a_known_launch_overhead_helps_where_launches_are_slow(cells: dict[Any, dict[str, Any]]) -> None:
    known, unknown = (cells["auto", name, "rtx-4070", "mape"]["measured"] for name in ("1-launch", "1"))
    assert known < 0.85 * unknown


def test_untrained_auto_beats_the_papers_formula(cells: dict[Any, dict[str, Any]]) -> None:
    untrained = cells["auto", "1-untrained", "all", "mape"]["measured"]
    assert untrained < 0.6 * cells["efficiency", "1", "all", "mape"]["measured"]


def test_intervals_of_unmeasured_kernels_have_their_nominal_coverage(cells: dict[Any, dict[str, Any]]) -> None:
    # Four kernels only, each right or wrong as a whole: at least three of them inside.
    assert cells["auto", "3-unmeasured", "all", "coverage_80"]["measured"] >= 75.0


@pytest.mark.parametrize("experiment", ["1", "2", "3"])
def test_auto_beats_the_papers_formula(cells: dict[Any, dict[str, Any]], experiment: str) -> None:
    ours, papers = (cells[name, experiment, "all", "mape"]["measured"] for name in ("auto", "efficiency"))
    assert ours < 0.5 * papers


def test_our_own_gpu_is_predicted_from_all_others() -> None:
    """The paper's experiment 1 with the H200 as the new GPU: its goal, set before the GPU was measured."""
    own = [SEED_MEASUREMENTS / f"{gpu}-kernels.parquet" for gpu in ("h100", "h200")]
    found, notes = clean_experiments(DATA, [Auto], own=own)
    (target,) = (
        cell for cell in found if (cell["experiment"], cell["gpu"], cell["metric"]) == ("1", "h200-sxm-141gb", "mape")
    )
    assert notes == ()
    assert target["n"] > 150
    assert target["measured"] < 18.0
