"""Compare new measurements with what would have been predicted for them (model drift)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from app.bands.coverage import COVERAGE
from app.engine.engine import Engine
from app.engine.evidence import kernel_evidence
from app.engine.measurement_tables import to_measurements
from app.ops import OP_CODE
from app.services.measurements.check_upload import Checked
from app.store import measurements
from app.store.operator_blocks import ID_BYTES, identities
from app.tables.arrays import Bools, Bytes, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, stacked
from app.tables.predictions import Predictions
from app.wire.kernel_tables import NO_MEASUREMENTS

PREDICTOR = "auto"
# Enough rows for a median within a few percent, in a fraction of a second.
MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Drift:
    """Predictions compared with new measurements.

    rows              number of compared rows, a sample of at most MOST_ROWS
    median_ape        median absolute error of the prediction, % of the measured time
    inside_interval   share of measured times within the 80 % interval, %
    """

    rows: int
    median_ape: float
    inside_interval: float


def sample_rows(n: int) -> Ints:
    """Return at most MOST_ROWS of n row indices, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_ROWS)).round().astype(np.intp))


class ExpectedTimes(NamedTuple):
    """Rows of a table whose GPUs the engine knows, int [k], and what would have been predicted for them.

    The table holds kernels, or one operator. The answer is None if the engine knows none of the GPUs.
    """

    measured: Measurements
    known: Ints
    answer: Predictions | None


class DriftSample(NamedTuple):
    """At most MOST_ROWS kernels and as many operators of an upload, compared with what would have been predicted.

    kernels, operators  identities of the rows, kernels before operators in what follows
    error               float64 [n], absolute error of the prediction over the measured time
    inside              bool [n], whether the time was within the interval
    """

    kernels: tuple[str, ...]
    operators: Bytes
    error: Floats
    inside: Bools

    def ids(self) -> list[str]:
        """Return the identities of all rows, hexadecimal."""
        return [*self.kernels, *(row.tobytes().hex() for row in self.operators)]

    def drift(self, new: Bools) -> Drift | None:
        """Return the drift of the rows of a mask; None without any."""
        if not new.any():
            return None
        return Drift(int(new.sum()), float(100 * np.median(self.error[new])), float(100 * self.inside[new].mean()))


def expected_times(engine: Engine, checked: Checked) -> list[ExpectedTimes]:
    """Return what would have been predicted for the kernels of an upload, if it has any, and for each block."""
    tables = [] if checked.measured is None else [checked.measured]
    blocks = () if checked.operators is None else checked.operators.blocks
    tables += [to_measurements(block, checked.gpus) for block in blocks]
    return [_expected(engine, table, checked.gpus) for table in tables]


def drift_sample(checked: Checked, expected: Sequence[ExpectedTimes]) -> DriftSample:
    """Return a sample of an upload; `expected` is what `expected_times` returns for it."""
    kernels, operators, parts = tuple[str, ...](), [np.empty((0, ID_BYTES), np.uint8)], list[list[Any]]()
    tables = iter(expected)
    if checked.measured is not None:
        rows, *part = _compared(next(tables), sample_rows(len(checked.measured)))
        kernels = tuple(measurements.identity(checked.rows[k]) for k in rows)
        parts.append(part)
    blocks = () if checked.operators is None else checked.operators.blocks
    chosen, first = sample_rows(sum(map(len, blocks))), 0
    for block, table in zip(blocks, tables, strict=True):
        rows, *part = _compared(table, chosen[(chosen >= first) & (chosen < first + len(block))] - first)
        first += len(block)
        operators.append(identities(block.take(rows)))
        parts.append(part)
    error = np.concatenate([np.empty(0), *(part[0] for part in parts)])
    inside = np.concatenate([np.empty(0, dtype=np.bool_), *(part[1] for part in parts)])
    return DriftSample(kernels, np.concatenate(operators), error, inside)


def _compared(expected: ExpectedTimes, chosen: Ints) -> tuple[Ints, Floats, Bools]:
    """Return the chosen rows whose GPUs are known, their relative errors, and whether the times were inside."""
    measured, known, answer = expected
    if answer is None:
        return known[:0], np.empty(0), np.empty(0, dtype=np.bool_)
    at = np.flatnonzero(np.isin(known, chosen))
    latency_s = measured.latency_s[known[at]]
    inside = (answer.low_s[at] <= latency_s) & (latency_s <= answer.high_s[at])
    return known[at], np.abs(answer.latency_s[at] / latency_s - 1), inside


def _expected(engine: Engine, measured: Measurements, gpus: GpuTable) -> ExpectedTimes:
    """Return what would have been predicted; `measured.gpu` are rows of `gpus`."""
    position = {gpu_id: j for j, gpu_id in enumerate(engine.gpus.ids)}
    target = np.array([position.get(gpus.ids[k], -1) for k in measured.gpu], dtype=np.intp)
    known = np.flatnonzero(target >= 0)
    if not len(known):
        return ExpectedTimes(measured, known, None)
    rows, target = measured.take(known), target[known]
    answer = engine.predict(
        rows.ops,
        engine.gpus,
        np.arange(len(known)),
        target,
        predictor=PREDICTOR,
        coverage=COVERAGE,
        evidence=_evidence(engine, rows, target),
    )
    return ExpectedTimes(measured, known, answer)


def _evidence(engine: Engine, measured: Measurements, target: Ints) -> Evidence:
    """Return the stored rows of each row's kernel, as a prediction would use them; nothing for operators."""
    if measured.ops.kind[0] != OP_CODE["kernel"]:
        return Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))
    nothing = measured.take(np.empty(0, dtype=np.intp))
    parts = [
        kernel_evidence(engine.kernels, measured.ops.take(np.array([k])), target[k : k + 1], nothing)
        for k in range(len(measured))
    ]
    return Evidence(
        stacked([part.rows for part in parts]),
        np.concatenate([np.full(len(part), k, dtype=np.intp) for k, part in enumerate(parts)]),
    )
