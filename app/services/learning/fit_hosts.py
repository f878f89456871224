"""Times of the hosts of serving stacks, fitted to the stored loads on served models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app.engine.engine import Engine
from app.engine.exact_hits import ServedPoint, ServedPoints
from app.engine.serving_hosts import payload_of
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import NotTrained
from app.predictors.auto.predictor import Auto
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import engines_on
from app.services.serving.host_fit import MeasuredLoad, search_host
from app.stacks.facts import HostTimes
from app.stacks.release import SHIPPED_HOSTS, Release, ServingHosts, host_name, host_times, release_of
from app.steps.timing import StepQuery
from app.tables.arrays import Floats
from app.training.fit import Trained
from app.wire.serving_form import DEFAULT_SOFTWARE, ServingWorkload

# Deployments of a stack that a fit needs, and loads that it uses at most.
LEAST_DEPLOYMENTS, _MOST_LOADS = 5, 300
HINT = (
    f"Import at least {LEAST_DEPLOYMENTS} measured deployments of one serving stack"
    " ('gpucast import' of a benchmark's results, 'gpucast measure --serving' or POST /measurements)"
)
Report = Callable[[str], None]


class FittedHosts(NamedTuple):
    """A candidate version, and why it is not to be served; None: it is."""

    trained: Trained
    reason: str | None


class _Point(NamedTuple):
    """A measured load, its GPU, and the name of its deployment."""

    gpu: str
    deployment: str
    point: ServedPoint


class _Fit(NamedTuple):
    """Times of a stack's host, and errors in log space, float64 [loads, 2]: TPOT, TTFT.

    held_out, shipped  with times fitted without the deployment of each load, and with those that ship
    """

    host: HostTimes
    held_out: Floats
    shipped: Floats
    better: bool


def fittable_stacks(points: ServedPoints) -> list[str]:
    """Return the stacks of which enough deployments were measured."""
    return [stack for stack, own in _by_stack(points).items() if _deployments(own) >= LEAST_DEPLOYMENTS]


def fit_hosts(engine: Engine, report: Report) -> FittedHosts:
    """Return times of the hosts of stacks with enough deployments: those that fit held-out ones better than shipped.

    Raises NotTrained where no stack has enough of them.
    """
    every, stacks = _by_stack(engine.served_points), fittable_stacks(engine.served_points)
    if not stacks:
        raise NotTrained(f"No serving stack has enough measured deployments. {HINT}.")
    fits = {}
    for stack in stacks:
        report(f"{stack}: preparing {len(every[stack])} loads")
        fits[stack] = _fit(engine, stack, every[stack], lambda line, stack=stack: report(f"{stack}: {line}"))  # type: ignore[misc]
    fitted = {stack: fit.host for stack, fit in fits.items() if fit.better}
    used = [point for stack in stacks for point in every[stack]]
    card = {"trained_on": _learned(used, fitted), "validation": [*_validation(fits)], "software": {}}
    return FittedHosts(Trained(payload_of(fitted), card), _reason(engine.hosts, fitted))


def _reason(served: ServingHosts, fitted: Mapping[str, HostTimes]) -> str | None:
    if fitted == served.fitted:
        return "They are the times in use." if fitted else "Of no stack are they better than those that ship."
    return None


def _by_stack(points: ServedPoints) -> dict[str, list[_Point]]:
    """Return the loads by stack, in an order that does not depend on when they were stored."""
    by_stack: dict[str, list[_Point]] = {}
    for (deployment, gpu), of in points.by_deployment.items():
        name = hashlib.sha256(repr((deployment, gpu)).encode()).hexdigest()
        for point in of:
            release = _release(point.workload)
            if release.name == release.host:  # others have no host of their own
                by_stack.setdefault(_host_of(point.workload), []).append(_Point(gpu, name, point))
    return {stack: sorted(by_stack[stack], key=_order) for stack in sorted(by_stack)}


def _host_of(workload: Mapping[str, Any]) -> str:
    """Return the `host_name` that a load tells of."""
    stack = _release(workload).host
    if host_name(stack, mixture=True) == stack:
        return stack
    return resolve_deployment(msgspec.convert(workload, ServingWorkload)).host


def _release(workload: Mapping[str, Any]) -> Release:
    return release_of(workload.get("software", DEFAULT_SOFTWARE), "decode")


def _order(point: _Point) -> tuple[str, bytes]:
    return point.deployment, msgspec.json.encode(point.point, order="sorted")


def _deployments(points: Sequence[_Point]) -> int:
    return len({point.deployment for point in points})


def _fit(engine: Engine, stack: str, points: Sequence[_Point], progress: Report) -> _Fit:
    used = points[:: -(-len(points) // _MOST_LOADS)]
    loads, shipped = [*_loads(engine, used)], host_times()[stack]
    search = search_host(loads, [shipped], progress)
    without = [host or shipped for host in search.without([point.deployment for point in used])]
    held_out = np.mean([load.error(host) for load, host in zip(loads, without, strict=True)])
    better = bool(held_out < search.errors[0].mean())
    return _Fit(search.best(), _errors(loads, without), _errors(loads, [shipped] * len(loads)), better)


def _loads(engine: Engine, points: Sequence[_Point]) -> Iterator[MeasuredLoad]:
    rows = GpuRows(Snapshot.of(engine))
    for gpu, _, point in points:
        target = rows.row(gpu, ("gpu",))
        deployment = resolve_deployment(msgspec.convert(point.workload, ServingWorkload))
        query = StepQuery(engine, rows.table(), [target], Auto.name)
        (served,) = engines_on(query, deployment, [rows.spec(target)])
        yield MeasuredLoad(deployment, served, point.ttft_s, point.tpot_s)


def _errors(loads: Sequence[MeasuredLoad], hosts: Sequence[HostTimes]) -> Floats:
    errors = [load.log_errors(host) or (np.nan, np.nan) for load, host in zip(loads, hosts, strict=True)]
    return np.array(errors)


def _learned(points: Sequence[_Point], fitted: Mapping[str, HostTimes]) -> dict[str, Any]:
    hosts = {stack: host._asdict() for stack, host in fitted.items()}
    gpus = sorted({point.gpu for point in points})
    return {"rows": len(points), "deployments": _deployments(points), "gpus": gpus, "hosts": hosts}


def _validation(fits: Mapping[str, _Fit]) -> Iterator[dict[str, Any]]:
    """Yield the errors with deployments held out, in percent, by stack and time."""
    for stack, fit in fits.items():
        for k, name in enumerate(("TPOT", "TTFT")):
            own, shipped = (100.0 * np.abs(np.expm1(errors[:, k])) for errors in (fit.held_out, fit.shipped))
            known = np.isfinite(own)
            if not known.any():
                continue
            yield {
                "split": "deployment_held_out",
                "family": f"{stack} {name}",
                "gpu": "all",
                "n": int(known.sum()),
                "mape": float(own[known].mean()),
                "median_ape": float(np.median(own[known])),
                "note": f"{np.nanmean(shipped):.1f} % with {SHIPPED_HOSTS}"
                + ("" if fit.better else "; not better, so that the stack keeps the times that ship"),
            }
