"""POST /predict/batch: many operator rows at once, in columns."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api.deps import BodyDep, HolderDep, SettingsDep, TablesDep, current
from app.api.openapi import BINARY, ref
from app.bands.coverage import COVERAGE
from app.errors import UnsupportedMedia
from app.services.operators.batches import JSON, MEDIA, BatchOptions, predict_batch
from app.wire.operator_forms import BATCH_EXAMPLE

router = APIRouter(tags=["Prediction"])

_FILES: dict[str, Any] = {media: {"schema": BINARY} for media in MEDIA if media != JSON}
_BODIES = {JSON: {"schema": ref("OperatorBatch"), "example": BATCH_EXAMPLE}} | _FILES
_ANSWERS = {JSON: {"schema": ref("BatchResponse")}} | _FILES
_DESCRIPTION = (
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


@router.post(
    "/predict/batch",
    description=_DESCRIPTION,
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
    tables: TablesDep,
) -> Response:
    """Predict rows of operators."""
    media = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media not in MEDIA:
        raise UnsupportedMedia(f"Rows are read as {', '.join(MEDIA)}; this is {media!r}.")
    options = BatchOptions(**query.model_dump(), max_rows=settings.max_batch_rows)
    answer = current(holder, lambda snapshot: predict_batch(snapshot, body, media, options, tables.read_table))
    return Response(answer, media_type=media)
