"""Measured loads on served models: the same load answers itself, others of the same deployment shift its steps.

A deployment is a model on a GPU type with its formats, stack, parallelism and settings; the load is not part of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app.bands.band import MEASURED_LOAD, Band, Served
from app.bands.error_model import Levels
from app.coefficients import Coefficients
from app.engine.engine import Engine
from app.engine.exact_hits import ServedPoint, ServedPoints
from app.networks.builtin import canonical_name
from app.runtime.sized_cache import SizedCache
from app.services.serving.deployment import resolve_deployment, served_dtype, served_levels
from app.services.serving.engines import engines_on
from app.services.serving.load_figures import load_figures
from app.stacks.release import release_of
from app.steps.timing import StepQuery
from app.store.measurements import MeasurementRow, training_set_hash
from app.tables.gpus import GpuSpec
from app.wire.serving_form import DEFAULT_SOFTWARE, ServingWorkload

_FITTED = Coefficients("serving")

# Fields of a workload that describe a load, not the deployment.
_LOAD = ("kind", "load", "input_tokens", "output_tokens", "length_spread", "prefix_hit", "method", "seed", "software")
# Nearest measured loads, and other deployments on the GPU, that teach.
NEAREST = 4
# A greater shift needs a second upload that agrees with it.
_UNCONFIRMED, _AGREEING = _FITTED.number("unconfirmed_shift"), _FITTED.number("agreeing_shift")
_shifts: SizedCache[tuple[Levels, float]] = SizedCache(100_000)


class Known(NamedTuple):
    """Measured loads of a deployment and of those nearby.

    exact    the means of the requested load, if it was measured
    bands    those of `exact`
    uploads  ln(measured / predicted) of the time per output token of other loads, with their levels
    factor   by which times per output token deviate for that; 1 without
    """

    exact: ServedPoint | None = None
    bands: Served = MEASURED_LOAD
    uploads: Sequence[tuple[Levels, float]] = ()
    factor: float = 1.0


def served_points(rows: Sequence[MeasurementRow], last: ServedPoints | None) -> ServedPoints:
    """Return the index of stored rows of kind `serving`; `last` if the rows are the same."""
    fingerprint = training_set_hash(rows)
    if last is not None and last.fingerprint == fingerprint:
        return last
    points: dict[tuple[Hashable, str], list[ServedPoint]] = {}
    for row in rows:
        phases = row.phases_s or {}
        point = ServedPoint(row.workload, phases["ttft"], phases["tpot"], row.latency_s, row.upload_id)
        points.setdefault((_deployment(row.workload), row.gpu_id), []).append(point)
    return ServedPoints(points, fingerprint)


def known_of(engine: Engine, workload: ServingWorkload, spec: GpuSpec, target: int, predictor: str) -> Known:
    """Return what is measured of a deployment on a GPU of the catalogue."""
    form: dict[str, Any] = msgspec.to_builtins(workload)
    own = _deployment(form)
    points = engine.served_points.by_deployment.get((own, spec.id), ())
    errors, levels = engine.error_models, served_levels(engine.gpus, target, resolve_deployment(workload))
    alike = [point for point in points if _load(point.workload) == _load(form)]
    if alike:
        of_version = [point for point in alike if point.workload.get("software") == form["software"]]
        means = np.mean([point.means for point in of_version or alike], axis=0).tolist()
        bands = MEASURED_LOAD
        if not of_version:
            bands = Served(
                *(errors[name].between_versions(of) for name, of in zip(("tpot", "ttft"), bands, strict=True))
            )
        return Known(ServedPoint(form, *means), bands)
    nearest = sorted(points, key=lambda point: distance(point.workload, form))[:NEAREST]
    others = [of[-1] for (one, gpu), of in engine.served_points.by_deployment.items() if gpu == spec.id and one != own]
    uploads = list[tuple[Levels, float]]()
    for group in (nearest, others[-NEAREST:]):
        shifts = [(point.upload, _shift(engine, point, spec, target, predictor)) for point in group]
        uploads += confirmed([(upload, levels, error) for upload, (levels, error) in shifts])
    return Known(
        uploads=uploads, factor=float(np.exp(errors["tpot"].learned(levels, Band.symmetric(0.0), uploads).shift))
    )


def confirmed(errors: Sequence[tuple[int | None, Levels, float]]) -> list[tuple[Levels, float]]:
    """Return the errors that count, each with its upload: those of imports, small ones, and those that two agree on."""
    return [
        (levels, error)
        for upload, levels, error in errors
        if upload is None
        or abs(error) <= _UNCONFIRMED
        or any(other != upload and abs(error - agreeing) <= _AGREEING for other, _, agreeing in errors)
    ]


def _shift(engine: Engine, point: ServedPoint, spec: GpuSpec, target: int, predictor: str) -> tuple[Levels, float]:
    """Return a measured load's levels, and ln(measured / predicted) of its time per output token; 0 if it saturates."""
    key = (engine.revision, engine.version_of(predictor, spec.id), predictor, spec.id, msgspec.json.encode(point))
    known = _shifts.get(key)
    if known is None:
        workload = msgspec.convert(point.workload, ServingWorkload)
        deployment = resolve_deployment(workload)
        (served,) = engines_on(StepQuery(engine, engine.gpus, [target], predictor), deployment, [spec])
        figures = load_figures(deployment, served)
        error = 0.0 if figures.tpot is None or not point.tpot_s else float(np.log(point.tpot_s / figures.tpot.mean))
        known = served_levels(engine.gpus, target, deployment), error
        _shifts.put(key, known, len(key[-1]))
    return known


def _deployment(form: Mapping[str, Any]) -> Hashable:
    """Return the identity of a deployment: every field that is no load, and the stack without its version.

    Aliases of a network are one name, and its own format is the same as none.
    """
    own = {name: value for name, value in form.items() if name not in _LOAD and value is not None}
    if "name" in own:
        own["name"] = canonical_name(own["name"]) or own["name"]
    own["dtype"] = served_dtype(form.get("config"), form.get("name"), form.get("dtype"))
    return release_of(form.get("software", DEFAULT_SOFTWARE)).name, _encoded(own)


def _load(form: Mapping[str, Any]) -> bytes:
    names = ("load", "input_tokens", "output_tokens", "length_spread", "prefix_hit")
    return _encoded({name: form.get(name) for name in names})


def _encoded(value: Mapping[str, Any]) -> bytes:
    """Return the JSON of nested values, alike for equal ones: a default of 1 is the 1.0 that a request brings."""
    return msgspec.json.encode(_with_floats(value), order="sorted")


def _with_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_floats(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_floats(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return how far two loads are apart, in log space."""
    sizes = ("input_tokens", "output_tokens")
    apart = sum(abs(np.log((one.get(name) or 1.0) / (other.get(name) or 1.0))) for name in sizes)
    for name in ("concurrency", "rate_per_s", "burst"):
        pair = one["load"].get(name), other["load"].get(name)
        apart += 3.0 if (pair[0] is None) != (pair[1] is None) else abs(np.log((pair[0] or 1.0) / (pair[1] or 1.0)))
    return float(apart)
