"""List stored measurements of all kinds, page by page, and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from sqlalchemy import Connection

from app.errors import BadInput
from app.ops import OPS
from app.services.measurements.check_operators import withdraw_limits
from app.store import measurements, operator_rows
from app.store.measurements import MeasurementRow
from app.store.operator_rows import StoredOperator
from app.store.operators import KIND
from app.store.session import Database
from app.store.uploads import Filters, Page
from app.tables.ops import DTYPES, OpTable
from app.wire.operator_forms import FORMS, REQUEST_NAMES

Workload = dict[str, Any]

_APART = ("count", "eager", "stack", "backward", "burst")


def page(connection: Connection, query: Page) -> list[MeasurementRow]:
    """Return the rows of a page, of all kinds."""
    rows = measurements.page(connection, query)
    rows += [_as_row(row) for row in operator_rows.page(connection, query)]
    return sorted(rows, key=lambda row: row.id)[: query.limit]


def _as_row(row: StoredOperator) -> MeasurementRow:
    context = row.context
    kernel = {"name": context.kernel, "grid": row.grid, "block": row.block}
    return MeasurementRow(
        id=row.id,
        gpu_id=context.gpu_id,
        software=context.software,
        kind=KIND,
        name=context.op,
        workload=_workload(row),
        latency_s=row.latency_s,
        source=context.source,
        latency_std_s=row.latency_std_s,
        runs=row.runs,
        kernel={name: value for name, value in kernel.items() if value is not None} or None,
        clock_hz=row.clock_hz,
        power_w=row.power_w,
        measured_at=row.measured_at,
        upload_id=row.upload_id,
        created_at=row.created_at,
    )


def _workload(row: StoredOperator) -> Workload:
    context = row.context
    return request_form(context.op, context.dtype, dict(zip(context.fields, row.dims, strict=True)))


def operator_form(table: OpTable, row: int) -> Workload:
    """Return a table row in the API's form of an operator, without repetitions and software."""
    op = OPS[table.kind[row]].name
    held = {name: float(table.column(name)[row]) for name in OPS[table.kind[row]].fields if name not in _APART}
    return request_form(op, DTYPES[table.dtype[row]], {name: value for name, value in held.items() if not isnan(value)})


def request_form(op: str, dtype: str, held: Mapping[str, float]) -> Workload:
    """Return the operator in the API's form, without fields at their default."""
    form: Workload = {"kind": KIND, "op": op}
    for field in FORMS[op].fields if op in FORMS else ():
        dim = field.dim
        figures = [held.get(name, dim.default) for name in dim.columns]
        if not held.keys() & set(dim.columns):
            continue
        if dim.name in REQUEST_NAMES or dim.choices:
            form[field.name] = field.words[int(figures[0] or 0)]
        elif dim.write is not None:
            form[field.name] = dim.write(figures[0] or 0.0)
        else:
            numbers = [_plain(figure) for figure in figures]
            form[field.name] = numbers[0] if len(set(numbers)) == 1 else numbers
    return form | {"dtype": dtype}


def _plain(figure: float | None) -> float | int | None:
    return int(figure) if figure is not None and figure.is_integer() else figure


def remove(database: Database, filters: Filters, *, dry_run: bool = False) -> Mapping[tuple[str, str], int]:
    """Delete the stored rows that match every filter, all or none; return counts by (kind, GPU id).

    Raises BadInput without a filter. API processes notice through the revision, as for an upload. Deleted shipped rows
    are not imported again, because their file is known. With a key, and at most a GPU, limits of GPUs that the key's
    measurements raised get their earlier values.
    """
    if filters == Filters():
        raise BadInput(
            "Give at least one of gpu, kind, name, software, source, upload and key: which measurements to delete."
        )
    with database.begin(long=True) as connection:
        removed = measurements.remove(connection, filters, dry_run=dry_run)
        if filters.key is not None and filters == Filters(key=filters.key, gpu=filters.gpu) and not dry_run:
            withdraw_limits(connection, filters.key, filters.gpu)
        return removed
