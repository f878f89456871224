"""The scaling page: throughput over devices and over batch sizes, each point a POST /predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.gpu_rows import Snapshot
from app.errors import BadInput, FieldError
from app.services.models.scaling import Point, scaling_curves
from app.wire.network_form import ModelRequest
from app.wire.predict_body import Request

# Limits for a readable chart, and for answers within a second.
MOST_GPUS, MOST_SIZES = 6, 10
DEVICES, BATCHES = "1,2,4,8,16", "1,2,4,8,16,32,64"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Points over devices at the requested batch, and over batch sizes on one device."""

    devices: Sequence[Point]
    batches: Sequence[Point]


def scaling(
    snapshot: Snapshot, request: Request, *, devices: str, batches: str, strong: bool, max_rows: int
) -> Scaling:
    """Return both curves of a network. Raises BadInput for other workloads and invalid lists.

    `strong` splits the requested batch over the devices instead of giving it to each.
    """
    if not isinstance(request, ModelRequest):
        message = "only models by name or configuration have scaling curves"
        raise BadInput(message, errors=[FieldError(("workload",), message)])
    counts, sizes = sizes_of("devices", devices), sizes_of("batches", batches)
    batch = int(request.workload.batch)
    over_devices = scaling_curves(snapshot, request, devices=counts, batches=[batch], strong=strong, max_rows=max_rows)
    return Scaling(over_devices, scaling_curves(snapshot, request, devices=[1], batches=sizes, max_rows=max_rows))


def sizes_of(name: str, text: str) -> list[int]:
    """Return the distinct integers of a comma-separated list, sorted."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    good = all(part.isascii() and part.isdigit() and 1 <= len(part) < 8 and int(part) for part in parts)
    if not parts or not good or len(parts) > MOST_SIZES:
        message = f"expected one to {MOST_SIZES} comma-separated whole numbers, not {text[:60]!r}"
        raise BadInput(f"{name}: {message}", errors=[FieldError((name,), message)])
    return sorted({int(part) for part in parts})
