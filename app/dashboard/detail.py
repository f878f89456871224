"""The single-GPU page: POST /predict with `detail`, and its operators under the roofline."""

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


def predict(snapshot: Snapshot, request: Request, *, max_rows: int, graphs: Graphs) -> PredictResponse:
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
