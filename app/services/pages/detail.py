"""One GPU in detail: the answer of POST /predict with `detail`, its operators as points under the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from app.engine.gpu_rows import Snapshot
from app.errors import BadInput
from app.services.dispatch import predict_workload
from app.services.graphs.graph_store import Graphs
from app.wire.predict_body import Request
from app.wire.prediction_form import OperatorRow, Prediction, PredictResponse

# Lines of the tables; the JSON has all.
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
    """A sustained roofline that operators stand under: FLOP/s of a number format, B/s of the memory."""

    dtype: str
    flop_per_s: float
    dram_bytes_per_s: float


def answered(snapshot: Snapshot, request: Request, *, max_rows: int, graphs: Graphs) -> PredictResponse:
    """The API's answer; BadInput, NotFound or TooLarge say what to send instead."""
    answer = predict_workload(snapshot, request, max_rows=max_rows, graphs=graphs)
    if not isinstance(answer, PredictResponse):
        raise BadInput("Pages show kernels, operators, models and graphs; columns are for programs.")
    return answer


def slowest(one: Prediction) -> Sequence[OperatorRow]:
    """The operators that take the most time, longest first."""
    return sorted(one.operators or [], key=lambda row: -row.latency_ms)[:MOST_OPERATORS]


def roofs(rows: Sequence[OperatorRow]) -> list[Roof]:
    """The roofs of the operators, one per number format, that of the longest operator first."""
    found: dict[str, Roof] = {}
    for row in rows:
        if isinstance(row.explanation, UnsetType) or isinstance(row.dtype, UnsetType):
            continue
        at = row.explanation.roofline
        if row.flops and at.flop_per_s and at.dram_bytes_per_s:
            found.setdefault(row.dtype, Roof(row.dtype, at.flop_per_s, at.dram_bytes_per_s))
    return list(found.values())


def memory_parts(one: Prediction) -> list[tuple[str, float]]:
    """What a network keeps on a device, bytes, largest first; nothing for kernels and operators."""
    parts = one.memory.breakdown
    if isinstance(parts, UnsetType):
        return []
    named = [(label, float(getattr(parts, name))) for name, label in _MEMORY.items()]
    return sorted((part for part in named if part[1]), key=lambda part: -part[1])
