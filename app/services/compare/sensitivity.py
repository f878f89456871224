"""What more bandwidth, clock or memory would bring: a GPU's datasheet changed field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import UNSET, structs

from app.engine.engine import untrained
from app.engine.gpu_rows import Snapshot
from app.services.compare.compare import Comparing
from app.tables.complete import revise, spec_to_dict
from app.tables.gpus import GpuSpec
from app.wire.job_plan_form import Choice, Sensitivity
from app.wire.network_form import NetworkWorkload
from app.wire.prediction_form import Prediction

FACTOR = 1.1
# Fields of a GPU, and what is changed with each: rates that were measured follow the figure that they are a share of.
FIELDS: dict[str, tuple[str, ...]] = {
    "memory_bandwidth_bytes_per_s": ("triad_bandwidth_bytes_per_s", "sustained_bandwidth_bytes_per_s"),
    "boost_clock_hz": ("base_clock_hz", "sustained_compute_flops"),
    "memory_bytes": (),
    "l2_bytes": (),
    "board_power_w": (),
    "link_bandwidth_bytes_per_s": (),
}


def sensitivities(comparing: Comparing, choice: Choice) -> list[Sensitivity]:
    """A step on the choice's GPU with more of each figure that its specification has, split in the same way."""
    spec = comparing.entered[choice.gpu].spec
    fields = [name for name in FIELDS if getattr(spec, name) is not None]
    # As it is, too, but not under its own name: measurements of it tell nothing of a changed one.
    guests = [_guest(spec, "as-is", {}), *(_guest(spec, name, dict(_more(spec, name))) for name in fields)]
    asked = comparing.asked
    workload: Any = asked.workload
    if isinstance(workload, NetworkWorkload) and choice.parallelism is not None:
        parallelism = structs.replace(workload.parallelism, **structs.asdict(choice.parallelism))
        workload = structs.replace(workload, parallelism=parallelism)
    physics = replace(comparing, snapshot=_physics(comparing.snapshot))
    found = physics.predicted(structs.replace(asked, workload=workload, gpus=guests)).predictions
    return [_sensitivity(choice, name, found[0], one) for name, one in zip(fields, found[1:], strict=True)]


def _physics(snapshot: Snapshot) -> Snapshot:
    """Predictors as they are before any training, where they answer so."""
    engine = snapshot.engine
    return Snapshot.of(replace(engine, served={**engine.served, **untrained()}))


def _more(spec: GpuSpec, name: str) -> Iterator[tuple[str, float]]:
    for field in (name, *FIELDS[name]):
        figure = getattr(spec, field)
        if figure is not None:
            yield field, figure * FACTOR


def _guest(spec: GpuSpec, words: str, changes: dict[str, float]) -> dict[str, Any]:
    """The GPU with changes, as an inline specification."""
    changed = spec_to_dict(revise(spec, changes))
    return changed | {"id": f"{spec.id}-{words}".replace("_", "-"), "name": f"{spec.name}, {words}", "aliases": []}


def _sensitivity(choice: Choice, field: str, before: Prediction, after: Prediction) -> Sensitivity:
    ratio = after.latency_ms / before.latency_ms if before.latency_ms > 0 else 1.0
    batch = None if after.largest_batch is UNSET else after.largest_batch
    return Sensitivity(choice.gpu, field, FACTOR, choice.step_ms * ratio, ratio - 1.0, after.memory.fits, batch)
