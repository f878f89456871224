"""Errors on NeuSight's measured whole models after training on a part of its operator rows."""

import os
from pathlib import Path

import numpy as np
import pytest

from app.config import CHECKOUT
from evaluation.networks.models import evaluate_models
from evaluation.networks.neusight import NeuSightData, read_data
from evaluation.networks.ranking import calibration, mean_tau, orders
from evaluation.study import Result

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))

pytestmark = [pytest.mark.skipif(not (DATA / "neusight").is_dir(), reason=f"no data in {DATA}"), pytest.mark.slow]


# Rows of each operator and GPU that are learned from: some seconds instead of minutes, at about a point of error.
ROWS = 400


@pytest.fixture(scope="module")
def data() -> NeuSightData:
    return read_data(DATA)


@pytest.fixture(scope="module")
def limits(data: NeuSightData) -> list[Result]:
    return evaluate_models(data, predictors=["roofline"])


@pytest.fixture(scope="module")
def learned(data: NeuSightData) -> list[Result]:
    return evaluate_models(data, most_train=ROWS)


# On all rows errors are less: docs/reference/results.md has them beside the goals.
@pytest.mark.parametrize(
    ("part", "most"), [("unseen", 8.0), ("seen", 6.5), ("amd", 6.0), ("fused", 7.0), ("distributed", 5.0)]
)
def test_few_training_rows_predict_whole_models_within_bounds(learned: list[Result], part: str, most: float) -> None:
    assert np.mean([abs(cell["error"]) for cell in learned if cell["part"] == part]) <= most


def test_intervals_contain_most_measured_models(learned: list[Result]) -> None:
    """They are as wide as first contacts of steps, of which these were tuned: at most a factor of 1.6 to each side."""
    assert np.mean([cell["held"] for cell in learned]) >= 0.75
    assert np.median([cell["high_ms"] / cell["low_ms"] for cell in learned]) < 1.6**2


def test_predicted_and_measured_orders_of_gpus_agree(learned: list[Result]) -> None:
    # L4 and A100 80GB were never seen; with each GPU left out in turn 0.93 (docs/reference/results.md; goal: 0.9).
    found = orders(learned)
    assert len(found) == 11 and mean_tau(found) >= 0.9
    sure = calibration(found)[-1]
    assert sure.low == 0.9 and sure.right >= sure.stated - 0.02


def test_every_run_is_predicted(limits: list[Result]) -> None:
    counts = {
        part: sum(cell["part"] == part for cell in limits) for part in ("unseen", "seen", "amd", "fused", "distributed")
    }
    assert counts == {"unseen": 20, "seen": 40, "amd": 27, "fused": 8, "distributed": 3}
    assert sum(cell["odd"] for cell in limits) == 3


def test_no_model_is_measured_below_its_hardware_limit(limits: list[Result]) -> None:
    assert max(cell["error"] for cell in limits) < 0.0


def test_the_hardware_limit_is_near_the_papers_roofline(limits: list[Result]) -> None:
    apart = [abs(cell["error"]) - cell["published"]["roofline"] for cell in limits if "roofline" in cell["published"]]
    assert len(apart) == 58
    # Ours has the launches of eager PyTorch's host, which bound small batches in training, and the paper's has not.
    assert abs(float(np.mean(apart))) < 3.5
