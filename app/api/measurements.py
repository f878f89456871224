"""Routes of measurements: upload, list, confirm and delete, and who sent them."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pyarrow import Table
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api.access import key_id_of
from app.api.deps import (
    ApartDep,
    BodyDep,
    DatabaseDep,
    HolderDep,
    Id,
    KeyId,
    Limit,
    SettingsDep,
    Text,
    as_json,
    current,
)
from app.api.openapi import BINARY, json_answer, ref
from app.api.work_queues import LONG_BYTES, use_much
from app.config import Settings
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import BadInput, Conflict, NotFound, TooLarge
from app.formats.own import READERS, read_measurements
from app.runtime.allocator_trim import LARGE_BODY, trim_allocator
from app.services.gpus import find
from app.services.measurements.store_uploads import MOST_ROWS_TOGETHER, confirm, ingest
from app.services.measurements.stored import page, remove, row_form
from app.store import doubtful, uploads
from app.store.doubtful import DoubtfulRow
from app.store.measurements import MeasurementRow
from app.store.session import Database
from app.store.uploads import Filters, Page
from app.wire.measurement_form import MEASUREMENT_EXAMPLE, MeasurementIn, Upload, UploadReport
from app.wire.table_files import TableReader, read_apart

router = APIRouter(tags=["Measurements"])

_CSV_EXAMPLE = (
    "gpu,software,source,latency_ms,name,flops,bytes,working_set_bytes,threads_per_block,blocks,registers_per_thread,"
    "shared_memory_per_block,access_pattern,dtype,n\n"
    "titan-v,cuda-12.4,my benchmark,0.0601,saxpy,8388608,50331648,50331648,256,16384,12,0,coalesced,fp32,4194304\n"
)
_BODIES: dict[str, Any] = {
    "application/json": {
        "schema": {"type": "array", "minItems": 1, "items": ref(MeasurementIn)},
        "example": [MEASUREMENT_EXAMPLE],
    },
    "text/csv": {"schema": {"type": "string"}, "example": _CSV_EXAMPLE},
} | {media: {"schema": BINARY} for media in READERS if "parquet" in media}
_DESCRIPTION = (
    "A JSON list, or CSV or Parquet with the workload's fields as columns (`size.n` or just `n`, `kernel.grid`,"
    " `phases_ms.forward`, `load.concurrency`; an empty cell is an absent field). A column `kind` says what a row is:"
    " kernel, operator, model or serving; without it, rows of a file with a column `op` are operators, others kernels."
    " Rows whose `outcome` is not"
    " `measured` are skipped and counted. The schema metadata of a Parquet file may hold the measuring GPU's"
    " specification in JSON under `gpucast.device`: it is registered if rows name it and it is unknown."
    " All rows are stored or none; the same row sent again changes nothing."
)


class Expected(BaseModel):
    """What was expected when the row was uploaded."""

    expected_ms: float = Field(description="what `auto` predicted, milliseconds")


class MeasurementOut(BaseModel):
    """One stored measurement; figures that were not sent are absent.

    A row with `doubtful` is used for nothing until an admin confirms it.
    """

    id: str = Field(description="Identifier")
    gpu: str = Field(description="Id of the GPU")
    software: str = Field(
        description="Software stack (pytorch-2.1, vllm-0.24 ...); decides whether the host launches each operator"
    )
    workload: dict[str, Any] = Field(description="What runs: a kernel, operators, a model or a graph")
    latency_ms: float = Field(description="Measured time, milliseconds")
    source: str = Field(description="Who measured or published it")
    latency_std_ms: float | None = Field(
        default=None, description="Standard deviation of the measured time, milliseconds"
    )
    runs: int | None = Field(default=None, description="Repetitions measured")
    phases_ms: dict[str, float] | None = Field(default=None, description="The step by its phases, milliseconds")
    serving: dict[str, float] | None = Field(
        default=None, description="ttft_ms and tpot_ms of a load on a served model"
    )
    kernel: dict[str, Any] | None = Field(default=None, description="Device function that ran")
    clock_hz: float | None = Field(default=None, description="Clock of the SMs while measuring, Hz")
    power_w: float | None = Field(default=None, description="Power of one device, watts")
    measured_at: datetime | None = Field(default=None, description="When it was measured")
    upload_id: int | None = Field(default=None, description="the upload that brought the row; imports have none")
    doubtful: Expected | None = Field(default=None, description="present where the time is far from what was expected")
    created_at: datetime | None = Field(default=None, description="When it was stored")


class MeasurementPage(BaseModel):
    """One page; `next` is the cursor of the next page, absent on the last."""

    items: list[MeasurementOut] = Field(description="Entries of this page")
    next: str | None = Field(default=None, description="`after` of the next page; absent on the last")


@router.post(
    "/measurements",
    description=_DESCRIPTION,
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
    response_class=Response,
    responses={200: json_answer("What was stored", ref(UploadReport))},
)
def store_measurements(
    request: Request,
    body: BodyDep,
    database: DatabaseDep,
    holder: HolderDep,
    settings: SettingsDep,
    apart: ApartDep,
    dry_run: Annotated[bool, Query(description="Check everything and store nothing.")] = False,
) -> Response:
    """Store rows, all or none."""
    media, most = request.headers.get("content-type"), settings.max_batch_rows
    report, revision = _stored(
        request,
        read_measurements(body, media, max_rows=most, read_table=partial(_read_table, read_apart(apart))),
        (database, holder, settings),
        dry_run=dry_run,
    )
    if len(body) >= LARGE_BODY:
        trim_allocator()  # before the new rows are read, which need it
    holder.refresh(revision)
    if report.drift is not None and not dry_run:
        request.app.metrics.drifted(report.drift.median_ape, report.drift.inside_interval)
    return as_json(report)


def _read_table(read: TableReader, body: bytes, form: str, max_rows: int) -> Table:
    """Return the table of a file; a small one that has many rows is read in its turn of the large ones."""
    if len(body) > LONG_BYTES:
        return read(body, form, max_rows)
    try:
        return read(body, form, min(MOST_ROWS_TOGETHER, max_rows))
    except TooLarge:
        use_much()
        return read(body, form, max_rows)


def _stored(
    request: Request, upload: Upload, on: tuple[Database, SnapshotHolder, Settings], *, dry_run: bool
) -> tuple[UploadReport, int | None]:
    """Store an upload, which is free afterwards. Returns what `ingest` does."""
    database, holder, settings = on
    try:
        return current(
            holder,
            lambda snapshot: ingest(
                database,
                snapshot.engine,
                upload,
                doubtful_factor=settings.doubtful_factor,
                key_id=key_id_of(request),
                dry_run=dry_run,
                announce=holder.add,
            ),
            retry_on=(BadInput, Conflict, NotFound),
        )
    finally:
        upload.release()


class MeasurementFilters(BaseModel):
    """Measurements that match every filter."""

    model_config = ConfigDict(extra="forbid")

    gpu: Text | None = Field(default=None, description="an id or any alias")
    kind: Literal["kernel", "operator", "model", "serving"] | None = Field(
        default=None, description="Kind of the workload"
    )
    name: Text | None = Field(default=None, description="Name of the kernel or network")
    software: Text | None = Field(default=None, description="Software stack, as it was sent")
    source: Text | None = Field(default=None, description="Who measured or published it")
    upload: Id | None = Field(default=None, description="id of the upload that brought the rows")
    key: KeyId | None = Field(default=None, description="id of the API key that sent the rows")

    def to_filters(self, holder: SnapshotHolder) -> Filters:
        """Return the store's filters. Raises NotFound for an unknown GPU."""
        gpu = None if self.gpu is None else find(holder, self.gpu).id
        given = self.model_dump(include={item.name for item in fields(Filters)})
        return Filters(**given | {"gpu": gpu})


class MeasurementQuery(MeasurementFilters):
    """Filters, start and length of a listing."""

    after: Annotated[str, Field(pattern="^([0-9a-f]{32}|[0-9a-f]{64})$")] | None = Field(
        default=None, description="the `next` of the previous page"
    )
    limit: Limit = 100
    doubtful: bool | None = Field(default=None, description="only doubtful rows, or only others (default: all)")


@router.get("/measurements", response_model_exclude_none=True)
def list_measurements(
    query: Annotated[MeasurementQuery, Query()], database: DatabaseDep, holder: HolderDep
) -> MeasurementPage:
    """Stored measurements, filtered, page by page in the order of their ids."""
    filters = Page(**asdict(query.to_filters(holder)), after=query.after, limit=query.limit + 1)
    with database.begin(long=True) as connection:
        items = [] if query.doubtful else [_out(row) for row in page(connection, filters)]
        items += [] if query.doubtful is False else [_doubtful(row) for row in doubtful.page(connection, filters)]
    items.sort(key=lambda item: item.id)
    more = len(items) > query.limit
    items = items[: query.limit]
    return MeasurementPage(items=items, next=items[-1].id if more else None)


class RemovalQuery(MeasurementFilters):
    """Measurements to delete; at least one filter is required."""

    dry_run: bool = Field(default=False, description="Count the rows, and delete nothing.")


class RemovedOut(BaseModel):
    """Rows of one kind on one GPU."""

    kind: str = Field(description="kernel, operator or model")
    gpu: str = Field(description="Id of the GPU")
    rows: int = Field(description="Rows")


class RemovalReport(BaseModel):
    """Deleted rows, or with `dry_run` rows that would be deleted."""

    rows: int = Field(description="Rows")
    removed: list[RemovedOut] = Field(description="the rows by kind and GPU")
    dry_run: bool = Field(description="Whether this was a dry run")


@router.delete("/measurements")
def delete_measurements(
    query: Annotated[RemovalQuery, Query()], database: DatabaseDep, holder: HolderDep
) -> RemovalReport:
    """Delete the rows that match every filter; at least one is required. Later answers do not use them.

    Trained versions keep what they learned from them until a retraining. With a `key`, and at most a `gpu`, limits of
    GPUs that the key's measurements raised get their earlier values.
    """
    counts = remove(database, query.to_filters(holder), dry_run=query.dry_run)
    holder.refresh()
    removed = [RemovedOut(kind=kind, gpu=gpu, rows=rows) for (kind, gpu), rows in counts.items()]
    return RemovalReport(rows=sum(counts.values()), removed=removed, dry_run=query.dry_run)


def _doubtful(row: DoubtfulRow) -> MeasurementOut:
    about: dict[str, Any] = {"id": row.id, "upload_id": row.upload_id, "created_at": row.created_at}
    return MeasurementOut(**row.body, **about, doubtful=Expected(expected_ms=_ms(row.expected_s)))


def _out(row: MeasurementRow) -> MeasurementOut:
    return MeasurementOut(id=row.id, **row_form(row, _ms), upload_id=row.upload_id, created_at=row.created_at)


def _ms(seconds: float) -> float:
    """Return milliseconds as they were sent: conversion via seconds loses the last digits."""
    return float(f"{seconds * 1e3:.14g}")


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
