"""Route a POST /predict request to the use case of its workload's kind."""

from __future__ import annotations

from app.engine.snapshot import Snapshot
from app.runtime.cancellation import check_cancelled
from app.services.graphs.graph_store import Graphs
from app.services.kernels.predict_kernels import predict_kernel
from app.services.models.predict_networks import predict_network
from app.services.operators.operator_tables import predict_table
from app.services.operators.predict_operators import predict_operators
from app.services.serving.predict_serving import predict_serving
from app.wire.graph_form import GraphRequest
from app.wire.network_form import ModelRequest
from app.wire.operator_forms import OperatorsRequest
from app.wire.predict_body import Request, Response
from app.wire.prediction_form import PredictRequest
from app.wire.serving_form import ServingRequest


def predict_workload(
    snapshot: Snapshot, request: Request, *, max_rows: int, graphs: Graphs | None = None, advise: bool = True
) -> Response:
    """Return the answer to a request. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead.

    `graphs` holds those stored by POST /graphs, which a request may name; `advise` adds suggestions for networks that
    do not fit.
    """
    check_cancelled()
    snapshot = snapshot.under(request.power_cap_w)
    if isinstance(request, PredictRequest):
        return predict_kernel(snapshot, request)
    if isinstance(request, OperatorsRequest):
        return predict_operators(snapshot, request, max_rows=max_rows)
    if isinstance(request, ModelRequest | GraphRequest):
        return predict_network(snapshot, request, max_rows=max_rows, graphs=graphs, advise=advise)
    if isinstance(request, ServingRequest):
        return predict_serving(snapshot, request, max_rows=max_rows)
    return predict_table(snapshot, request, max_rows=max_rows)
