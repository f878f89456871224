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
from app.bands.uploads import Upload, confirmed
from app.engine.engine import Engine
from app.engine.exact_hits import ServedPoint, ServedPoints
from app.networks.builtin import canonical_name
from app.runtime.sized_cache import SizedCache
from app.services.models.resolve_networks import formats_of, workload_dtype
from app.services.serving.deployment import resolve_deployment, served_levels
from app.services.serving.engines import engines_on
from app.services.serving.load_figures import load_figures
from app.stacks.release import release_of
from app.steps.timing import StepQuery
from app.store.measurements import MeasurementRow, training_set_hash
from app.tables.gpus import GpuSpec
from app.wire.network_form import ModelWorkload
from app.wire.serving_form import DEFAULT_SOFTWARE, TPOT_DEFINITION, ServingWorkload

# Fields of a workload that describe a load, not the deployment.
_SIZES = ("load", "input_tokens", "output_tokens", "length_spread", "input_spread", "output_spread", "prefix_hit")
_LOAD = (*_SIZES, "kind", "method", "seed", "software", "tpot_definition")
# Nearest measured loads, and other deployments on the GPU, that teach.
NEAREST = 4
# The operators' band of a load whose steps are not predicted yet.
UNKNOWN_OPERATORS = Band(np.zeros(1), np.zeros(1))
_uploads: SizedCache[Mapping[str, Upload]] = SizedCache(100_000)


class Known(NamedTuple):
    """Measured loads of a deployment and of those nearby.

    exact    the means of the requested load, if it was measured
    bands    those of `exact`
    uploads  of `tpot` and `ttft`, what other loads teach: their levels, and ln(measured / predicted)
    factor   by which times per output token deviate for that; 1 without
    first_factor  and times to the first token
    """

    exact: ServedPoint | None = None
    bands: Served = MEASURED_LOAD
    uploads: Mapping[str, Sequence[tuple[Levels, float]]] = {}
    factor: float = 1.0
    first_factor: float = 1.0


def served_points(rows: Sequence[MeasurementRow]) -> ServedPoints:
    """Return the index of stored rows of kind `serving`."""
    points: dict[tuple[Hashable, str], list[ServedPoint]] = {}
    for row in rows:
        phases = row.phases_s or {}
        point = ServedPoint(row.workload, phases["ttft"], phases["tpot"], row.latency_s, row.upload_id)
        points.setdefault((_deployment(row.workload), row.gpu_id), []).append(point)
    return ServedPoints(points, training_set_hash(rows))


def known_of(engine: Engine, workload: ServingWorkload, spec: GpuSpec, target: int, predictor: str) -> Known:
    """Return what is measured of a deployment on a GPU of the catalogue; all of it was at the board's own power."""
    form: dict[str, Any] = msgspec.to_builtins(workload)
    own = _deployment(form)
    points = engine.served_points.by_deployment.get((own, spec.id), ())
    errors, levels = engine.error_models, served_levels(engine.gpus, target, resolve_deployment(workload))
    alike = [point for point in points if _load(point.workload) == _load(form)]
    if alike and engine.caps(spec):
        return Known()
    engine = engine.uncapped
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
    groups = [
        [_uploaded(engine, point, spec, target, predictor) for point in group] for group in (nearest, others[-NEAREST:])
    ]
    uploads = {
        name: [one for group in groups for one in confirmed([of[name] for of in group if name in of])]
        for name in ("tpot", "ttft")
    }
    shifts = [errors[name].learned(levels, UNKNOWN_OPERATORS, each).shift[0] for name, each in uploads.items()]
    return Known(None, MEASURED_LOAD, uploads, *np.exp(shifts).tolist())


def _uploaded(engine: Engine, point: ServedPoint, spec: GpuSpec, target: int, predictor: str) -> Mapping[str, Upload]:
    """Return what a measured load says of `tpot` and `ttft`; nothing of one that is predicted to saturate."""
    key = (engine.revision, engine.version_of(predictor, spec.id), predictor, spec.id, msgspec.json.encode(point))
    known = _uploads.get(key)
    if known is None:
        deployment = resolve_deployment(msgspec.convert(point.workload, ServingWorkload))
        (served,) = engines_on(StepQuery(engine, engine.gpus, [target], predictor), deployment, [spec])
        figures, levels = load_figures(deployment, served), served_levels(engine.gpus, target, deployment)
        times = {"tpot": (point.tpot_s, figures.tpot), "ttft": (point.ttft_s, figures.ttft)}
        known = {
            name: Upload(point.upload, levels, float(np.log(measured_s / predicted.mean)))
            for name, (measured_s, predicted) in times.items()
            if measured_s and predicted is not None
        }
        _uploads.put(key, known, len(key[-1]))
    return known


def _deployment(form: Mapping[str, Any]) -> Hashable:
    """Return the identity of a deployment: every field that is no load, and the stack without its version.

    Aliases of a network are one name, and its own format is the same as none.
    """
    own = {name: value for name, value in form.items() if name not in _LOAD and value is not None}
    if "name" in own:
        own["name"] = canonical_name(own["name"]) or own["name"]
    served: Any = {name: form.get(name) for name in ("config", "name", "dtype")}
    step = ModelWorkload(kind="model", mode="decode", **served)
    own["dtype"] = None if formats_of(step) else step.dtype or workload_dtype(step, None)
    return release_of(form.get("software", DEFAULT_SOFTWARE)).name, _encoded(own)


def _load(form: Mapping[str, Any]) -> bytes:
    """Return the identity of a load and of what its times are over."""
    definition = form.get("tpot_definition", TPOT_DEFINITION)
    return _encoded({"tpot_definition": definition, **{name: form.get(name) for name in _SIZES}})


def _encoded(value: Mapping[str, Any]) -> bytes:
    """Return the JSON of nested values, alike for equal ones: 1 is the 1.0 that a request brings, null is absent."""
    return msgspec.json.encode(_with_floats(value), order="sorted")


def _with_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_floats(inner) for name, inner in value.items() if inner is not None}
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
