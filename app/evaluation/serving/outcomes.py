"""Predictions of measured loads, with the times of a stack's host as shipped or fitted without a deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows, Snapshot
from app.evaluation.serving.cases import Case
from app.services.serving.deployment import Deployment, resolve_deployment
from app.services.serving.engines import Engine as ServedEngine
from app.services.serving.engines import engines_on, with_host
from app.services.serving.figures import LoadFigures
from app.services.serving.load_figures import load_figures
from app.services.serving.predict_serving import predict_served
from app.services.serving.step_tables import TableQuery
from app.serving.stacks import HostTimes
from app.wire.serving_form import ServingPrediction, ServingRequest

PREDICTOR = "auto"


class Ready(NamedTuple):
    """A case with its engine, whose host's times may be changed."""

    case: Case
    deployment: Deployment
    engine: ServedEngine

    def figures(self, host: HostTimes) -> LoadFigures:
        """Return the figures of the load with these times of the host."""
        return load_figures(self.deployment, with_host(self.engine, host))


class Outcome(NamedTuple):
    """A case and its prediction: with the shipped times of the host, and with those fitted without its deployment.

    held_out  NaN where nothing was fitted; milliseconds: TTFT, TPOT, end to end
    """

    case: Case
    prediction: ServingPrediction
    held_out: tuple[float, float, float]


def ready_cases(engine: Engine, cases: Sequence[Case]) -> list[Ready]:
    """Return the cases with their step tables."""
    snapshot = Snapshot.of(engine)
    rows, found = GpuRows(snapshot), []
    for case in cases:
        target = rows.row(case.gpu, ("gpu",))
        deployment = resolve_deployment(case.workload)
        query = TableQuery(engine, rows.table(), [target], PREDICTOR)
        found.append(Ready(case, deployment, engines_on(query, deployment, [rows.spec(target)])[0]))
    return found


def outcomes(
    engine: Engine,
    ready: Sequence[Ready],
    hosts: Mapping[str, HostTimes],
    progress: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Return the predictions; `hosts` are times of the host fitted without each deployment."""
    snapshot, found = Snapshot.of(engine), []
    for k, one in enumerate(ready):
        request = ServingRequest(gpu=one.case.gpu, workload=one.case.workload)
        rows = GpuRows(snapshot)
        target = rows.row(one.case.gpu, ("gpu",))
        prediction = predict_served(snapshot, request, one.deployment, rows.spec(target), one.engine)
        host = hosts.get(one.case.deployment)
        found.append(Outcome(one.case, prediction, _milliseconds(None if host is None else one.figures(host))))
        if k % 200 == 199:
            progress(f"{k + 1} of {len(ready)} loads")
    return found


def _milliseconds(figures: LoadFigures | None) -> tuple[float, float, float]:
    if figures is None:
        return np.nan, np.nan, np.nan
    ttft, tpot, e2e = (
        np.nan if time is None else 1e3 * time.mean for time in (figures.ttft, figures.tpot, figures.e2e)
    )
    return ttft, tpot, e2e
