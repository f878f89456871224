"""The situation of a GPU for a predictor trained on others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.bands.groups import SITUATIONS, SUPPORT_OF_SITUATION
from app.predictors.papers.base import KnownGpus
from app.tables.gpus import GpuTable
from app.tables.predictions import EXTRAPOLATED
from tests.unit.kernels import TURING, VOLTA

GPUS = GpuTable.from_specs([TURING, replace(TURING, id="twin"), VOLTA])


def test_siblings_have_the_interval_of_unseen_gpus_out_of_range() -> None:
    j = np.arange(3)
    known = KnownGpus.of(GPUS, [0])
    inside, outside = (known.situations(GPUS, j, np.full(3, far)) for far in (False, True))
    assert [list(SITUATIONS)[code] for code in inside] == ["seen", "sibling", "unseen"]
    assert [list(SITUATIONS)[code] for code in outside] == ["seen_outside", "unseen_outside", "unseen_outside"]
    assert (SUPPORT_OF_SITUATION[outside] == EXTRAPOLATED).all()
