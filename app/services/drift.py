"""How far new measurements are from what would have been predicted for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.services.engine import Engine
from app.services.evidence import bearing
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import concatenate

PREDICTOR = "auto"
COVERAGE = 0.8
# A sample this large gives the median within a few percent, in a fraction of a second.
MOST_ROWS = 200

Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Drift:
    """Predictions beside new measurements.

    rows              how many were compared, a sample of at most MOST_ROWS
    median_ape        median absolute error of the prediction, % of the measured time
    inside_interval   share of measured times within the 80 % interval, %
    """

    rows: int
    median_ape: float
    inside_interval: float


def sample(n: int) -> Ints:
    """At most MOST_ROWS of n rows, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_ROWS)).round().astype(np.intp))


def drift(engine: Engine, measured: Measurements, gpus: GpuTable) -> Drift | None:
    """Compare rows that the engine has not seen; `measured.gpu` are rows of `gpus`. None where it knows no GPU."""
    position = {gpu_id: j for j, gpu_id in enumerate(engine.gpus.ids)}
    target = np.array([position.get(gpus.ids[k], -1) for k in measured.gpu], dtype=np.intp)
    known = np.flatnonzero(target >= 0)
    if not len(known):
        return None
    measured, target = measured.take(known), target[known]
    every = np.arange(len(known))
    answer = engine.predict(
        measured.ops,
        engine.gpus,
        every,
        target,
        predictor=PREDICTOR,
        coverage=COVERAGE,
        evidence=_evidence(engine, measured, target),
    )
    error = np.abs(answer.latency_s / measured.latency_s - 1)
    inside = (answer.low_s <= measured.latency_s) & (measured.latency_s <= answer.high_s)
    return Drift(len(known), float(100 * np.median(error)), float(100 * inside.mean()))


def _evidence(engine: Engine, measured: Measurements, target: Ints) -> Evidence:
    """What is stored about each row's kernel, as a prediction of it would use."""
    nothing = measured.take(np.empty(0, dtype=np.intp))
    parts = [
        bearing(engine.kernels, measured.ops.take(np.array([k])), target[k : k + 1], nothing)
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
