"""Plan a served model (POST /plan, kind serving): the cheapest deployment that keeps its limits at a rate.

Each GPU type is tried with every split of an engine. The closed form gives the highest rate of an engine whose means
keep the limits, hence the number of engines; the cheapest splits are then simulated, with more engines where
percentiles miss the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from math import ceil
from typing import NamedTuple

import numpy as np
from msgspec import structs

from app.engine.gpu_rows import GpuRows, Snapshot
from app.engine.power import power_notes
from app.errors import BadInput, FieldError
from app.predictors.intervals.prior import normal_quantile
from app.runtime.cancellation import check_cancelled
from app.services.compare.pareto import pareto
from app.services.compare.request import Candidate, resolve_candidates
from app.services.compare.served_options import cost_of, deployments, split_of, with_engines
from app.services.compare.time_distribution import probability_within
from app.services.operators.common import require_predictor
from app.services.serving.deployment import Deployment
from app.services.serving.engines import Engine, engines_on, shape_of
from app.services.serving.figures import LoadFigures, Times
from app.services.serving.load_figures import load_figures
from app.services.serving.predict_serving import predict_served, runnable
from app.services.serving.step_tables import TableQuery
from app.serving.engine_limits import most_sequences
from app.serving.steady_state import closed_loop, highest_rate, open_load
from app.wire.compare_form import CompareRequest
from app.wire.job_plan_form import PlanRequest
from app.wire.prediction_form import Interval, Skipped
from app.wire.served_choice_form import ParetoPoint, ServedChoice, ServingPlanResponse
from app.wire.serving_form import ServedTime, ServingPrediction, ServingRequest

SERVED_GOALS = ("ttft_ms", "tpot_ms", "e2e_ms")
_JOB_GOALS = ("steps", "deadline_s", "budget_usd", "throughput_per_s")
_DEVICES = 4096
# Splits of a GPU type that are simulated, and how often each with more engines.
_FINALISTS, _TRIES, _MORE = 2, 6, 1.25
_BISECTIONS = 24
# Share of the highest rate that engines get where their limits cannot be kept.
_BORNE = 0.7
# Log-space half-widths of the limits' margins before an answer's own intervals are known.
_USUAL = {"ttft_ms": 0.3, "tpot_ms": 0.15, "e2e_ms": 0.15}


class _Option(NamedTuple):
    """An engine on a GPU type, and how many the rate needs by the closed form; `able`: they keep the limits."""

    deployment: Deployment
    engine: Engine
    candidate: Candidate
    engines: int
    able: bool

    @property
    def price(self) -> float:
        """US dollars per hour of all devices, or without a price their number."""
        rate = self.candidate.rate
        each = 1.0 if rate is None else rate.usd_per_hour
        return self.engines * self.deployment.run.parallelism.devices * each


def plan_served(
    snapshot: Snapshot, request: PlanRequest, compare: CompareRequest, asked: ServingRequest, *, today: date
) -> ServingPlanResponse:
    """Return the ranked choices, one per GPU type, and the Pareto set over all splits."""
    rate = asked.workload.load.rate_per_s
    if rate is None:
        loc = ("workload", "load", "rate_per_s")
        message = "required field is missing: a served model is planned for a rate of requests"
        raise BadInput(f"{'.'.join(loc)}: {message}", errors=[FieldError(loc, message)])
    refuse_given(request, _JOB_GOALS, "is a goal of jobs: a served model has ttft_ms, tpot_ms and e2e_ms")
    limits = {name: limit for name in SERVED_GOALS if (limit := getattr(request, name)) is not None}
    candidates = resolve_candidates(snapshot, compare, asked, today)
    options, skipped = _options(snapshot, asked, candidates, int(request.max_devices), limits, request)
    by_gpu: dict[str, list[_Option]] = {}
    for option in options:
        by_gpu.setdefault(option.candidate.spec.id, []).append(option)
    found = [_choice(snapshot, request, asked, each, limits) for each in by_gpu.values()]
    found.sort(key=_order)
    choices = [structs.replace(choice, rank=k + 1) for k, choice in enumerate(found)]
    return ServingPlanResponse(
        rate_per_s=rate,
        percentile=request.percentile,
        best=choices[0].gpu if choices and choices[0].meets else None,
        choices=choices,
        pareto=_pareto(options),
        skipped=skipped,
        notes=power_notes(choice.cost.power_source for choice in choices),
    )


def refuse_given(request: PlanRequest, fields: Sequence[str], why: str) -> None:
    """Raise BadInput that names those of the fields that are given."""
    errors = [FieldError((name,), why) for name in fields if getattr(request, name) is not None]
    if errors:
        raise BadInput(f"{errors[0].loc[0]}: {why}", errors=errors)


def _options(
    snapshot: Snapshot,
    asked: ServingRequest,
    candidates: Sequence[Candidate],
    most: int,
    limits: Mapping[str, float],
    request: PlanRequest,
) -> tuple[list[_Option], list[Skipped]]:
    """Return every split of an engine on every GPU type that computes in the model's formats, and the others."""
    rows, options = GpuRows(snapshot), list[_Option]()
    skipped: dict[str, Skipped] = {}
    of = {rows.row(candidate.ref, ("gpus",)): candidate for candidate in candidates}
    require_predictor(snapshot.engine, rows, asked.predictor, [*of])
    for deployment in deployments(asked.workload, most):
        check_cancelled()
        targets, left_out = runnable(snapshot, rows, deployment, [*of], every=asked.gpus == "all")
        skipped |= {one.gpu: one for one in left_out}
        if not targets:
            continue
        query = TableQuery(snapshot.engine, rows.table(), targets, asked.predictor)
        engines = engines_on(query, deployment, [of[target].spec for target in targets])
        for target, engine in zip(targets, engines, strict=True):
            number, able = _engines_needed(deployment, engine, limits, request.probability)
            options.append(_Option(deployment, engine, of[target], number, able))
    if not options:
        raise BadInput("workload: no split of the model over max_devices devices can run", errors=[])
    return options, [*skipped.values()]


def _engines_needed(
    deployment: Deployment, engine: Engine, limits: Mapping[str, float], probability: float
) -> tuple[int, bool]:
    """Return how many engines keep the limits in their means at the rate; or, with False, how many bear the rate."""
    shape, rate = shape_of(deployment), deployment.workload.load.rate_per_s or 0.0
    most = highest_rate(engine.times, engine.limits, shape)
    allowed = {name: limit * np.exp(-normal_quantile(probability) * _USUAL[name]) for name, limit in limits.items()}

    def keeps(each: float) -> bool:
        state = open_load(engine.times, engine.limits, shape, each)
        means = {"ttft_ms": state.ttft_s, "tpot_ms": state.tpot_s, "e2e_ms": state.e2e_s}
        return all(1e3 * means[name] <= limit for name, limit in allowed.items())

    if most == 0.0 or not keeps(1e-3 * most):
        return (1 if most == 0.0 else ceil(rate / (_BORNE * most))), False
    low, high = 1e-3 * most, most
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return max(ceil(rate / low), 1), True


def _choice(
    snapshot: Snapshot,
    request: PlanRequest,
    asked: ServingRequest,
    options: Sequence[_Option],
    limits: Mapping[str, float],
) -> ServedChoice:
    """Return the best deployment of one GPU type."""
    able = sorted((option for option in options if option.able), key=lambda option: option.price)
    # Where no split keeps the limits, the quickest comes closest.
    tried = able[:_FINALISTS] or [max(options, key=lambda option: option.deployment.run.parallelism.devices)]
    return min((_simulated(snapshot, request, asked, option, limits) for option in tried), key=_order)


def _simulated(
    snapshot: Snapshot, request: PlanRequest, asked: ServingRequest, option: _Option, limits: Mapping[str, float]
) -> ServedChoice:
    """Return the option with the fewest engines that keep the limits in the simulation, or the most that are tried."""
    each, engines = option.deployment.run.parallelism.devices, option.engines
    most = max(_DEVICES // each, 1)
    tries = _TRIES if option.able else 1
    choice = None
    for k in range(tries):
        engines = min(engines, most)
        deployment = with_engines(option.deployment, engines)
        figures = load_figures(deployment, option.engine, request.percentile)
        last = k == tries - 1 or engines == most
        if last or not _misses(figures, limits):
            choice = _rendered(snapshot, request, asked, option._replace(deployment=deployment), figures, limits)
            if choice.meets or last:
                break
        engines = max(ceil(_MORE * engines), engines + 1)
    assert choice is not None
    return choice


def _misses(figures: LoadFigures, limits: Mapping[str, float]) -> bool:
    """Return whether the percentile of a time is over its limit, or the load saturates the engines."""
    times = {"ttft_ms": figures.ttft, "tpot_ms": figures.tpot, "e2e_ms": figures.e2e}
    return figures.e2e is None or any(
        time is not None and 1e3 * time.asked > limits[name] for name, time in times.items() if name in limits
    )


def _rendered(
    snapshot: Snapshot,
    request: PlanRequest,
    asked: ServingRequest,
    option: _Option,
    figures: LoadFigures,
    limits: Mapping[str, float],
) -> ServedChoice:
    deployment, candidate = option.deployment, option.candidate
    query = structs.replace(asked, gpu=candidate.ref, gpus=None, workload=deployment.workload)
    found = predict_served(snapshot, query, deployment, candidate.spec, option.engine, figures)
    probability, missing = _judged(found, figures, limits, request.percentile)
    meets = not missing and probability >= request.probability
    if not missing and not meets:
        missing = [f"the limits are kept with probability {probability:.2f}, under {request.probability:g}"]
    return ServedChoice(
        rank=0,
        gpu=found.gpu,
        devices=deployment.devices,
        parallelism=split_of(deployment),
        meets=meets,
        probability=probability,
        cost=cost_of(snapshot, candidate, deployment, found.serving),
        memory=found.memory,
        predictor=found.predictor,
        serving=found.serving,
        missing=missing,
        warnings=found.warnings,
    )


def _judged(
    found: ServingPrediction, figures: LoadFigures, limits: Mapping[str, float], percentile: float
) -> tuple[float, list[str]]:
    """Return the probability that all limits are kept, that of the least likely one, and which are missed."""
    served = found.serving
    if served.saturated:
        return 0.0, [
            f"the rate is more than {served.highest_rate_per_s:.4g} a second, limited by {served.saturated_by}"
        ]
    times: dict[str, tuple[Times | None, ServedTime | None]] = {
        "ttft_ms": (figures.ttft, served.ttft_ms),
        "tpot_ms": (figures.tpot, served.tpot_ms),
        "e2e_ms": (figures.e2e, served.e2e_ms),
    }
    probability, missing = 1.0, []
    for name, limit in limits.items():
        time, shown = times[name]
        if time is None or shown is None:
            continue
        at = 1e3 * time.asked
        around, share = shown.interval, at / shown.mean
        ends = Interval(share * around.low, share * around.high, around.coverage)
        probability = min(probability, probability_within(at, ends, limit))
        if at > limit:
            missing.append(f"{name} is {at:.4g} at the {percentile:g}th percentile, over {limit:g}")
    return probability, missing


def _order(choice: ServedChoice) -> tuple[bool, float, bool, float, int, str]:
    """Sort key: choices that meet the limits, the cheapest first; then the likeliest."""
    hourly = choice.cost.usd_per_hour
    likely = 0.0 if choice.meets else -choice.probability
    return not choice.meets, likely, hourly is None, hourly or 0.0, choice.devices, choice.gpu


def _pareto(options: Sequence[_Option]) -> list[ParetoPoint]:
    """Return the Pareto set of tokens per second and user against tokens per second and GPU, the quickest first."""
    points = [point for option in options for point in _points(option)]
    if not points:
        return []
    costs = np.array([[-point.tokens_per_s_per_user, -point.tokens_per_s_per_gpu] for point in points])
    best = [point for point, good in zip(points, pareto(costs), strict=True) if good]
    return sorted(best, key=lambda point: -point.tokens_per_s_per_user)


def _points(option: _Option) -> Iterator[ParetoPoint]:
    """Yield closed loops of one engine, with twice as many requests in flight each time."""
    deployment, engine = option.deployment, option.engine
    shape, devices = shape_of(deployment), deployment.run.parallelism.devices
    most = most_sequences(engine.limits, shape.kept, shape.output)
    if most < 1.0 or shape.output <= 1.0:
        return
    for k in range(int(np.log2(most)) + 1):
        state = closed_loop(engine.times, engine.limits, shape, float(2**k))
        per_gpu = state.requests_per_s * shape.output / devices
        rate = option.candidate.rate
        cost = None if rate is None else rate.usd_per_hour / 3600.0 / per_gpu * 1e6
        yield ParetoPoint(
            option.candidate.spec.id, devices, split_of(deployment), 2**k, 1.0 / state.tpot_s, per_gpu, cost
        )
