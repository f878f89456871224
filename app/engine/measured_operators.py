"""Index stored operator measurements for exact matches, and calibrate served predictors with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from app.engine.engine import Engine, MeasuredOperators, Served
from app.engine.exact_hits import OperatorIndex
from app.engine.stored_operators import stored_operators
from app.engine.trial import tried
from app.ops import OPS
from app.predictors.base import calibrated
from app.store import operators
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_start import any_holds

# Rows per operator, dtype and GPU that a served version is calibrated with. More rows call for a retraining.
MOST_CALIBRATION_ROWS = 256
Versions = Mapping[tuple[str, str], Served]


def measured_operators(
    connection: Connection, gpus: GpuTable, served: Versions, last: Engine | None
) -> tuple[MeasuredOperators, dict[tuple[str, str], Served], list[str]]:
    """Return the index of stored operator rows, and the versions calibrated with rows that they were not trained on.

    A version that cannot be calibrated answers as it was trained; the third part has a message for each.

    Returns what `last` has if neither rows nor GPUs changed.
    """
    counts, contents = operators.counts(connection), operators.contents(connection)
    same = last is not None and last.operators.contents == contents and last.gpus.ids == gpus.ids
    fresh = {key: _NewRows(item) for key, item in served.items() if calibrated(item.uncalibrated or item.predictor)}
    if same and last is not None and all(last.served.get(key) is item.version for key, item in fresh.items()):
        return last.operators, dict(served), []
    index = OperatorIndex.build(_read(connection, gpus, fresh), len(gpus)) if counts else MeasuredOperators().index
    ready, failed = dict(served), list[str]()
    for key, item in fresh.items():
        try:
            ready[key] = item.calibrated(gpus)
        except Exception as error:
            failed.append(f"{key[0]} {item.version.version} for {key[1]} is not calibrated: {error!r}")
            ready[key] = replace(item.version, predictor=item.uncalibrated, uncalibrated=None)
    return MeasuredOperators(index, counts, contents), ready, failed


@dataclass(slots=True)
class _NewRows:
    """A version, and stored rows that it was not trained on."""

    version: Served
    runs: list[OperatorRuns] = field(default_factory=list)

    @property
    def uncalibrated(self) -> Any:
        """The predictor as it was trained."""
        return self.version.uncalibrated or self.version.predictor

    def add(self, run: OperatorRuns) -> None:
        """Add the rows that the version was not trained on, at most MOST_CALIBRATION_ROWS per GPU."""
        new = ~any_holds(self.version.rows, run.key)
        parts = [
            np.flatnonzero(new & (run.rows.gpu == gpu))[:MOST_CALIBRATION_ROWS] for gpu in np.unique(run.rows.gpu[new])
        ]
        if parts:
            self.runs.append(run.take(np.concatenate(parts)))

    def calibrated(self, gpus: GpuTable) -> Served:
        """Return the version calibrated with the added rows, and tried since."""
        plain = self.uncalibrated
        if not self.runs:
            return replace(self.version, predictor=plain, uncalibrated=None)
        return tried(replace(self.version, predictor=plain.with_measured(self.runs, gpus), uncalibrated=plain), gpus)


def _read(connection: Connection, gpus: GpuTable, fresh: Mapping[tuple[str, str], _NewRows]) -> Iterator[OperatorRuns]:
    """Yield every stored row, one operator in memory at a time, and add each to `fresh`."""
    for op in OPS[1:]:
        for run in stored_operators(connection, gpus, ops=(op.name,)):
            for item in fresh.values():
                item.add(run)
            yield run
