"""gpucast where a scikit-learn regressor is expected, in simulators of serving and training for example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin

from app.bands.coverage import COVERAGE
from app.bootstrap.assemble import installed_snapshot
from app.config import Settings
from app.engine.snapshot import Snapshot
from app.services.dispatch import predict_workload
from app.tables.arrays import Floats
from app.wire.operator_forms import TablePrediction, TableResponse
from app.wire.predict_body import read_request


class LatencyRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Milliseconds of one operator on one GPU, from rows of its dimensions.

    LatencyRegressor(gpu="h100-sxm5-80gb", op="linear", columns=("m", "n", "k"), fixed={"dtype": "bf16"})
    predicts from X [n, 3], an array or a data frame (whose columns are then found by name). Nothing is learned in
    `fit`: the installation's served version answers, read on first use. Copies and pickles are of the question alone.
    """

    def __init__(
        self,
        gpu: str,
        op: str,
        columns: Sequence[str],
        fixed: Mapping[str, Any] | None = None,
        predictor: str = "auto",
        coverage: float = COVERAGE,
    ) -> None:
        self.gpu = gpu
        self.op = op
        self.columns = columns
        self.fixed = fixed
        self.predictor = predictor
        self.coverage = coverage

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Read what is served now; `X` and `y` are not looked at."""
        self._snapshot, _ = installed_snapshot(Settings.from_env())
        return self

    def predict(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Milliseconds of each row, float64 [n]; BadInput names the column and row that is wrong."""
        return np.array(self._answer(X).latency_ms)

    def predict_interval(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Ends of each row's interval in milliseconds, float64 [n, 2]; it holds the true time with `coverage`."""
        answer = self._answer(X)
        return np.array([answer.low_ms, answer.high_ms]).T

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_snapshot", None)
        return state

    def _answer(self, X: Any) -> TablePrediction:  # noqa: N803
        rows = np.asarray(X[list(self.columns)] if hasattr(X, "columns") else X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise ValueError(f"expected [n, {len(self.columns)}] with columns {list(self.columns)}, got {rows.shape}")
        figures = dict(zip(self.columns, rows.T.tolist(), strict=True))
        workload = {"kind": "operator_table", "op": self.op, **(self.fixed or {}), **figures}
        question = {"workload": workload, "gpu": self.gpu, "predictor": self.predictor, "coverage": self.coverage}
        found = predict_workload(
            self._served(), read_request(msgspec.json.encode(question)), max_rows=max(len(rows), 1)
        )
        assert isinstance(found, TableResponse)
        return found.predictions[0]

    def _served(self) -> Snapshot:
        if not hasattr(self, "_snapshot"):
            self.fit()
        return self._snapshot
