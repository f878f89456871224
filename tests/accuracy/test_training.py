"""Median errors of training that others measured, and of its memory, as users ask about them."""

import os
from pathlib import Path

import numpy as np
import pytest

from app.config import CHECKOUT
from evaluation.first_contact.ledger import answers_of, ask_shipped
from evaluation.first_contact.steps import SOURCES
from evaluation.study import shipped_snapshot

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
# Source, figure, and the bound of its median error, percent: a little above what this version has.
BOUNDS = [
    ("megatron_bridge_training", "training", 8.5),
    ("more_megatron_bridge_training", "training", 23.0),
    ("more_mlperf_training_steps", "training", 8.0),
    ("more_mosaic_mpt_training", "training", 5.0),
    ("dgxc_training", "training", 13.0),
    ("torchtitan_training", "training", 13.0),
    ("torchtitan_training", "memory", 7.0),
]


@pytest.mark.parametrize(("name", "figure", "bound"), BOUNDS, ids=[" ".join(row[:2]) for row in BOUNDS])
@pytest.mark.timeout(300)
def test_median_errors_of_training_stay_within_bounds(name: str, figure: str, bound: float) -> None:
    if not (DATA / "more" / "whole_models").is_dir():
        pytest.skip("the data sets are not here")
    (source,) = (each for each in SOURCES if each.name == name)
    rows = answers_of(source, DATA, ask_shipped(shipped_snapshot()), print)
    errors = [np.expm1(-row["error"]) for row in rows if row["figure"] == figure and "error" in row]
    assert errors
    assert 100.0 * float(np.median(np.abs(errors))) <= bound
