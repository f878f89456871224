"""GET /detail: one workload on one GPU, down to its operators under the roofline (POST /predict with `detail`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import UnsetType
from starlette.responses import Response

from app.api.deps import GraphsDep, HolderDep, SettingsDep, as_json
from app.dashboard.choices import controls
from app.dashboard.routes.shell import AddressDep, command, page, refused, wants_json
from app.engine.snapshot import Snapshot
from app.errors import BadInput, GpucastError
from app.services.dispatch import predict_workload
from app.services.graphs.graph_store import Graphs
from app.wire.predict_body import Request as AnyRequest
from app.wire.predict_body import read_request
from app.wire.prediction_form import OperatorRow, Prediction, PredictResponse

# Most rows of the tables; the JSON has all.
MOST_OPERATORS = 100
_MEMORY = {
    "weights_bytes": "weights",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activations_bytes": "activations",
    "kv_cache_bytes": "KV cache",
    "workspace_bytes": "workspace",
    "reserve_bytes": "runtime reserve",
}


@dataclass(frozen=True, slots=True)
class Roof:
    """A sustained roofline of a number format: FLOP/s, and B/s of memory."""

    dtype: str
    flop_per_s: float
    dram_bytes_per_s: float


def predict(snapshot: Snapshot, request: AnyRequest, *, max_rows: int, graphs: Graphs) -> PredictResponse:
    """Return the API's answer. Raises BadInput, NotFound or TooLarge."""
    answer = predict_workload(snapshot, request, max_rows=max_rows, graphs=graphs)
    if not isinstance(answer, PredictResponse):
        raise BadInput("Pages show kernels, operators, models and graphs; use the API for columns.")
    return answer


def slowest(prediction: Prediction) -> Sequence[OperatorRow]:
    """Return the slowest operators, longest first."""
    return sorted(prediction.operators or [], key=lambda row: -row.latency_ms)[:MOST_OPERATORS]


def roofs(rows: Sequence[OperatorRow]) -> list[Roof]:
    """Return the rooflines of the operators, one per number format, starting with the longest operator's."""
    by_dtype: dict[str, Roof] = {}
    for row in rows:
        if isinstance(row.explanation, UnsetType) or isinstance(row.dtype, UnsetType):
            continue
        at = row.explanation.roofline
        if row.flops and at.flop_per_s and at.dram_bytes_per_s:
            by_dtype.setdefault(row.dtype, Roof(row.dtype, at.flop_per_s, at.dram_bytes_per_s))
    return list(by_dtype.values())


def memory_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """Return a network's memory on a device by part, bytes, largest first; nothing for kernels and operators."""
    parts = prediction.memory.breakdown
    if isinstance(parts, UnsetType):
        return []
    named = [(label, float(getattr(parts, name))) for name, label in _MEMORY.items()]
    return sorted((part for part in named if part[1]), key=lambda part: -part[1])


router = APIRouter(include_in_schema=False)


@router.get("/detail")
def show(
    request: Request, address: AddressDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep
) -> Response:
    """The roofline with the workload's operators, and time, memory and phases by part."""
    shown: dict[str, Any] = {
        "form": controls(holder.engine, address),
        "on": address.selected_gpu,
        "pairs": address.pairs,
    }
    if address.incomplete and not wants_json(request):
        return page(request, "detail.html", waits=True, **shown)
    try:
        body = address.body(gpus=address.selected_gpus(), detail=True)
        answer = predict(
            holder.snapshot,
            read_request(msgspec.json.encode(body)),
            max_rows=settings.max_batch_rows,
            graphs=graphs,
        )
        if wants_json(request):
            return as_json(answer)
        prediction = answer.predictions[0]
    except GpucastError as error:
        if wants_json(request):
            raise
        return refused(request, "detail.html", address, error, **shown)
    return page(
        request,
        "detail.html",
        question=command(request, "/predict", body),
        one=prediction,
        operators=slowest(prediction),
        most=MOST_OPERATORS,
        roofs=roofs(prediction.operators or []),
        memory=memory_parts(prediction),
        **shown,
    )
