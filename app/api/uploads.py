"""Routes of uploads: who sent which measurements, and which doubtful ones are right."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from app.api.deps import DatabaseDep, HolderDep
from app.api.listing import Limit
from app.api.measurements import RemovalQuery
from app.services.measurements.ingest import confirm
from app.store import uploads

router = APIRouter(tags=["Measurements"])


class Confirmed(BaseModel):
    """Number of confirmed rows, or with `dry_run` of those that would be."""

    rows: int = Field(description="confirmed rows")
    dry_run: bool = Field(description="nothing was changed")


class UploadOut(BaseModel):
    """One upload; `key_id` is null where no key was required, `rows` counts the rows that were new."""

    id: int = Field(description="Identifier")
    key_id: int | None = Field(description="id of the API key that sent it")
    rows: int = Field(description="rows that were new")
    created_at: datetime = Field(description="When it was stored")


class UploadPage(BaseModel):
    """Uploads, newest first."""

    items: list[UploadOut] = Field(description="Entries of this page")


@router.post("/measurements/confirm")
def confirm_measurements(
    query: Annotated[RemovalQuery, Query()], database: DatabaseDep, holder: HolderDep
) -> Confirmed:
    """Take the doubtful rows that match every filter for right; at least one is required. They are used from now on."""
    rows = confirm(database, holder.engine.catalog, query.to_filters(holder), dry_run=query.dry_run)
    holder.refresh()
    return Confirmed(rows=rows, dry_run=query.dry_run)


@router.get("/uploads")
def list_uploads(database: DatabaseDep, limit: Limit = 100) -> UploadPage:
    """The latest uploads with new rows, newest first, and whose API keys sent them."""
    with database.begin() as connection:
        return UploadPage(items=[UploadOut(**asdict(one)) for one in uploads.listed(connection, most=limit)])
