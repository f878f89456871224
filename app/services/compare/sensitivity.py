"""Predict the effect of more bandwidth, clock or memory: change a GPU's data sheet field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import UNSET, structs

from app.engine.engine import untrained
from app.engine.snapshot import Snapshot
from app.services.compare.compare import Comparison
from app.tables.complete import revise, spec_to_dict
from app.tables.gpus import GpuSpec
from app.wire.graph_form import NetworkWorkload
from app.wire.job_plan_form import Choice, Sensitivity
from app.wire.prediction_form import Prediction

FACTOR = 1.1
# Fields of a GPU, and measured rates that scale with each.
FIELDS: dict[str, tuple[str, ...]] = {
    "memory_bandwidth_bytes_per_s": ("triad_bandwidth_bytes_per_s", "sustained_bandwidth_bytes_per_s"),
    "boost_clock_hz": ("base_clock_hz", "sustained_compute_flops"),
    "memory_bytes": (),
    "l2_bytes": (),
    "board_power_w": (),
    "link_bandwidth_bytes_per_s": (),
}


def sensitivities(comparison: Comparison, choice: Choice) -> list[Sensitivity]:
    """Return a step on the choice's GPU with more of each figure in its specification, with the same split."""
    spec = comparison.candidates[choice.gpu].spec
    fields = [name for name in FIELDS if getattr(spec, name) is not None]
    # The unchanged GPU gets another name too: measurements of the actual GPU do not apply to a changed one.
    specs = [
        _modified_spec(spec, "as-is", {}),
        *(_modified_spec(spec, name, dict(_scaled(spec, name))) for name in fields),
    ]
    request = comparison.predict_request
    workload: Any = request.workload
    if isinstance(workload, NetworkWorkload) and choice.parallelism is not None:
        parallelism = structs.replace(workload.parallelism, **structs.asdict(choice.parallelism))
        workload = structs.replace(workload, parallelism=parallelism)
    physics = replace(comparison, snapshot=_physics_only(comparison.snapshot))
    predictions = physics.predict(structs.replace(request, workload=workload, gpus=specs)).predictions
    return [
        _sensitivity(choice, name, predictions[0], prediction)
        for name, prediction in zip(fields, predictions[1:], strict=True)
    ]


def _physics_only(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with untrained predictors, where they can answer untrained."""
    engine = snapshot.engine
    return Snapshot.of(replace(engine, served={**engine.served, **untrained()}))


def _scaled(spec: GpuSpec, name: str) -> Iterator[tuple[str, float]]:
    for field in (name, *FIELDS[name]):
        figure = getattr(spec, field)
        if figure is not None:
            yield field, figure * FACTOR


def _modified_spec(spec: GpuSpec, suffix: str, changes: dict[str, float]) -> dict[str, Any]:
    """Return the GPU with changes, as an inline specification."""
    changed = spec_to_dict(revise(spec, changes))
    return changed | {"id": f"{spec.id}-{suffix}".replace("_", "-"), "name": f"{spec.name}, {suffix}", "aliases": []}


def _sensitivity(choice: Choice, field: str, before: Prediction, after: Prediction) -> Sensitivity:
    ratio = after.latency_ms / before.latency_ms if before.latency_ms > 0 else 1.0
    batch = None if after.largest_batch is UNSET else after.largest_batch
    return Sensitivity(choice.gpu, field, FACTOR, choice.step_ms * ratio, ratio - 1.0, after.memory.fits, batch)
