"""Predictions of measured loads, with the times of a stack's host as shipped, or fitted without some loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows, Snapshot
from app.services.compare.request import Candidate
from app.services.compare.served_options import cost_of
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on
from app.services.serving.figures import LoadFigures
from app.services.serving.host_fit import MeasuredLoad
from app.services.serving.predict_serving import predict_served
from app.services.serving.step_tables import TableQuery
from app.serving.stacks import HostTimes
from app.wire.serving_form import ServingPrediction, ServingRequest
from evaluation.serving.cases import Case

PREDICTOR = "auto"


class Ready(NamedTuple):
    """A case with its load on an engine."""

    case: Case
    load: MeasuredLoad


class Outcome(NamedTuple):
    """A case and its prediction with the shipped times of the host.

    energy_j  joules per generated token by the power model; None: saturated
    held_out  TTFT, TPOT and end to end in milliseconds with times fitted without its deployment, model or GPU, by the
              name of what was held out; empty where nothing was fitted, or nothing was left to fit to
    """

    case: Case
    prediction: ServingPrediction
    energy_j: float | None
    held_out: Mapping[str, tuple[float, float, float]]


def ready_cases(engine: Engine, cases: Sequence[Case]) -> list[Ready]:
    """Return the cases with their step tables."""
    snapshot = Snapshot.of(engine)
    rows, found = GpuRows(snapshot), []
    for case in cases:
        target = rows.row(case.gpu, ("gpu",))
        deployment = resolve_deployment(case.workload)
        query = TableQuery(engine, rows.table(), [target], PREDICTOR)
        (served,) = engines_on(query, deployment, [rows.spec(target)])
        told = case.measured
        found.append(Ready(case, MeasuredLoad(deployment, served, 1e-3 * told.ttft_ms, 1e-3 * told.tpot_ms)))
    return found


def outcomes(
    engine: Engine,
    ready: Sequence[Ready],
    held_out: Mapping[int, Mapping[str, HostTimes]],
    progress: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Return the predictions; `held_out`: times of the host by a case's place and what they were fitted without."""
    snapshot, found = Snapshot.of(engine), []
    for k, one in enumerate(ready):
        request = ServingRequest(gpu=one.case.gpu, workload=one.case.workload)
        rows = GpuRows(snapshot)
        target = rows.row(one.case.gpu, ("gpu",))
        spec = rows.spec(target)
        prediction = predict_served(snapshot, request, one.load.deployment, spec, one.load.engine)
        others = {name: _milliseconds(one.load.figures(host)) for name, host in held_out.get(k, {}).items()}
        cost = cost_of(snapshot, Candidate(one.case.gpu, spec, None, None), one.load.deployment, prediction.serving)
        found.append(Outcome(one.case, prediction, cost.energy_per_token_j, others))
        if k % 200 == 199:
            progress(f"{k + 1} of {len(ready)} loads")
    return found


def _milliseconds(figures: LoadFigures) -> tuple[float, float, float]:
    ttft, tpot, e2e = (
        np.nan if time is None else 1e3 * time.mean for time in (figures.ttft, figures.tpot, figures.e2e)
    )
    return ttft, tpot, e2e
