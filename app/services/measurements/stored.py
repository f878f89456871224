"""Stored measurements of all kinds: listed page by page, deleted, and ConvNets among them as training tables.

A model given by name becomes a row of `network` for each pass that was timed. Training's forward pass is only learned
as part of its step: it takes longer than inference's, because batch normalisation and saved tensors cost time. Where
several devices exchange gradients during backward, backward and update count as one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isnan
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.engine.measurement_tables import to_runs
from app.errors import BadInput
from app.ops import OPS
from app.ops.network import BACKWARD, BACKWARD_UPDATE, FORWARD, NETWORK, STEP, UPDATE
from app.services.measurements.check_operators import withdraw_limits
from app.services.models.predict_networks import to_workload
from app.services.models.resolve_networks import resolve_network
from app.services.models.whole_networks import network_figures, network_row
from app.steps.networks import forward_rows
from app.store import measurements, operator_rows
from app.store.measurements import MeasurementRow
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from app.store.operator_rows import StoredOperator
from app.store.operators import KIND
from app.store.session import Database
from app.store.uploads import Filters, Page
from app.tables.arrays import Bytes
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.tables.ops import DTYPES, OpTable
from app.wire.measurement_form import MeasuredModel
from app.wire.operator_forms import FORMS, REQUEST_NAMES

Workload = dict[str, Any]

_APART = ("count", "eager", "stack", "backward", "burst")


def page(connection: Connection, query: Page) -> list[MeasurementRow]:
    """Return the rows of a page, of all kinds."""
    rows = measurements.page(connection, query)
    rows += [_as_row(row) for row in operator_rows.page(connection, query)]
    return sorted(rows, key=lambda row: row.id)[: query.limit]


def _as_row(row: StoredOperator) -> MeasurementRow:
    return operator_row(
        row.context,
        row.dims,
        (row.grid, row.block),
        id=row.id,
        latency_s=row.latency_s,
        latency_std_s=row.latency_std_s,
        runs=row.runs,
        clock_hz=row.clock_hz,
        power_w=row.power_w,
        measured_at=row.measured_at,
        upload_id=row.upload_id,
        created_at=row.created_at,
    )


def operator_row(context: Context, dims: Iterable[float], launch: tuple[Any, Any], **figures: Any) -> MeasurementRow:
    """Return an operator's row: its dimensions, its kernel's grid and block (None: unknown), and further `figures`."""
    kernel = {"name": context.kernel, "grid": launch[0], "block": launch[1]}
    return MeasurementRow(
        gpu_id=context.gpu_id,
        software=context.software,
        kind=KIND,
        name=context.op,
        workload=request_form(context.op, context.dtype, dict(zip(context.fields, dims, strict=True))),
        source=context.source,
        kernel={name: value for name, value in kernel.items() if value is not None} or None,
        **figures,
    )


def row_form(row: MeasurementRow, ms: Callable[[float], float]) -> dict[str, Any]:
    """Return a row as POST /measurements takes it, without absent figures; `ms` writes seconds as milliseconds."""
    phases = None if row.phases_s is None else {name: ms(value) for name, value in row.phases_s.items()}
    served = row.kind == "serving" and phases is not None
    form = {
        "gpu": row.gpu_id,
        "software": row.software,
        "workload": row.workload,
        "source": row.source,
        "latency_ms": ms(row.latency_s),
        "latency_std_ms": None if row.latency_std_s is None else ms(row.latency_std_s),
        "phases_ms": None if served else phases,
        "serving": {f"{name}_ms": value for name, value in (phases or {}).items()} if served else None,
        **{name: getattr(row, name) for name in ("runs", "kernel", "clock_hz", "power_w", "measured_at")},
    }
    return {name: value for name, value in form.items() if value is not None}


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


# `count` and `eager` describe how a row ran, not which network it is, and are not stored.
_FIELDS = tuple(name for name in NETWORK.fields if name not in ("count", "eager", "stack"))
TRAINING_FORWARD = "training forward"


class NetworkTime(NamedTuple):
    """One pass of a measured network: inference, step or a training phase, its columns of NETWORK, and seconds."""

    measured: MeasurementRow
    what: str
    row: dict[str, float]
    latency_s: float

    @property
    def dtype(self) -> str:
        """Its number format."""
        return str(self.measured.workload["dtype"])


def stored_networks(connection: Connection, gpus: GpuTable) -> list[OperatorRuns]:
    """Return stored networks on GPUs of `gpus`, one table per dtype, as `stored_operators` does for operators."""
    models = network_blocks(measurements.load(connection, kind="model"))
    return to_runs(chain(operator_rows.load(connection, ops=(NETWORK.name,)), models), gpus)


def network_blocks(rows: Sequence[MeasurementRow]) -> Iterator[tuple[OperatorBlock, Bytes]]:
    """Yield measured ConvNets, one block per dtype, with the identities of their rows."""
    by_dtype: dict[str, list[NetworkTime]] = {}
    for timed in (timed for row in rows for timed in network_times(row) if timed.what != TRAINING_FORWARD):
        by_dtype.setdefault(timed.dtype, []).append(timed)
    for times in by_dtype.values():
        block = network_block(times)
        yield block, identities(block)


def network_block(times: Sequence[NetworkTime]) -> OperatorBlock:
    """Return passes of one dtype as a block, in order."""
    contexts = [
        Context(
            NETWORK.name, item.dtype, _FIELDS, item.measured.gpu_id, item.measured.software, item.measured.source, None
        )
        for item in times
    ]
    distinct = tuple(dict.fromkeys(contexts))
    absent, nowhere = np.full(len(times), np.nan), np.full((3, len(times)), np.nan)
    return OperatorBlock(
        distinct,
        np.array([distinct.index(context) for context in contexts], dtype=np.intp),
        np.array([[item.row[name] for item in times] for name in _FIELDS]),
        np.array([item.latency_s for item in times]),
        latency_std_s=absent,
        runs=absent,
        clock_hz=absent,
        power_w=absent,
        measured_at=np.full(len(times), NO_TIME),
        grid=nowhere,
        block=nowhere,
    )


def network_times(measured: MeasurementRow) -> Iterator[NetworkTime]:
    """Yield the passes of a measured model; none unless it is a known ConvNet with plain data parallelism."""
    workload = to_workload(msgspec.convert(measured.workload, MeasuredModel))
    if workload is None:
        return
    try:
        network, run = resolve_network(workload, None)
        figures = network_figures(forward_rows(network, run), run)
    except BadInput:
        return
    if run.mode != "training":
        yield NetworkTime(measured, "inference", network_row(figures, run, FORWARD), measured.latency_s)
        return
    yield NetworkTime(measured, "step", network_row(figures, run, STEP), measured.latency_s)
    several = run.parallelism.data > 1
    for name, (what, seconds) in _passes(measured.phases_s or {}, several=several).items():
        if seconds > 0:
            yield NetworkTime(measured, f"training {name}", network_row(figures, run, what), seconds)


def _passes(phases: Mapping[str, float], *, several: bool) -> dict[str, tuple[int, float]]:
    """Return the passes of a step with their seconds, 0 if not timed. The update includes the gradient exchange."""
    forward, backward, update = (phases.get(name, 0.0) for name in ("forward", "backward", "update"))
    exchange = phases.get("communication", 0.0)
    if several and not exchange:  # the exchange overlaps backward
        both = backward + update if min(backward, update) > 0 else 0.0
        return {"forward": (FORWARD, forward), "backward_update": (BACKWARD_UPDATE, both)}
    apart = {"backward": (BACKWARD, backward), "update": (UPDATE, update + exchange)}
    return {"forward": (FORWARD, forward), **apart}
