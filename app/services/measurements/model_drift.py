"""Compare new measurements with what would have been predicted for them (model drift)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.engine.engine import Engine
from app.engine.evidence import kernel_evidence
from app.ops import OP_CODE
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import concatenate
from app.tables.predictions import Predictions
from app.wire.kernel_tables import NO_MEASUREMENTS

PREDICTOR = "auto"
COVERAGE = 0.8
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


def model_drift(engine: Engine, measured: Sequence[Measurements], gpus: GpuTable) -> Drift | None:
    """Return the drift of rows that the engine has not seen, or None if it has none of their GPUs.

    `measured.gpu` are rows of `gpus`. Each table holds kernels, or one operator.
    """
    compared = [part for table in measured if (part := _compared(engine, table, gpus)) is not None]
    if not compared:
        return None
    error, inside = (np.concatenate(parts) for parts in zip(*compared, strict=True))
    return Drift(len(error), float(100 * np.median(error)), float(100 * inside.mean()))


def _compared(engine: Engine, measured: Measurements, gpus: GpuTable) -> tuple[Floats, Floats] | None:
    """Return the absolute relative errors and whether the times were inside the interval, for GPUs of the engine."""
    known, answer = expected(engine, measured, gpus)
    if answer is None:
        return None
    latency_s = measured.latency_s[known]
    inside = (answer.low_s <= latency_s) & (latency_s <= answer.high_s)
    return np.abs(answer.latency_s / latency_s - 1), inside.astype(np.float64)


def expected(engine: Engine, measured: Measurements, gpus: GpuTable) -> tuple[Ints, Predictions | None]:
    """Return the rows whose GPUs the engine knows, int [k], and what would have been predicted for them.

    `measured` holds kernels, or one operator; `measured.gpu` are rows of `gpus`. None if the engine knows no GPU.
    """
    position = {gpu_id: j for j, gpu_id in enumerate(engine.gpus.ids)}
    target = np.array([position.get(gpus.ids[k], -1) for k in measured.gpu], dtype=np.intp)
    known = np.flatnonzero(target >= 0)
    if not len(known):
        return known, None
    measured, target = measured.take(known), target[known]
    answer = engine.predict(
        measured.ops,
        engine.gpus,
        np.arange(len(known)),
        target,
        predictor=PREDICTOR,
        coverage=COVERAGE,
        evidence=_evidence(engine, measured, target),
    )
    return known, answer


def _evidence(engine: Engine, measured: Measurements, target: Ints) -> Evidence:
    """Return the stored rows of each row's kernel, as a prediction would use them; nothing for operators."""
    if measured.ops.kind[0] != OP_CODE["kernel"]:
        return Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))
    nothing = measured.take(np.empty(0, dtype=np.intp))
    parts = [
        kernel_evidence(engine.kernels, measured.ops.take(np.array([k])), target[k : k + 1], nothing)
        for k in range(len(measured))
    ]
    rows = [part.rows for part in parts]
    return Evidence(
        Measurements(
            concatenate([part.ops for part in rows]),
            np.concatenate([part.gpu for part in rows]),
            np.concatenate([part.latency_s for part in rows]),
        ),
        np.concatenate([np.full(len(part), k, dtype=np.intp) for k, part in enumerate(parts)]),
    )
