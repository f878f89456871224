"""Measured loads on served models, as workloads with what was measured."""

from __future__ import annotations

from typing import NamedTuple

from app.wire.serving_form import ServingWorkload

UNKNOWN = float("nan")


class Measured(NamedTuple):
    """Measured means over requests, milliseconds, and joules per generated token; NaN: not told.

    `overloaded`: queues grew for as long as it ran.
    """

    ttft_ms: float = UNKNOWN
    tpot_ms: float = UNKNOWN
    e2e_ms: float = UNKNOWN
    overloaded: bool = False
    energy_j: float = UNKNOWN


class Case(NamedTuple):
    """One load on one deployment.

    source      data set
    model, gpu, dtype, stack  what errors are reported by
    deployment  what is held out together, and ranked against others
    """

    source: str
    model: str
    gpu: str
    dtype: str
    stack: str
    deployment: str
    workload: ServingWorkload
    measured: Measured
