"""Whole models against NeuSight's measured ones: operators learned from a part of its training rows only."""

import os
from pathlib import Path

import numpy as np
import pytest

from app.config import CHECKOUT
from app.services.evaluate_models import Result, evaluate_models
from app.services.neusight_models import PARTS

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))

pytestmark = pytest.mark.skipif(not (DATA / "neusight").is_dir(), reason=f"no data in {DATA}")


@pytest.fixture(scope="module")
def limits() -> list[Result]:
    return evaluate_models(DATA, predictors=["roofline"])


def test_every_run_is_asked(limits: list[Result]) -> None:
    counts = {part: sum(cell["part"] == part for cell in limits) for part in PARTS}
    assert counts == {"unseen": 20, "seen": 40, "amd": 27, "fused": 8, "distributed": 3}
    assert sum(cell["odd"] for cell in limits) == 3


def test_no_model_runs_faster_than_its_hardware(limits: list[Result]) -> None:
    assert max(cell["error"] for cell in limits) < 0.0


def test_the_limit_is_what_the_paper_calls_so(limits: list[Result]) -> None:
    apart = [abs(cell["error"]) - cell["published"]["roofline"] for cell in limits if "roofline" in cell["published"]]
    assert len(apart) == 58
    assert abs(float(np.mean(apart))) < 3.0
