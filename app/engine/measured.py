"""What the engine knows of stored measurements of operators: exact hits, and what they tell the predictors served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from app.engine.engine import Engine, MeasuredOperators, Served
from app.engine.exact_hits import OperatorIndex
from app.engine.stored_operators import stored_operators
from app.ops import OPS
from app.store import operators
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_start import any_holds

# Rows of one operator, dtype and GPU that a served version is told: a calibration needs no more, a retraining does.
MOST_TOLD = 256
Versions = Mapping[tuple[str, str], Served]


def measured_operators(
    connection: Connection, gpus: GpuTable, served: Versions, last: Engine | None
) -> tuple[MeasuredOperators, dict[tuple[str, str], Served]]:
    """The stored rows of operators, and the versions once they were told those that they did not learn from.

    `last` serves on where neither rows nor GPUs are others.
    """
    counts, contents = operators.counts(connection), operators.contents(connection)
    same = last is not None and last.operators.contents == contents and last.gpus.ids == gpus.ids
    told = {key: _Told(one) for key, one in served.items() if hasattr(one.plain or one.predictor, "with_measured")}
    if same and last is not None and all(last.served.get(key) is one.version for key, one in told.items()):
        return last.operators, dict(served)
    index = OperatorIndex.build(_read(connection, gpus, told), len(gpus)) if counts else MeasuredOperators().index
    return MeasuredOperators(index, counts, contents), {**served, **{key: one.done(gpus) for key, one in told.items()}}


@dataclass(slots=True)
class _Told:
    """A version, and the rows that it did not learn from."""

    version: Served
    runs: list[OperatorRuns] = field(default_factory=list)

    def hear(self, run: OperatorRuns) -> None:
        """Keep what is new to it."""
        new = ~any_holds(self.version.rows, run.key)
        parts = [np.flatnonzero(new & (run.rows.gpu == gpu))[:MOST_TOLD] for gpu in np.unique(run.rows.gpu[new])]
        if parts:
            self.runs.append(run.take(np.concatenate(parts)))

    def done(self, gpus: GpuTable) -> Served:
        """The version once it was told."""
        plain: Any = self.version.plain or self.version.predictor
        if not self.runs:
            return replace(self.version, predictor=plain, plain=None)
        return replace(self.version, predictor=plain.with_measured(self.runs, gpus), plain=plain)


def _read(connection: Connection, gpus: GpuTable, told: Mapping[tuple[str, str], _Told]) -> Iterator[OperatorRuns]:
    """Every stored row, one operator in memory at a time."""
    for op in OPS[1:]:
        for run in stored_operators(connection, gpus, ops=(op.name,)):
            for one in told.values():
                one.hear(run)
            yield run
