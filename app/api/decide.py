"""POST /plan, POST /compare, prices, and the Kubernetes scheduler extender: which GPUs to take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api.access import key_id_of
from app.api.deps import (
    MOST_ID,
    BodyDep,
    CallerDep,
    DatabaseDep,
    GraphsDep,
    HolderDep,
    KeyId,
    Limit,
    RuntimeDep,
    Saving,
    SettingsDep,
    Text,
    as_json,
    current,
)
from app.api.openapi import json_answer, json_body, json_route, ref
from app.config import Settings
from app.engine.prices import Listed, to_listing, today_utc
from app.engine.snapshot import Snapshot
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import BadInput, FieldError, NotFound
from app.services.compare.compare import compare
from app.services.compare.job_plan import answer_plan
from app.services.compare.price_rows import PRICE_EXAMPLE, PriceIn, PriceReport, add_prices
from app.services.compare.request import read_compare, read_plan
from app.services.compare.served_compare import answer_compare
from app.services.gpus import find
from app.services.graphs.graph_store import Graphs
from app.services.quotes.reproduce import SavableAnswer, SavableRequest
from app.services.scheduling.extender import (
    EXTENDER_EXAMPLE,
    Compare,
    FilterResult,
    HostPriority,
    filter_pod_nodes,
    read_extender_args,
    score_nodes,
)
from app.store.gpus import price_page, remove_price, remove_prices
from app.wire.compare_form import COMPARE_EXAMPLE, CompareRequest, CompareResponse, PriceTerm, ServingCompareResponse
from app.wire.job_plan_form import PLAN_EXAMPLE, PlanRequest, PlanResponse, ServingPlanResponse

router = APIRouter(tags=["Deciding"])

_PLAN = (
    "The cheapest type and count of GPU that meets a deadline, a budget or a throughput with a stated probability; the"
    " time limit to request from a scheduler; which of two choices is likely faster; and the effect of more bandwidth,"
    " clock or memory."
)


@router.post(
    "/plan",
    description=_PLAN,
    **json_route(PlanRequest, PLAN_EXAMPLE, "The choices in order", PlanResponse, ServingPlanResponse),
)
def plan_job(body: BodyDep, holder: HolderDep, graphs: GraphsDep, runtime: RuntimeDep, caller: CallerDep) -> Response:
    """Plan a job."""
    request = read_plan(body)
    answer = partial(answer_plan, request=request, max_rows=runtime.settings.max_batch_rows, graphs=graphs)
    return _answered(holder, Saving("plan", runtime, caller), request, answer)


_COMPARE = (
    "A workload on many GPUs, ranked by latency, throughput, cost or energy, with intervals, the Pareto set, and which"
    " GPUs are statistically tied. Prices come from the request, from POST /prices, or from the list that ships."
)


@router.post(
    "/compare",
    description=_COMPARE,
    **json_route(CompareRequest, COMPARE_EXAMPLE, "The GPUs in ranked order", CompareResponse, ServingCompareResponse),
)
def compare_gpus(
    body: BodyDep, holder: HolderDep, graphs: GraphsDep, runtime: RuntimeDep, caller: CallerDep
) -> Response:
    """Compare GPUs on a workload."""
    request = read_compare(body)
    answer = partial(answer_compare, request=request, max_rows=runtime.settings.max_batch_rows, graphs=graphs)
    return _answered(holder, Saving("compare", runtime, caller), request, answer)


def _answered(
    holder: SnapshotHolder, saving: Saving, request: SavableRequest, answer: Callable[[Snapshot], SavableAnswer]
) -> Response:
    """Return the answer of the current snapshot, which is saved if the request says so."""
    return as_json(current(holder, lambda snapshot: saving.saved(snapshot, request, answer(snapshot))))


_CSV_EXAMPLE = ",".join(PRICE_EXAMPLE) + "\n" + ",".join(map(str, PRICE_EXAMPLE.values())) + "\n"
_BODIES: dict[str, Any] = {
    "application/json": {
        "schema": {"type": "array", "minItems": 1, "items": ref(PriceIn)},
        "example": [PRICE_EXAMPLE],
    },
    "text/csv": {"schema": {"type": "string"}, "example": _CSV_EXAMPLE},
}
_PRICES = (
    "A JSON list or CSV (gpu, usd_per_hour, source, date; optionally provider, region, term and devices), all rows or"
    " none; the same row sent again changes nothing. For each GPU, provider, region and term the newest price up to"
    " today counts, and for a GPU the cheapest of these that are at most 90 days old, else of all; list prices that"
    " ship only count where there are none. A price in a request overrides it."
)


class PricePage(BaseModel):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[Listed] = Field(description="Entries of this page")
    next: int | None = Field(default=None, description="`after` of the next page; absent on the last")


class PriceFilters(BaseModel):
    """Prices that match every filter."""

    model_config = ConfigDict(extra="forbid")

    gpu: Text | None = Field(default=None, description="an id or any alias")
    provider: Text | None = Field(default=None, description="Cloud provider")
    region: Text | None = Field(default=None, description="Where")
    source: Text | None = Field(default=None, description="Who measured or published it")
    term: PriceTerm | None = Field(default=None, description="How it is rented")
    key: KeyId | None = Field(default=None, description="id of the API key that sent the prices")

    def to_filters(self, holder: SnapshotHolder) -> dict[str, str | int | None]:
        """Return the store's filters. Raises NotFound for an unknown GPU."""
        gpu_id = None if self.gpu is None else find(holder, self.gpu).id
        given = self.model_dump(include={"provider", "region", "source", "term"})
        return {**given, "gpu_id": gpu_id, "key_id": self.key}


class PriceQuery(PriceFilters):
    """Filters, start and length of a listing."""

    after: int = Field(default=0, ge=0, le=MOST_ID, description="the `next` of the previous page")
    limit: Limit = 100


@router.post(
    "/prices",
    description=_PRICES,
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
def store_prices(request: Request, body: BodyDep, database: DatabaseDep, holder: HolderDep) -> PriceReport:
    """Store prices, all or none."""
    holder.refresh()
    sent_as = request.headers.get("content-type")
    report = add_prices(database, holder.engine.catalog, body, sent_as, key_id_of(request))
    holder.refresh()
    return report


@router.get("/prices", response_model_exclude_none=True)
def list_prices(query: Annotated[PriceQuery, Query()], database: DatabaseDep, holder: HolderDep) -> PricePage:
    """Stored prices, filtered, page by page in storage order."""
    filters = query.to_filters(holder)
    holder.refresh()
    with database.begin() as connection:
        rows = price_page(connection, filters, after=query.after, limit=query.limit + 1)
    book, today = holder.engine.prices, today_utc()
    items = [to_listing(row, book, today) for row in rows[: query.limit]]
    return PricePage(items=items, next=items[-1].id if len(rows) > query.limit else None)


_QUESTION = json_body({"type": "object", "description": "ExtenderArgs of kube-scheduler/extender/v1"}, EXTENDER_EXAMPLE)
_SCORES = {"type": "array", "items": ref(HostPriority)}


@router.post(
    "/scheduler/filter",
    openapi_extra=_QUESTION,
    response_class=Response,
    responses={200: json_answer("The nodes that can run the pod", ref(FilterResult))},
)
def filter_nodes(body: BodyDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep) -> Response:
    """Return the nodes with a GPU that can run a pod's workload, within its memory and deadline."""
    question, compare_on = read_extender_args(body), _compare_with(graphs, settings)
    return as_json(current(holder, lambda snapshot: filter_pod_nodes(question, snapshot, compare_on)))


@router.post(
    "/scheduler/prioritize",
    openapi_extra=_QUESTION,
    response_class=Response,
    responses={200: json_answer("Every node's score, 0 to 10", _SCORES)},
)
def prioritize_nodes(body: BodyDep, holder: HolderDep, graphs: GraphsDep, settings: SettingsDep) -> Response:
    """Return a score of each node's GPU for a pod's workload."""
    question, compare_on = read_extender_args(body), _compare_with(graphs, settings)
    return as_json(current(holder, lambda snapshot: score_nodes(question, snapshot, compare_on)))


def _compare_with(graphs: Graphs, settings: Settings) -> Compare:
    def run(snapshot: Snapshot, request: CompareRequest) -> CompareResponse:
        return compare(snapshot, request, max_rows=settings.max_batch_rows, graphs=graphs)

    return run


class PriceRemovalQuery(PriceFilters):
    """Prices to delete; at least one filter is required."""

    dry_run: bool = Field(default=False, description="Count the prices, and delete none.")


class PriceRemoval(BaseModel):
    """Deleted prices, or with `dry_run` prices that would be deleted."""

    prices: int = Field(description="Number of prices")
    dry_run: bool = Field(description="Whether this was a dry run")


@router.delete("/prices")
def delete_prices(
    query: Annotated[PriceRemovalQuery, Query()], database: DatabaseDep, holder: HolderDep
) -> PriceRemoval:
    """Delete the prices that match every filter; at least one is required. Those that ship stay."""
    filters = query.to_filters(holder)
    if all(value is None for value in filters.values()):
        message = "give at least one filter: gpu, provider, region, source, term or key"
        raise BadInput(f"No prices are named: {message}.", errors=[FieldError(("query",), message)])
    with database.begin() as connection:
        removed = remove_prices(connection, filters, dry_run=query.dry_run)
    holder.refresh()
    return PriceRemoval(prices=removed, dry_run=query.dry_run)


@router.delete("/prices/{price_id}", status_code=204)
def delete_price(
    price_id: Annotated[int, Path(ge=1, le=MOST_ID, description="Identifier of the price")],
    caller: CallerDep,
    database: DatabaseDep,
    holder: HolderDep,
) -> None:
    """Delete a price that the caller's key sent, or one that it succeeds; an admin any but those that ship (409)."""
    with database.begin() as connection:
        removed = remove_price(connection, price_id, caller)
    if not removed:
        raise NotFound(f"No price of yours has the id {price_id}.")
    holder.refresh()
