"""Predictions of measured loads, with the times of a stack's host as shipped, or fitted without some loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from app.engine.engine import Engine
from app.engine.snapshot import GpuRows, Snapshot
from app.services.compare.request import Candidate
from app.services.compare.served_options import cost_of
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on
from app.services.serving.host_fit import MeasuredLoad, search_host
from app.services.serving.load_figures import LoadFigures
from app.services.serving.predict_serving import predict_served
from app.stacks.facts import HostTimes
from app.steps.timing import StepQuery
from app.wire.serving_form import ServedTime, ServingPrediction, ServingRequest
from evaluation.serving.loads import INFERENCEX, Load, read_loads
from evaluation.study import PREDICTOR, Progress, compared, grouped

FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms")
# What is held out of a fit, in turn.
DEPLOYMENT = "deployment"
HELD_OUT: Mapping[str, Callable[[Load], str]] = {
    DEPLOYMENT: lambda load: load.deployment,
    "model": lambda load: load.model,
    "GPU": lambda load: load.gpu,
}


class Outcome(NamedTuple):
    """A load and its prediction with the shipped times of the host.

    results   of each of FIGURES that was measured and is not saturated, with `held_out`: errors with times of the host
              fitted without its deployment, model or GPU, by the name of what was held out
    energy_j  joules per generated token by the power model; None: saturated
    fitted    what was held out, where something was left to fit to
    """

    load: Load
    prediction: ServingPrediction
    energy_j: float | None
    results: Mapping[str, Mapping[str, Any]]
    fitted: frozenset[str]


class Evaluated(NamedTuple):
    """Outcomes of all loads, and the times of each stack's host that fit best; empty where nothing was fitted."""

    outcomes: list[Outcome]
    fits: dict[str, HostTimes]


def evaluate_serving(folder: Path, engine: Engine, *, fit: bool, progress: Progress = lambda line: None) -> Evaluated:
    """Return the outcomes of a data folder; `fit` also fits the times of the host, with parts held out (minutes)."""
    loads = read_loads(folder)
    progress(f"{len(loads)} loads on {len({load.deployment for load in loads})} deployments")
    ready = _on_engines(engine, loads)
    fits: dict[str, HostTimes] = {}
    held_out: dict[int, dict[str, HostTimes]] = {}
    learned = [place for place, load in enumerate(loads) if load.source == INFERENCEX]
    for stack, places in sorted(grouped(learned, lambda place: loads[place].stack).items()) if fit else ():
        progress(f"{stack}: fitting the times of its host")
        search = search_host([ready[place] for place in places], progress=progress)
        fits[stack] = search.best()
        for name, group in HELD_OUT.items():
            without = search.without([group(loads[place]) for place in places])
            for place, host in zip(places, without, strict=True):
                if host is not None:
                    held_out.setdefault(place, {})[name] = host
    snapshot, outcomes = Snapshot.of(engine), []
    for place, (load, on_engine) in enumerate(zip(loads, ready, strict=True)):
        outcomes.append(_outcome(snapshot, load, on_engine, held_out.get(place, {})))
        if place % 200 == 199:
            progress(f"{place + 1} of {len(loads)} loads")
    return Evaluated(outcomes, fits)


def _on_engines(engine: Engine, loads: Sequence[Load]) -> list[MeasuredLoad]:
    """Return the loads with their step tables."""
    rows, ready = GpuRows(Snapshot.of(engine)), []
    for load in loads:
        target = rows.row(load.gpu, ("gpu",))
        deployment = resolve_deployment(load.workload)
        query = StepQuery(engine, rows.table(), [target], PREDICTOR)
        (served,) = engines_on(query, deployment, [rows.spec(target)])
        ready.append(MeasuredLoad(deployment, served, 1e-3 * load.measured.ttft_ms, 1e-3 * load.measured.tpot_ms))
    return ready


def _outcome(snapshot: Snapshot, load: Load, ready: MeasuredLoad, held_out: Mapping[str, HostTimes]) -> Outcome:
    """Return the prediction of a load; `held_out`: times of the host by what they were fitted without."""
    rows = GpuRows(snapshot)
    spec = rows.spec(rows.row(load.gpu, ("gpu",)))
    request = ServingRequest(gpu=load.gpu, workload=load.workload)
    prediction = predict_served(snapshot, request, ready.deployment, spec, ready.engine)
    unpriced = Candidate(load.gpu, spec, None, None)
    cost = cost_of(snapshot, unpriced, ready.deployment, prediction.serving, prompt_share=nan, duty_cycle=None)
    without = {name: ready.figures(host) for name, host in held_out.items()}
    results = {}
    for figure in FIGURES:
        measured, time = getattr(load.measured, figure), getattr(prediction.serving, figure)
        if not isnan(measured) and time is not None and not load.measured.overloaded:
            results[figure] = _result(measured, time, figure, without)
    return Outcome(load, prediction, cost.energy_per_token_j, results, frozenset(held_out))


def _result(measured_ms: float, time: ServedTime, figure: str, without: Mapping[str, LoadFigures]) -> dict[str, Any]:
    """Return the error of a figure, and those with other times of the host; empty where they saturate."""
    held_out: dict[str, Mapping[str, Any]] = {}
    for name, figures in without.items():
        other = getattr(figures, figure.removesuffix("_ms"))
        held_out[name] = {} if other is None else compared(measured_ms, *[1e3 * other.mean] * 3)
    return compared(measured_ms, time.mean, time.interval.low, time.interval.high) | {"held_out": held_out}
