"""Curves of a served model: throughput against speed per user, time to first token against the rate, and its limits.

Every point is the answer of POST /predict to the same workload under another load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from app.engine.snapshot import Snapshot
from app.services.serving.predict_serving import Steps, predict_loads
from app.wire.compare_form import ComparedServing, ServedSplit
from app.wire.kernel_workload import GpuRef
from app.wire.prediction_form import Interval
from app.wire.serving_form import ServedTime, ServingLoad, ServingParallelism, ServingPrediction, ServingRequest

PERCENTILES = (50, 90, 99)
# Rates of the curve as shares of the highest one, and bisections between two of them for the limits.
_SHARES = (0.05, 0.2, 0.4, 0.55, 0.7, 0.8, 0.88, 0.95)
_BISECTIONS = 4
# Requests in flight of one engine at most.
_MOST_IN_FLIGHT = 1024


class Limits(NamedTuple):
    """Most milliseconds of the times at the percentile, one of PERCENTILES; None: no limit."""

    ttft_ms: float | None
    tpot_ms: float | None
    percentile: int = 90

    def at(self, time: ServedTime) -> float:
        """Return a time at the percentile, or its mean where percentiles are unknown."""
        found: float | None = getattr(time, f"p{self.percentile}")
        return time.mean if found is None else found

    def kept(self, ttft: ServedTime, tpot: ServedTime | None) -> bool:
        """Return whether both limits are kept."""
        pairs = ((ttft, self.ttft_ms), (tpot, self.tpot_ms))
        return all(time is None or most is None or self.at(time) <= most for time, most in pairs)


class LoadPoint(Struct, frozen=True):
    """A load (requests in flight, or requests a second) and what users and the operator see; milliseconds, USD.

    Intervals of a rate's throughput are null: it is the rate's. `ttft_at_ms` is the time to first token at the limits'
    percentile, with the interval of the mean scaled to it.
    """

    load: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_gpu_interval: Interval | None
    tokens_per_s_per_user: float | None
    tokens_per_s_per_user_interval: Interval | None
    ttft_ms: ServedTime
    tpot_ms: ServedTime | None
    ttft_at_ms: float
    ttft_at_interval_ms: Interval
    cost_per_million_tokens: float | None
    within_limits: bool


class Curves(Struct, frozen=True):
    """The curves of one GPU type; `best` is the highest rate that is found to keep the limits."""

    gpu: str
    devices: int
    parallelism: ServedSplit
    highest_rate_per_s: float
    by_concurrency: list[LoadPoint]
    by_rate: list[LoadPoint]
    best: LoadPoint | None


def served_curves(
    snapshot: Snapshot, asked: ServingRequest, gpu: GpuRef, row: ComparedServing, limits: Limits, *, max_rows: int
) -> Curves:
    """Return the curves of a row of a comparison, with the split that it has; without points if it does not fit."""
    split = {name: float(value) for name, value in structs.asdict(row.parallelism).items()}
    split |= {"network_bytes_per_s": asked.workload.parallelism.network_bytes_per_s}
    workload = structs.replace(asked.workload, parallelism=ServingParallelism(**split))
    request = structs.replace(asked, gpu=gpu, gpus=None, workload=workload)
    hourly, highest = row.cost.usd_per_hour, row.serving.highest_rate_per_s
    steps: Steps = {}

    def points(loads: Iterable[ServingLoad]) -> list[LoadPoint]:
        answers = predict_loads(snapshot, request, [*loads], max_rows=max_rows, steps=steps)
        return [_point(load, one, hourly, limits) for load, one in zip(loads, answers, strict=True) if one.latency_ms]

    if not row.memory.fits or highest <= 0.0:
        return Curves(row.gpu, row.devices, row.parallelism, highest, [], [], None)
    in_flight = _in_flight(row, asked.workload.load.concurrency)
    by_concurrency = points([ServingLoad(concurrency=count) for count in in_flight])
    by_rate = points([ServingLoad(rate_per_s=share * highest) for share in _SHARES])
    kept = max((point.load for point in by_rate if point.within_limits), default=0.0)
    beyond = min((point.load for point in by_rate if point.load > kept), default=kept)
    for _ in range(_BISECTIONS if kept < beyond else 0):
        middle = 0.5 * (kept + beyond)
        found = points([ServingLoad(rate_per_s=middle)])
        by_rate += found
        kept, beyond = (middle, beyond) if found and found[0].within_limits else (kept, middle)
    by_rate.sort(key=lambda point: point.load)
    best = next((point for point in reversed(by_rate) if point.within_limits), None)
    return Curves(row.gpu, row.devices, row.parallelism, highest, by_concurrency, by_rate, best)


def _in_flight(row: ComparedServing, asked: float | None) -> Sequence[float]:
    """Return requests in flight, doubling from one per engine up to what the engines run at once, and the asked."""
    engines = row.parallelism.replicas
    most = min(row.serving.sequences.limit, _MOST_IN_FLIGHT * engines)
    counts = {float(engines * 2**k) for k in range(max(most // engines, 1).bit_length())}
    if asked is not None and asked <= most:
        counts.add(asked)
    return sorted(counts)


def _point(load: ServingLoad, answer: ServingPrediction, hourly: float | None, limits: Limits) -> LoadPoint:
    served = answer.serving
    ttft, tpot, e2e = served.ttft_ms, served.tpot_ms, served.e2e_ms
    tokens, each = served.output_tokens_per_s, served.output_tokens_per_s_per_gpu
    assert ttft is not None and e2e is not None and tokens is not None and each is not None
    at = limits.at(ttft)
    return LoadPoint(
        load=load.concurrency or load.rate_per_s or 0.0,
        tokens_per_s_per_gpu=each,
        tokens_per_s_per_gpu_interval=None if load.concurrency is None else _inverse(each * e2e.mean, e2e.interval),
        tokens_per_s_per_user=None if tpot is None else 1e3 / tpot.mean,
        tokens_per_s_per_user_interval=None if tpot is None else _inverse(1e3, tpot.interval),
        ttft_ms=ttft,
        tpot_ms=tpot,
        ttft_at_ms=at,
        ttft_at_interval_ms=ttft.interval.scaled(at / ttft.mean),
        cost_per_million_tokens=None if hourly is None else hourly / 3600.0 / tokens * 1e6,
        within_limits=limits.kept(ttft, tpot),
    )


def _inverse(amount: float, time: Interval) -> Interval:
    """Return the interval of an amount over a time."""
    return Interval(amount / time.high, amount / time.low, time.coverage)
