"""Figures of a load, as the closed form or the simulation found them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.engine.served_points import ServedPoint
from app.tables.arrays import Floats
from app.wire.serving_form import ServingLoad


class Times(NamedTuple):
    """A time over requests, seconds: mean and percentiles, NaN where unknown; `asked`: that of the caller's choice."""

    mean: float
    p50: float = np.nan
    p90: float = np.nan
    p99: float = np.nan
    asked: float = np.nan


class LoadFigures(NamedTuple):
    """What a load gives; times are None where it is saturated.

    requests_per_s, running  of all engines; decoding: sequences of one engine that decode, on average
    kv_bytes     most bytes of keys and values on a device
    unfinished   requests that the simulation left unanswered
    steps        steps that were simulated
    """

    ttft: Times | None
    tpot: Times | None
    e2e: Times | None
    requests_per_s: float
    running: float
    decoding: float
    kv_bytes: float
    decode_s: float
    mixed_s: float
    highest_rate: float
    cause: str
    unfinished: int = 0
    steps: int = 0


def times_of(seconds: Floats, percentile: float) -> Times:
    """Return the mean and the percentiles of times, seconds."""
    return Times(float(seconds.mean()), *np.percentile(seconds, (50, 90, 99, percentile)).tolist())


def measured_figures(figures: LoadFigures, point: ServedPoint, load: ServingLoad) -> LoadFigures:
    """Return the figures with measured means; percentiles and throughput follow in proportion.

    A load that was measured is not saturated, whatever was predicted; then it has no percentiles.
    """
    if figures.e2e is None or figures.ttft is None:
        rate = load.rate_per_s or (load.concurrency or load.burst or 1.0) / point.e2e_s
        return figures._replace(
            ttft=Times(point.ttft_s),
            tpot=Times(point.tpot_s),
            e2e=Times(point.e2e_s),
            requests_per_s=rate,
            highest_rate=max(figures.highest_rate, rate),
        )
    rate = figures.requests_per_s * figures.e2e.mean / point.e2e_s
    return figures._replace(
        ttft=_scaled(figures.ttft, point.ttft_s),
        tpot=None if figures.tpot is None else _scaled(figures.tpot, point.tpot_s),
        e2e=_scaled(figures.e2e, point.e2e_s),
        requests_per_s=load.rate_per_s or rate,
    )


def _scaled(times: Times, mean: float) -> Times:
    return Times(*(one * mean / times.mean for one in times))
