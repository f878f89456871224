"""Compare GPUs on a served model (POST /compare, kind serving), and its curves over the load.

Every point of a curve is the answer of POST /predict to the same workload under another load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from app.engine.power import power_notes
from app.engine.prices import today_utc
from app.engine.snapshot import Snapshot
from app.predictors.links import link_refusal
from app.services.compare.compare import UNRANKED, compare
from app.services.compare.request import pareto, resolve_candidates, to_predict_request, warnings_of
from app.services.compare.served_options import cost_of, deployments, split_of
from app.services.graphs.graph_store import Graphs
from app.services.serving.deployment import Deployment, resolve_deployment
from app.services.serving.predict_serving import Steps, predict_serving
from app.warning_codes import CodedWarning, warning
from app.wire.compare_form import (
    ComparedServing,
    CompareRequest,
    CompareResponse,
    RankBy,
    ServedCost,
    ServedSplit,
    ServingCompareResponse,
)
from app.wire.job_plan_form import ServedChoice
from app.wire.kernel_workload import GpuRef
from app.wire.prediction_form import Interval
from app.wire.serving_form import (
    ServedFigures,
    ServedTime,
    ServingLoad,
    ServingPrediction,
    ServingRequest,
    ServingWorkload,
)

_UNRANKED: Mapping[RankBy, CodedWarning] = {
    "cost": UNRANKED["cost"],
    "energy": UNRANKED["energy"],
    "cost_per_million_tokens": warning(
        "price_unknown", "no price is known, so it is ranked last: send one in prices, or import a table"
    ),
}


def answer_compare(
    snapshot: Snapshot,
    request: CompareRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> CompareResponse | ServingCompareResponse:
    """Return the ranked GPUs. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    snapshot = snapshot.under(request.power_cap_w)
    if request.workload.get("kind") == "serving":
        predict_request = to_predict_request(request)
        assert isinstance(predict_request, ServingRequest)
        return compare_served(snapshot, request, predict_request, max_rows=max_rows, today=today or today_utc())
    return compare(snapshot, request, max_rows=max_rows, graphs=graphs, today=today)


def compare_served(
    snapshot: Snapshot, request: CompareRequest, predict_request: ServingRequest, *, max_rows: int, today: date
) -> ServingCompareResponse:
    """Return the ranked GPU types; those that the load saturates, or the model does not fit, get other splits."""
    candidates = {
        candidate.spec.id: candidate for candidate in resolve_candidates(snapshot, request, predict_request, today)
    }
    shares = dict[str, float]()
    answer = predict_serving(snapshot, predict_request, max_rows=max_rows, prompt_shares=shares)
    given = resolve_deployment(predict_request.workload)

    def row_of(deployment: Deployment, prediction: ServingPrediction) -> ComparedServing:
        gpu, served = prediction.gpu, prediction.serving
        cost = cost_of(snapshot, candidates[gpu], deployment, served, shares[gpu], request.duty_cycle)
        return _row(deployment, prediction, cost, warnings_of(prediction, candidates[gpu].rate))

    rows = {prediction.gpu: row_of(given, prediction) for prediction in answer.predictions}
    wider = [gpu for gpu, row in rows.items() if request.search_parallelism or row.serving.saturated]
    for deployment in deployments(predict_request.workload, int(request.max_devices)) if wider else ():
        if deployment.devices < given.devices and not request.search_parallelism:
            continue  # bears no more than the given split
        left = [candidates[gpu] for gpu in wider if request.search_parallelism or rows[gpu].serving.saturated]
        if not left:
            break
        split = deployment.run.parallelism
        refs = [one.ref for one in left if not link_refusal(one.spec, split.link, split.devices // split.nodes)]
        if not refs:
            continue
        tried = structs.replace(predict_request, gpu=None, gpus=refs, workload=deployment.workload)
        predictions = predict_serving(snapshot, tried, max_rows=max_rows, prompt_shares=shares).predictions
        for row in (row_of(deployment, prediction) for prediction in predictions):
            rows[row.gpu] = min(rows[row.gpu], row, key=lambda option: _order(option, request.rank_by))
    ranked = _ranked([*rows.values()], request.rank_by)
    return ServingCompareResponse(
        request.rank_by, ranked, answer.skipped, power_notes(row.cost.power_source for row in ranked)
    )


def _row(
    deployment: Deployment, prediction: ServingPrediction, cost: ServedCost, warnings: list[CodedWarning]
) -> ComparedServing:
    served = prediction.serving
    return ComparedServing(
        rank=0,
        gpu=prediction.gpu,
        devices=prediction.devices,
        parallelism=split_of(deployment),
        latency_ms=prediction.latency_ms,
        interval_ms=prediction.interval_ms,
        tokens_per_s=served.output_tokens_per_s,
        tokens_per_s_per_gpu=served.output_tokens_per_s_per_gpu,
        tokens_per_s_per_user=None if served.tpot_ms is None else 1e3 / served.tpot_ms.mean,
        cost=cost,
        cost_per_million_tokens=cost.cost_per_million_tokens,
        memory=prediction.memory,
        bound=prediction.bound,
        support=prediction.support,
        predictor=prediction.predictor,
        serving=served,
        pareto=False,
        warnings=[each.text for each in warnings],
        warning_codes=warnings,
    )


def _figure(row: ComparedServing, rank_by: RankBy) -> float | None:
    """Return the ranked figure, less is better; of cost and energy that of a generated token."""
    if rank_by in ("throughput", "tokens_per_s_per_gpu"):
        rate = row.tokens_per_s if rank_by == "throughput" else row.tokens_per_s_per_gpu
        return None if rate is None else -rate
    if rank_by == "latency":
        return row.latency_ms
    return row.cost.energy_per_token_j if rank_by == "energy" else row.cost_per_million_tokens


def _order(row: ComparedServing, rank_by: RankBy) -> tuple[bool, bool, float, str]:
    """Sort key: deployments that fit first, then known figures, then better ones; of saturated ones who bear most."""
    figure = _figure(row, rank_by)
    if figure is None:
        figure = -row.serving.highest_rate_per_s if row.serving.saturated else row.devices
        return not row.memory.fits, True, figure, row.gpu
    return not row.memory.fits, False, figure, row.gpu


def _ranked(rows: Sequence[ComparedServing], rank_by: RankBy) -> list[ComparedServing]:
    ordered = sorted(rows, key=lambda row: _order(row, rank_by))
    costs = np.array(
        [[-(row.tokens_per_s_per_user or np.nan), -(row.tokens_per_s_per_gpu or np.nan)] for row in ordered]
    )
    best = pareto(costs.reshape(-1, 2)) & np.isfinite(costs.reshape(-1, 2)).all(axis=1)
    note = _UNRANKED.get(rank_by)
    unranked = [[note] if note and row.tokens_per_s and _figure(row, rank_by) is None else [] for row in ordered]
    warnings = [[*row.warning_codes, *added] for row, added in zip(ordered, unranked, strict=True)]
    return [
        structs.replace(
            row,
            rank=k + 1,
            pareto=bool(best[k]),
            warnings=[each.text for each in warnings[k]],
            warning_codes=warnings[k],
        )
        for k, row in enumerate(ordered)
    ]


PERCENTILES = (50, 90, 99)
# Rates of the curve as shares of the highest one, and bisections between two of them for the limits.
_SHARES = (0.05, 0.2, 0.4, 0.55, 0.7, 0.8, 0.88, 0.95)
_BISECTIONS = 4
# Requests in flight of one engine at most.
_MOST_IN_FLIGHT = 1024


class LoadLimits(NamedTuple):
    """Most milliseconds of the times at the percentile, one of PERCENTILES; None: no limit."""

    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None = None
    percentile: int = 90

    def at(self, time: ServedTime) -> float:
        """Return a time at the percentile, or its mean where percentiles are unknown."""
        percentile: float | None = getattr(time, f"p{self.percentile}")
        return time.mean if percentile is None else percentile

    def missed(self, served: ServedFigures) -> list[str]:
        """Return which times are over their limits: TTFT, TPOT, E2E."""
        times = {"ttft_ms": served.ttft_ms, "tpot_ms": served.tpot_ms, "e2e_ms": served.e2e_ms}
        return [
            name.removesuffix("_ms").upper()
            for name, time in times.items()
            if time is not None and (most := getattr(self, name)) is not None and self.at(time) > most
        ]


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
    """The curves of one GPU type; `best` is the highest rate that keeps the limits."""

    gpu: str
    devices: int
    parallelism: ServedSplit
    highest_rate_per_s: float
    by_concurrency: list[LoadPoint]
    by_rate: list[LoadPoint]
    best: LoadPoint | None


def as_deployed(workload: ServingWorkload, row: ComparedServing | ServedChoice) -> ServingWorkload:
    """Return the workload with the split of a row, and with the settings that a plan chose."""
    split = {name: float(size) for name, size in structs.asdict(row.parallelism).items()}
    workload = structs.replace(workload, parallelism=structs.replace(workload.parallelism, **split))
    if isinstance(row, ComparedServing):
        return workload
    chosen, drafting = row.settings, workload.speculative
    if drafting is not None:
        drafted = chosen.speculative_tokens
        drafting = None if drafted is None else structs.replace(drafting, tokens=float(drafted))
    return structs.replace(
        workload,
        dtype=chosen.dtype,
        kv_dtype=chosen.kv_dtype,
        speculative=drafting,
        max_batched_tokens=chosen.max_batched_tokens,
        max_sequences=chosen.max_sequences,
    )


def served_curves(
    snapshot: Snapshot,
    predict_request: ServingRequest,
    gpu: GpuRef,
    row: ComparedServing | ServedChoice,
    limits: LoadLimits,
    *,
    max_rows: int,
) -> Curves:
    """Return the curves of a row of a comparison or a plan, as it is deployed; without points if it does not fit."""
    workload = as_deployed(predict_request.workload, row)
    request = structs.replace(predict_request, gpu=gpu, gpus=None, workload=workload)
    hourly, highest = row.cost.usd_per_hour, row.serving.highest_rate_per_s
    steps: Steps = {}

    def points(loads: Iterable[ServingLoad]) -> Iterator[LoadPoint]:
        for load in loads:
            query = structs.replace(request, workload=structs.replace(workload, load=load))
            (answer,) = predict_serving(snapshot, query, max_rows=max_rows, steps=steps).predictions
            if answer.latency_ms:
                yield _point(load, answer, hourly, limits)

    if not row.memory.fits or highest <= 0.0:
        return Curves(row.gpu, row.devices, row.parallelism, highest, [], [], None)
    in_flight = _in_flight(row, predict_request.workload.load.concurrency)
    by_concurrency = [*points(ServingLoad(concurrency=count) for count in in_flight)]
    by_rate = [*points(ServingLoad(rate_per_s=share * highest) for share in _SHARES)]
    kept = max((point.load for point in by_rate if point.within_limits), default=0.0)
    beyond = min((point.load for point in by_rate if point.load > kept), default=kept)
    for _ in range(_BISECTIONS if kept < beyond else 0):
        middle = 0.5 * (kept + beyond)
        tried = [*points([ServingLoad(rate_per_s=middle)])]
        by_rate += tried
        kept, beyond = (middle, beyond) if tried and tried[0].within_limits else (kept, middle)
    by_rate.sort(key=lambda point: point.load)
    best = next((point for point in reversed(by_rate) if point.within_limits), None)
    return Curves(row.gpu, row.devices, row.parallelism, highest, by_concurrency, by_rate, best)


def _in_flight(row: ComparedServing | ServedChoice, requested: float | None) -> Sequence[float]:
    """Return requests in flight, doubling from one per engine up to what the engines run at once, and `requested`."""
    engines = row.parallelism.replicas
    most = min(row.serving.sequences.limit, _MOST_IN_FLIGHT * engines)
    counts = {float(engines * 2**k) for k in range(max(most // engines, 1).bit_length())}
    if requested is not None and requested <= most:
        counts.add(requested)
    return sorted(counts)


def _point(load: ServingLoad, answer: ServingPrediction, hourly: float | None, limits: LoadLimits) -> LoadPoint:
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
        within_limits=not limits.missed(served),
    )


def _inverse(amount: float, time: Interval) -> Interval:
    """Return the interval of an amount over a time."""
    return Interval(amount / time.high, amount / time.low, time.coverage)
