"""Plan a served model (POST /plan, kind serving): the cheapest deployment that keeps its limits at a rate.

Each GPU type is tried with every split of an engine. The closed form gives the highest rate of an engine whose means
keep the limits, hence the number of engines, and the token budget that needs the fewest; the cheapest splits are then
simulated, with a cap on their sequences, or more engines, where percentiles miss the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from math import ceil
from typing import NamedTuple

import numpy as np
from msgspec import structs

from app.bands.band import probability_within
from app.engine.power import power_notes
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError
from app.networks.run import Parallelism
from app.services.compare.request import Candidate, pareto, resolve_candidates, warnings_of
from app.services.compare.served_engines import (
    Fewest,
    Limits,
    Option,
    most_engines,
    with_best_budget,
    with_capped_batch,
    with_engines,
    with_fewest,
)
from app.services.compare.served_options import Splits, cost_of, in_formats, split_of
from app.services.operators.machines import joined_by
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on, shape_of
from app.services.serving.known_times import uncertainties
from app.services.serving.load_figures import LoadFigures, Times, load_figures
from app.services.serving.predict_serving import Steps, own_bands, predict_served
from app.serving.engine import most_sequences
from app.serving.steady_state import closed_loop
from app.steps.timing import StepQuery
from app.wire.compare_form import CompareRequest
from app.wire.job_plan_form import ChosenSettings, ParetoPoint, PlanRequest, ServedChoice, ServingPlanResponse
from app.wire.serving_form import (
    MOST_RATE,
    ServedFigures,
    ServedTime,
    ServingPrediction,
    ServingRequest,
    ServingWorkload,
)

SERVED_GOALS = ("ttft_ms", "tpot_ms", "e2e_ms")
_JOB_GOALS = ("steps", "deadline_s", "budget_usd", "throughput_per_s")
_LOAD = ("workload", "load")
# Splits of a GPU type that are simulated, and how often each with more engines.
_FINALISTS, _TRIES = 3, 6
# Bisections between the rate of a plan and the highest that does not saturate: to a 64th of what lies between.
_RATE_BISECTIONS = 6


def plan_served(
    snapshot: Snapshot, request: PlanRequest, compare: CompareRequest, predict_request: ServingRequest, *, today: date
) -> ServingPlanResponse:
    """Return the ranked choices, one per GPU type, and the Pareto set over all splits."""
    _check_load(predict_request.workload)
    refuse_given(request, _JOB_GOALS, "is a goal of jobs: a served model has ttft_ms, tpot_ms and e2e_ms")
    limits = _limits(request)
    given = resolve_deployment(predict_request.workload)  # other splits are tried, and it must be possible too
    if given.rate_per_s > MOST_RATE:
        message = f"the requests arrive at once: a plan takes at most {MOST_RATE:,} a second, on average"
        given_by = ("trace", "arrival_s") if predict_request.workload.load.trace is not None else ("requests",)
        raise BadInput.at((*_LOAD, *given_by), message)
    candidates, named = resolve_candidates(snapshot, compare, predict_request, today), GpuRows(snapshot)
    one, every = Parallelism(link=predict_request.workload.parallelism.link), predict_request.gpus == "all"
    linked = {named.id(row) for row in joined_by(named, named.targets(predict_request), one, every=every)}
    candidates = [candidate for candidate in candidates if candidate.spec.id in linked]
    splits = Splits(snapshot, predict_request, candidates, limits)
    splits.add(in_formats(predict_request.workload, request.dtypes, request.kv_dtypes), int(request.max_devices))
    plan = _Plan(snapshot, request, predict_request, limits)
    choices = [_choice(plan, splits, gpu, options) for gpu, options in splits.by_gpu().items()]
    choices = [structs.replace(choice, rank=k + 1) for k, choice in enumerate(sorted(choices, key=_order))]
    return ServingPlanResponse(
        rate_per_s=given.rate_per_s,
        percentile=request.percentile,
        best=choices[0].gpu if choices and choices[0].meets else None,
        choices=choices,
        pareto=_pareto(splits.options),
        skipped=[*named.skipped, *splits.skipped],
        notes=power_notes(choice.cost.power_source for choice in choices),
    )


def _check_load(workload: ServingWorkload) -> None:
    """Raise BadInput unless requests arrive at a rate, or as recorded."""
    load = workload.load
    if load.rate_per_s is None and load.trace is None:
        message = "required field is missing: a served model is planned for a rate of requests, or a trace of them"
        raise BadInput.at((*_LOAD, "rate_per_s"), message)
    if load.max_concurrency is not None:
        message = "a plan is for engines that bear the whole rate: leave it out"
        raise BadInput.at((*_LOAD, "max_concurrency"), message)
    if load.trace is not None and workload.method == "closed_form":
        raise BadInput.at(("workload", "method"), "a plan simulates recorded requests: leave it out")


def _limits(request: PlanRequest) -> Limits:
    goals = {name: limit for name in SERVED_GOALS if (limit := getattr(request, name)) is not None}
    return Limits(goals, request.percentile, request.probability)


def highest_rate_within(
    snapshot: Snapshot,
    request: PlanRequest,
    predict_request: ServingRequest,
    candidate: Candidate,
    choice: ServedChoice,
) -> float:
    """Return the highest rate at which a choice that keeps the limits still does, requests per second.

    predict_request  that of the plan, with the choice's split and settings
    """
    plan, rows = _Plan(snapshot, request, predict_request, _limits(request)), GpuRows(snapshot)
    query = StepQuery(snapshot.engine, rows.table(), [rows.row(candidate.ref, ("gpus",))], predict_request.predictor)
    steps, deployment = Steps(), resolve_deployment(predict_request.workload)
    (engine,) = engines_on(query, deployment, [candidate.spec])
    known = uncertainties(query.engine, query.gpus, query.targets[0], deployment)

    def keeps(rate: float) -> bool:
        option = Option(deployment.at_rate(rate), engine, candidate, known, deployment.engines, able=True)
        figures = load_figures(option.deployment, engine, plan.limits.percentile)
        return not _tried(plan, option, figures, steps).missing

    low, high = deployment.rate_per_s, choice.serving.highest_rate_per_s
    for _ in range(_RATE_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def refuse_given(request: PlanRequest, fields: Sequence[str], why: str) -> None:
    """Raise BadInput that names those of the fields that are given."""
    errors = [FieldError((name,), why) for name in fields if getattr(request, name) is not None]
    if errors:
        raise BadInput(f"{errors[0].loc[0]}: {why}", errors=errors)


class _Plan(NamedTuple):
    """A plan's request, its engines' predictor and GPUs, and its limits."""

    snapshot: Snapshot
    request: PlanRequest
    serving: ServingRequest
    limits: Limits


def _choice(plan: _Plan, splits: Splits, gpu: str, options: Sequence[Option]) -> ServedChoice:
    """Return the best deployment of one GPU type, whose priced engines are `options`."""
    drafts = plan.serving.workload.speculative is not None
    able = sorted(
        (option for option in options if option.able),
        key=lambda option: (option.price, option.token_s if drafts else 0.0),
    )
    finalists = [with_fewest(with_best_budget(one, plan.limits), plan.limits) for one in able[:_FINALISTS]]
    # Where no split keeps the limits, the quickest comes closest.
    tried = sorted(finalists, key=lambda option: (not option.able, option.price)) or [splits.largest(gpu)]
    best: ServedChoice | None = None
    for option in tried:
        if best is not None and best.meets and not (option.able and option.price < best.devices * option.each):
            break  # more engines than these only cost more
        simulated = _simulated(plan, option)
        best = simulated if best is None else min(best, simulated, key=_order)
    assert best is not None
    return best


def _simulated(plan: _Plan, option: Option) -> ServedChoice:
    """Return the option with the fewest engines that keep the limits in the simulation, or the most that are tried."""
    most, tries, steps = most_engines(option.deployment), _TRIES if option.able else 1, Steps()
    engines = min(option.engines, most)
    for k in range(tries):
        tried = option._replace(deployment=with_engines(option.deployment, engines), engines=engines)
        tried, figures = _within(plan.limits, tried)
        last, more = k == tries - 1 or engines == most, None
        if last or not plan.limits.missed(figures):
            choice = _tried(plan, tried, figures, steps)
            if last or not choice.missing:
                break
            more = Fewest(option, plan.limits, own_bands(steps)).more(engines, choice.probability)
        # By a quarter at a time, or as many as that probability calls for, at most by half.
        engines = min(more or engines + ceil(engines / 4), engines + ceil(engines / 2), most)
    return _rendered(plan, choice)


def _within(limits: Limits, option: Option) -> tuple[Option, LoadFigures]:
    """Return the option and its simulated figures; with a cap on its sequences where that alone keeps the limits."""
    figures = load_figures(option.deployment, option.engine, limits.percentile)
    if not limits.missed(figures) or figures.e2e is None or not option.able:
        return option, figures
    capped = with_capped_batch(option, limits)
    if capped is None:
        return option, figures
    with_cap = load_figures(capped.deployment, capped.engine, limits.percentile)
    return (option, figures) if limits.missed(with_cap) else (capped, with_cap)


class _Tried(NamedTuple):
    """An option in the simulation, and with which probability it keeps the limits; `missing`: those it misses."""

    option: Option
    figures: LoadFigures
    prediction: ServingPrediction
    probability: float
    missing: list[str]


def _tried(plan: _Plan, option: Option, figures: LoadFigures, steps: Steps) -> _Tried:
    """Return an option as judged by its interval."""
    deployment, candidate, limits = option.deployment, option.candidate, plan.limits
    query = structs.replace(plan.serving, gpu=candidate.ref, gpus=None, workload=deployment.workload)
    prediction = predict_served(plan.snapshot, query, deployment, candidate.spec, option.engine, figures, steps)
    probability, missing = _judged(prediction.serving, figures, limits)
    if not missing and probability < limits.probability:
        missing = [f"the limits are kept with probability {probability:.2f}, under {limits.probability:g}"]
    return _Tried(option, figures, prediction, probability, missing)


def _rendered(plan: _Plan, tried: _Tried) -> ServedChoice:
    deployment, candidate, prediction = tried.option.deployment, tried.option.candidate, tried.prediction
    workload, served = deployment.workload, prediction.serving
    cost = cost_of(plan.snapshot, candidate, deployment, served, tried.figures.prompt_share, plan.request.duty_cycle)
    warnings = warnings_of(prediction, candidate.rate)
    return ServedChoice(
        rank=0,
        gpu=prediction.gpu,
        devices=deployment.devices,
        parallelism=split_of(deployment),
        settings=ChosenSettings(
            workload.dtype,
            workload.kv_dtype,
            _whole(workload.max_batched_tokens),
            _whole(workload.max_sequences),
            None if workload.speculative is None else int(workload.speculative.tokens),
        ),
        meets=not tried.missing,
        probability=tried.probability,
        cost=cost,
        memory=prediction.memory,
        predictor=prediction.predictor,
        serving=served,
        missing=tried.missing,
        warnings=[each.text for each in warnings],
        warning_codes=warnings,
    )


def _whole(figure: float | None) -> int | None:
    return None if figure is None else int(figure)


def _judged(served: ServedFigures, figures: LoadFigures, limits: Limits) -> tuple[float, list[str]]:
    """Return the probability that all limits are kept, that of the least likely one, and which are missed."""
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
    for name, limit in limits.ms.items():
        time, shown = times[name]
        if time is None or shown is None:
            continue
        at = 1e3 * time.chosen
        probability = min(probability, probability_within(at, shown.interval.band(shown.mean), limit))
        if at > limit:
            missing.append(f"{name} is {at:.4g} at the {limits.percentile:g}th percentile, over {limit:g}")
    return probability, missing


def _order(choice: ServedChoice) -> tuple[bool, float, bool, float, int, str]:
    """Sort key: choices that meet the limits, the cheapest first; then the likeliest."""
    monthly = choice.cost.monthly_usd  # by the hour, owned GPUs that idle would seem too cheap
    likely = 0.0 if choice.meets else -choice.probability
    return not choice.meets, likely, monthly is None, monthly or 0.0, choice.devices, choice.gpu


def _pareto(options: Sequence[Option]) -> list[ParetoPoint]:
    """Return the Pareto set of tokens per second and user against tokens per second and GPU, the quickest first."""
    points = [point for option in options for point in _points(option)]
    if not points:
        return []
    costs = np.array([[-point.tokens_per_s_per_user, -point.tokens_per_s_per_gpu] for point in points])
    best = [point for point, good in zip(points, pareto(costs), strict=True) if good]
    return sorted(best, key=lambda point: -point.tokens_per_s_per_user)


def _points(option: Option) -> Iterator[ParetoPoint]:
    """Yield closed loops of one engine, with twice as many requests in flight each time."""
    deployment, engine = option.deployment, option.engine
    shape, devices, workload = shape_of(deployment), deployment.run.parallelism.devices, deployment.workload
    most = most_sequences(engine.limits, shape.kept, shape.output)
    if most < 1.0 or shape.output <= 1.0:
        return
    for k in range(int(np.log2(most)) + 1):
        state = closed_loop(engine.times, engine.limits, shape, float(2**k))
        per_gpu = state.requests_per_s * shape.output / devices
        rate = option.candidate.rate
        cost = None if rate is None or rate.usd_per_kwh is not None else rate.usd_per_hour / 3600.0 / per_gpu * 1e6
        yield ParetoPoint(
            option.candidate.spec.id,
            devices,
            split_of(deployment),
            workload.dtype,
            workload.kv_dtype,
            2**k,
            1.0 / state.tpot_s,
            per_gpu,
            cost,
        )
