"""POST /predict/batch and POST /partition; saved predictions: list and reproduce."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api.deps import (
    ApartDep,
    BodyDep,
    CallerDep,
    DatabaseDep,
    GraphsDep,
    HolderDep,
    Id,
    Limit,
    RuntimeDep,
    SavedId,
    SettingsDep,
    Share,
    as_json,
    current,
)
from app.api.openapi import BINARY, json_route, ref
from app.bands.coverage import COVERAGE
from app.engine.versions import Stores
from app.errors import UnsupportedMedia
from app.services.models.partition import partition_network, read_partition
from app.services.operators.batches import JSON, MEDIA, BatchOptions, predict_batch
from app.services.quotes.pdf import as_pdf
from app.services.quotes.reproduce import Derived, Reproduction
from app.store import quotes
from app.store.quotes import Saved
from app.wire.kernel_workload import MOST_WATTS
from app.wire.network_form import PARTITION_EXAMPLE, PartitionRequest, PartitionResponse
from app.wire.operator_forms import BATCH_EXAMPLE, BatchResponse, OperatorBatch
from app.wire.table_files import read_apart

router = APIRouter(tags=["Prediction"])


class SavedLine(BaseModel):
    """One saved prediction; `kind` is its route: predict, compare or plan."""

    id: int = Field(description="Identifier of the saved answer, for GET /predictions/{id}")
    kind: str = Field(description="The route of the request: predict, compare or plan")
    workload: str = Field(description="kind of the workload")
    created_at: datetime = Field(description="When it was stored")


class SavedPage(BaseModel):
    """Saved predictions, newest first; `next` is the `after` of the next page."""

    items: list[SavedLine] = Field(description="Saved answers, newest first")
    next: int | None = Field(default=None, description="`after` of the next page; absent on the last")


class SavedQuery(BaseModel):
    """A page of saved predictions."""

    model_config = ConfigDict(extra="forbid")

    after: Id | None = Field(default=None, description="the `next` of the previous page")
    limit: Limit = 100


class DifferenceOut(BaseModel):
    """A changed value; null stands for a missing one."""

    path: str = Field(description="Place in the answer")
    saved: Any = Field(description="Saved value")
    now: Any = Field(description="New value")


class SavedPrediction(SavedLine):
    """A saved answer, and the result of reproducing it from the same versions.

    `unchanged` is null if it cannot be reproduced: `gone` lists what is missing. `since` lists changes since then:
    versions, figures of the GPUs, code, added or removed measurements.
    """

    request: dict[str, Any] = Field(description="The request")
    answer: dict[str, Any] = Field(description="The answer")
    versions: dict[str, Any] = Field(description="code, catalogue revision, predictor versions and GPUs at that time")
    unchanged: bool | None = Field(description="Whether the answer is reproduced exactly; null: not reproducible")
    differences: list[DifferenceOut] = Field(description="Differences between the saved and the new answer")
    gone: list[str] = Field(description="What is missing to reproduce it")
    since: list[str] = Field(description="Changes since it was saved")
    share: str = Field(default="", description="Token with which others may read it; only in the answer to its owner")
    link: str = Field(default="", description="Path of this answer with that token; only in the answer to its owner")


@router.get("/predictions", response_model_exclude_none=True)
def list_predictions(query: Annotated[SavedQuery, Query()], database: DatabaseDep, caller: CallerDep) -> SavedPage:
    """Saved predictions, page by page: the key's own and those saved without a key; admins see all."""
    with database.begin() as connection:
        rows = quotes.page(connection, caller, after=query.after, limit=query.limit + 1)
    items = [SavedLine.model_validate(row, from_attributes=True) for row in rows[: query.limit]]
    return SavedPage(items=items, next=items[-1].id if len(rows) > query.limit else None)


def _derived(
    prediction_id: SavedId,
    runtime: RuntimeDep,
    holder: HolderDep,
    graphs: GraphsDep,
    caller: CallerDep,
    share: Share = None,
) -> tuple[Saved, Derived]:
    with runtime.database.begin() as connection:
        saved = quotes.get(connection, prediction_id, caller, share)
    holder.refresh()
    settings = runtime.settings
    reproduction = Reproduction(runtime.database, Stores.of(settings), graphs, settings.max_batch_rows)
    return saved, reproduction.run(holder.engine, saved)


DerivedDep = Annotated[tuple[Saved, Derived], Depends(_derived)]
# The address may hold the token, and the answer does: no cache keeps them, and no page passes them on.
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@router.get(
    "/predictions/{prediction_id}.pdf",
    response_class=Response,
    responses={200: {"description": "One or two pages", "content": {"application/pdf": {"schema": BINARY}}}},
)
def get_prediction_pdf(request: Request, derived: DerivedDep) -> Response:
    """A saved answer, reproduced, as a report of one or two A4 pages."""
    headers = _PRIVATE | {"Content-Disposition": f'inline; filename="gpucast-{derived[0].id}.pdf"'}
    return Response(as_pdf(*derived, link=str(request.url)), media_type="application/pdf", headers=headers)


@router.get("/predictions/{prediction_id}", response_model_exclude_unset=True)
def get_prediction(derived: DerivedDep, response: Response) -> SavedPrediction:
    """A saved prediction, reproduced from the versions that answered then."""
    response.headers.update(_PRIVATE)
    return _out(*derived)


@router.delete("/predictions/{prediction_id:int}", status_code=204, response_class=Response)
def delete_prediction(prediction_id: SavedId, database: DatabaseDep, caller: CallerDep) -> None:
    """Delete a saved prediction of the caller's key; admins may delete all."""
    with database.begin() as connection:
        quotes.remove(connection, prediction_id, caller)


def _out(saved: Saved, derived: Derived) -> SavedPrediction:
    shared = {"share": saved.share, "link": f"/predictions/{saved.id}?share={saved.share}"} if saved.share else {}
    return SavedPrediction(
        id=saved.id,
        kind=saved.kind,
        workload=saved.workload,
        created_at=saved.created_at,
        request=json.loads(saved.request),
        answer=json.loads(saved.answer),
        versions=saved.versions,
        unchanged=derived.unchanged,
        differences=[DifferenceOut(**difference._asdict()) for difference in derived.differences],
        gone=derived.gone,
        since=derived.since,
        **shared,
    )


_FILES: dict[str, Any] = {media: {"schema": BINARY} for media in MEDIA if media != JSON}
_BODIES = {JSON: {"schema": ref(OperatorBatch), "example": BATCH_EXAMPLE}} | _FILES
_ANSWERS = {JSON: {"schema": ref(BatchResponse)}} | _FILES
_BATCH = (
    "Operator rows as JSON columns, an Arrow IPC stream or Parquet: columns as the fields of `operators`, with `op`"
    " and optionally `gpu`; a null where an operator has no such field. The answer comes in the same format, row for"
    " row: `latency_ms`, `low_ms`, `high_ms` and `bound`, equal to those of `operators` with that row alone. In Arrow"
    " and Parquet the schema's metadata has, under `gpucast`, the predictors that answered and their warnings."
)


class BatchQuery(BaseModel):
    """Options for all rows."""

    model_config = ConfigDict(extra="forbid")

    gpu: str | None = Field(default=None, min_length=1, max_length=200, description="GPU of rows without one")
    predictor: str = Field(default="auto", min_length=1, max_length=100, description="Name of the predictor")
    coverage: float = Field(default=COVERAGE, gt=0, lt=1, description="share of true times the interval should hold")
    power_cap_w: float | None = Field(default=None, gt=0, le=MOST_WATTS, description="Board power that is set, watts")


@router.post(
    "/predict/batch",
    description=_BATCH,
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
    response_class=Response,
    responses={200: {"description": "One row per row, in the format of the request", "content": _ANSWERS}},
)
def predict_rows(
    request: Request,
    query: Annotated[BatchQuery, Query()],
    body: BodyDep,
    holder: HolderDep,
    settings: SettingsDep,
    apart: ApartDep,
) -> Response:
    """Predict rows of operators."""
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media not in MEDIA:
        raise UnsupportedMedia(f"Rows are read as {', '.join(MEDIA)}; this is {media!r}.")
    options = BatchOptions(**query.model_dump(), max_rows=settings.max_batch_rows)
    answer = current(holder, lambda snapshot: predict_batch(snapshot, body, media, options, read_apart(apart)))
    return Response(answer, media_type=media)


_PARTITION = (
    "A model or graph over two GPUs or more, in pipeline order: the partition whose slowest stage is the"
    " fastest, within each GPU's memory, with the time to pass activations on."
)


@router.post(
    "/partition",
    description=_PARTITION,
    **json_route(PartitionRequest, PARTITION_EXAMPLE, "The best partition", PartitionResponse),
)
def plan_partition(body: BodyDep, holder: HolderDep, graphs: GraphsDep) -> Response:
    """Partition a network over GPUs."""
    request, predict_request = read_partition(body)
    return as_json(current(holder, lambda snapshot: partition_network(snapshot, request, predict_request, graphs)))
