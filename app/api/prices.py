"""Routes of GPU prices."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from app.api.deps import BodyDep, DatabaseDep, HolderDep
from app.api.listing import MOST_ID, Limit, Text
from app.api.openapi import ref
from app.engine.prices import Listed, to_listing, today_utc
from app.services.compare.price_rows import PRICE_EXAMPLE, PriceReport, add_prices
from app.services.gpus import find
from app.store.prices import page

router = APIRouter(tags=["Deciding"])

_CSV_EXAMPLE = "gpu,usd_per_hour,source,date,provider,region\n" + ",".join(map(str, PRICE_EXAMPLE.values())) + "\n"
_BODIES: dict[str, Any] = {
    "application/json": {
        "schema": {"type": "array", "minItems": 1, "items": ref("PriceIn")},
        "example": [PRICE_EXAMPLE],
    },
    "text/csv": {"schema": {"type": "string"}, "example": _CSV_EXAMPLE},
}
_DESCRIPTION = (
    "A JSON list or CSV (gpu, usd_per_hour, source, date; optionally provider and region), all rows or none;"
    " the same row sent again changes nothing. For each GPU, provider and region the newest price up to today"
    " counts, and for a GPU the cheapest of these; a price in a request overrides it."
)


class PricePage(BaseModel):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[Listed] = Field(description="Entries of this page")
    next: int | None = Field(default=None, description="`after` of the next page; absent on the last")


class PriceQuery(BaseModel):
    """Prices that match every filter."""

    model_config = ConfigDict(extra="forbid")

    gpu: Text | None = Field(default=None, description="an id or any alias")
    provider: Text | None = Field(default=None, description="Cloud provider")
    region: Text | None = Field(default=None, description="Where")
    source: Text | None = Field(default=None, description="Who measured or published it")
    after: int = Field(default=0, ge=0, le=MOST_ID, description="the `next` of the previous page")
    limit: Limit = 100


@router.post(
    "/prices",
    description=_DESCRIPTION,
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
)
def post_prices(request: Request, body: BodyDep, database: DatabaseDep, holder: HolderDep) -> PriceReport:
    """Store prices, all or none."""
    holder.refresh()
    report = add_prices(database, holder.engine.catalog, body, request.headers.get("content-type"))
    holder.refresh()
    return report


@router.get("/prices", response_model_exclude_none=True)
def list_prices(query: Annotated[PriceQuery, Query()], database: DatabaseDep, holder: HolderDep) -> PricePage:
    """Stored prices, filtered, page by page in storage order."""
    filters = query.model_dump(exclude={"gpu", "after", "limit"})
    gpu_id = None if query.gpu is None else find(holder, query.gpu).id
    holder.refresh()
    with database.begin() as connection:
        rows = page(connection, after=query.after, limit=query.limit + 1, gpu_id=gpu_id, **filters)
    book, today = holder.engine.prices, today_utc()
    items = [to_listing(row, book, today) for row in rows[: query.limit]]
    return PricePage(items=items, next=items[-1].id if len(rows) > query.limit else None)
