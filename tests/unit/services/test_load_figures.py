"""Measured loads in place of predicted ones."""

import numpy as np

from app.engine.exact_hits import ServedPoint
from app.services.serving.load_figures import LoadFigures, Times, measured_figures
from app.wire.serving_form import ServingLoad

POINT = ServedPoint({}, ttft_s=0.1, tpot_s=0.01, e2e_s=1.1)


def test_a_measured_rate_is_borne_whatever_was_predicted() -> None:
    full = LoadFigures(Times(0.2), Times(0.02), Times(2.2), 9.8, 20.0, 19.0, 1e9, 0.02, 0.1, 10.0, "kv_cache")
    saturated = LoadFigures(None, None, None, np.nan, np.nan, 1.0, 1e9, np.nan, np.nan, 10.0, "kv_cache")
    for predicted in (full, saturated):
        measured = measured_figures(predicted, POINT, ServingLoad(rate_per_s=12.0))
        assert measured.requests_per_s == measured.highest_rate == 12.0
        assert measured.e2e is not None and measured.e2e.mean == 1.1
