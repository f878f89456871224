"""Read requests of POST /compare and POST /plan; resolve a comparison's workload, GPUs, prices and powers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite

import msgspec

from app.engine.gpu_rows import GpuRows
from app.engine.power import GIVEN
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, NotFound
from app.services.compare.figures import Rate
from app.services.compare.price_rows import MOST_USD
from app.tables.gpus import GpuSpec
from app.tables.names import normalise
from app.wire.compare_form import COMPARE_EXAMPLE, SERVED_RANKINGS, CompareRequest
from app.wire.decoding import decode
from app.wire.graph_form import GraphRequest
from app.wire.job_plan_form import PLAN_EXAMPLE, PlanRequest
from app.wire.kernel_workload import GpuRef
from app.wire.network_form import ModelRequest
from app.wire.operator_forms import OperatorsRequest, OperatorTableRequest
from app.wire.predict_body import read_request
from app.wire.prediction_form import BaseRequest, PredictRequest
from app.wire.serving_form import ServingRequest

SingleWorkloadRequest = PredictRequest | OperatorsRequest | ModelRequest | GraphRequest

# Above this the unit is wrong.
_MOST_WATTS = 1e6
_COMPARE, _PLAN = msgspec.json.Decoder(CompareRequest), msgspec.json.Decoder(PlanRequest)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU to compare: its name in the request, its specification, its price, and its power if stated."""

    ref: GpuRef
    spec: GpuSpec
    rate: Rate | None
    watts: float | None


def read_compare(body: bytes) -> CompareRequest:
    """Return the request from JSON. Raises Malformed, or BadInput that names every wrong field."""
    return decode(_COMPARE, body, example=COMPARE_EXAMPLE)


def read_plan(body: bytes) -> PlanRequest:
    """Return the request of POST /plan from JSON. Raises as `read_compare`."""
    return decode(_PLAN, body, example=PLAN_EXAMPLE)


def to_predict_request(request: CompareRequest) -> SingleWorkloadRequest | ServingRequest:
    """Return the equivalent POST /predict request. Raises BadInput that names every wrong field of the workload."""
    if request.currency != "USD":
        message = f"{request.currency[:20]!r} cannot be used: no exchange rate is known here; send prices in USD"
        raise _refused(("currency",), message)
    inner = {name: getattr(request, name) for name in ("workload", "gpus", "predictor", "coverage")}
    predict_request = read_request(msgspec.json.encode(inner))
    if isinstance(predict_request, OperatorTableRequest):
        known = "kernel, operators, model, graph or serving"
        raise _refused(("workload", "kind"), f"columns hold many workloads: send {known}")
    return predict_request


def to_single_request(request: CompareRequest) -> SingleWorkloadRequest:
    """Return `to_predict_request` of one run. Raises BadInput for a served model, and for its figures."""
    predict_request = to_predict_request(request)
    if isinstance(predict_request, ServingRequest):
        raise _refused(("workload", "kind"), "a served model is not one run: send kernel, operators, model or graph")
    if request.rank_by in SERVED_RANKINGS:
        raise _refused(("rank_by",), f"{request.rank_by} is a figure of served models: send a workload of kind serving")
    return predict_request


def resolve_candidates(
    snapshot: Snapshot, request: CompareRequest, predict_request: BaseRequest, today: date
) -> list[Candidate]:
    """Return the GPUs in request order, each once. Raises NotFound or BadInput at the wrong name or figure."""
    rows = GpuRows(snapshot)
    targets = rows.targets(predict_request)
    refs = [rows.id(target) for target in targets] if request.gpus == "all" else request.gpus
    first = {target: k for k, target in reversed([*enumerate(targets)])}
    resolved = sorted((k, refs[k], rows.spec(target)) for target, k in first.items())
    owner: dict[str, int] = {}
    for k, _, spec in resolved:
        if owner.setdefault(spec.id, k) != k:
            raise _refused(("gpus", k), f"another GPU in this request also has the id {spec.id!r}: send another id")
    specs = [spec for _, _, spec in resolved]
    prices = _by_gpu(snapshot, request.prices, "prices", specs, MOST_USD)
    watts = _by_gpu(snapshot, request.powers_w, "powers_w", specs, _MOST_WATTS)
    return [Candidate(ref, spec, _rate(snapshot, prices, spec, today), watts.get(spec.id)) for _, ref, spec in resolved]


def _rate(snapshot: Snapshot, prices: Mapping[str, float], spec: GpuSpec, today: date) -> Rate | None:
    """Return the request's price, else the stored one that applies today."""
    if spec.id in prices:
        return Rate(prices[spec.id], GIVEN)
    stored = snapshot.engine.prices.find(spec.id, today)
    return None if stored is None else Rate.of(stored, today)


def _by_gpu(
    snapshot: Snapshot, figures: Mapping[str, float], field: str, specs: Sequence[GpuSpec], most: float
) -> dict[str, float]:
    """Return figures by GPU id, keyed by any name of a GPU. Names of GPUs that are not compared are checked too."""
    names = {normalise(name): spec.id for spec in specs for name in (*spec.aliases, spec.name, spec.id)}
    by_id: dict[str, float] = {}
    for name, figure in figures.items():
        if not (isfinite(figure) and 0 <= figure <= most):
            raise _refused((field, name), f"must be between 0 and {most:,.0f}, got {figure:g}")
        try:
            gpu = names.get(normalise(name)) or snapshot.engine.catalog.resolve(name).id
        except NotFound as error:
            error.errors = (FieldError((field, name), error.detail),)
            raise
        if by_id.setdefault(gpu, figure) != figure:
            raise _refused((field, name), f"another name of {gpu} has {by_id[gpu]:g}: send only one")
    return by_id


def _refused(loc: tuple[str | int, ...], message: str) -> BadInput:
    return BadInput(f"{'.'.join(map(str, loc))}: {message}.", errors=[FieldError(loc, message)])
