"""gpucast as a scikit-learn regressor: the results of the HTTP route, and copies and pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from app.config import Settings
from app.errors import BadInput
from app.estimator import LatencyRegressor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def regressor(settings: Settings) -> LatencyRegressor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE_URL", settings.database_url or "")
        patch.setenv("GPUCAST_DATA_DIR", str(settings.data_dir))
        return LatencyRegressor("nvidia-l4", "linear", ("m", "n", "k"), {"dtype": "bf16"}).fit()


def test_rows_in_milliseconds_within_their_intervals(regressor: LatencyRegressor) -> None:
    rows = np.array([[1, 4096, 4096], [4096, 4096, 4096], [8192, 8192, 8192]])
    times, ends = regressor.predict(rows), regressor.predict_interval(rows)
    assert times.shape == (3,) and ends.shape == (3, 2)
    assert (np.diff(times) > 0).all() and (ends[:, 0] < times).all() and (times < ends[:, 1]).all()


def test_copies_and_pickles_predict_equally(regressor: LatencyRegressor) -> None:
    assert clone(regressor).get_params() == regressor.get_params()
    assert not hasattr(pickle.loads(pickle.dumps(regressor)), "_snapshot")


def test_wrong_rows(regressor: LatencyRegressor) -> None:
    with pytest.raises(ValueError, match="expected"):
        regressor.predict(np.ones((3, 2)))
    with pytest.raises(BadInput):
        regressor.predict(np.array([[0, 16, 16]]))
