"""Measurements in: every row checked against its form, its GPU and the hardware limit, then all stored or none.

A row is stored once. Its identity is what the store hashes: operator, GPU, software stack and source, and also the
time and when it was measured. So the same row sent again, in any form, changes nothing, while a second measurement of
the same launch that came out differently is one more row: the spread between runs is what intervals are made of, and
an append-only table must not choose which of two measurements was right. How often a run was repeated, its spread
and its power only annotate the row and do not make another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from app.errors import BadInput, Conflict, FieldError, GpucastError
from app.predictors.occupancy import LIMITS, resident_blocks
from app.predictors.roofline import hardware_limit
from app.services.decoding import convert
from app.services.drift import Drift, drift, sample
from app.services.engine import Engine
from app.services.launch import check_launch
from app.services.measurement_form import MEASUREMENT_EXAMPLE, MeasurementIn
from app.services.workloads import KERNEL_EXAMPLE, KernelWorkload, kernel_table
from app.store import gpus as gpu_store
from app.store import measurements as store
from app.store.measurements import MeasurementRow
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Measurements
from app.tables.predictions import BOUNDS

_T = TypeVar("_T")
Row = Mapping[str, Any]
Loc = tuple[str | int, ...]

STORED_KINDS = ("kernel",)
MAX_REPORTED = 1000
# Room for clocks above the data sheet's and rounded counts; a time further under the limit is wrong, or its counts are.
LIMIT_TOLERANCE = 0.05
# The first programmable GPUs; a clock that says otherwise was not set.
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Checked:
    """The sound rows of what was sent, and what is wrong with the others.

    rows       ready to store
    position   int, one per row: where it stood in what was sent
    measured   the same rows as a table; `measured.gpu` are rows of `gpus`
    newcomers  GPUs that the rows bring along: inline specifications, and names outside the catalogue's own rows
    errors     one per wrong row, `loc` its position and field
    """

    rows: tuple[MeasurementRow, ...]
    position: tuple[int, ...]
    measured: Measurements | None
    gpus: GpuTable
    newcomers: tuple[GpuSpec, ...]
    errors: tuple[FieldError, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What became of an upload: `inserted` rows are new, `unchanged` ones were there already.

    `drift` compares new rows with what would have been predicted for them; None without new rows.
    """

    received: int
    inserted: int
    unchanged: int
    added_gpus: tuple[str, ...]
    drift: Drift | None
    dry_run: bool


@dataclass(slots=True)
class _Gpus:
    """GPUs of one upload: each name is resolved once, each specification has one row."""

    catalog: Catalog
    row: dict[str, int] = field(default_factory=dict)
    specs: list[GpuSpec] = field(default_factory=list)
    _by_name: dict[str, int] = field(default_factory=dict)

    def index(self, given: str | Mapping[str, Any]) -> int:
        """Row of the GPU that a name or an inline specification means; raises when there is none."""
        if isinstance(given, str):
            if given not in self._by_name:
                self._by_name[given] = self._add(self.catalog.resolve(given))
            return self._by_name[given]
        spec = complete(given)
        known = self.specs[self.row[spec.id]] if spec.id in self.row else self.catalog.find(spec.id)
        if known is not None and known != spec:
            raise BadInput(f"the id {spec.id!r} is another GPU's: give its name, or this one another id")
        return self._add(spec)

    def _add(self, spec: GpuSpec) -> int:
        if spec.id not in self.row:
            self.row[spec.id] = len(self.specs)
            self.specs.append(spec)
        return self.row[spec.id]

    def newcomers(self, used: NDArray[np.intp]) -> tuple[GpuSpec, ...]:
        """Those of the rows `used` that the catalogue has no row of."""
        own = {spec.id for spec in self.catalog.specs}
        return tuple(self.specs[k] for k in np.unique(used) if self.specs[k].id not in own)


@dataclass(frozen=True, slots=True)
class _Parsed:
    position: int
    form: MeasurementIn
    workload: KernelWorkload
    gpu: int


def check(catalog: Catalog, rows: Sequence[Row]) -> Checked:
    """Check every row's form, GPU, launch and time; wrong rows come back as errors, the others ready to store."""
    gpus = _Gpus(catalog)
    parsed: list[_Parsed] = []
    errors: list[FieldError] = []
    for position, row in enumerate(rows):
        outcome = _parse(position, row, gpus, thorough=len(errors) < MAX_REPORTED)
        if isinstance(outcome, _Parsed):
            parsed.append(outcome)
        else:
            errors.extend(outcome)
    table = GpuTable.from_specs(gpus.specs)
    if not parsed:
        return Checked((), (), None, table, (), tuple(errors))
    measured = Measurements(
        kernel_table([item.workload for item in parsed]),
        np.array([item.gpu for item in parsed], dtype=np.intp),
        np.array([item.form.latency_ms for item in parsed]) / 1e3,
    )
    impossible = _impossible(parsed, measured, table)
    sound = np.array([k for k in range(len(parsed)) if k not in impossible], dtype=np.intp)
    kept = [parsed[k] for k in sound]
    return Checked(
        tuple(_stored(item, gpus.specs[item.gpu].id) for item in kept),
        tuple(item.position for item in kept),
        measured.take(sound),
        table,
        gpus.newcomers(measured.gpu[sound]),
        tuple(sorted([*errors, *impossible.values()], key=lambda error: error.loc[0])),
    )


def _parse(position: int, row: Row, gpus: _Gpus, *, thorough: bool) -> _Parsed | Sequence[FieldError]:
    """One row as typed values, or what is wrong with it: every field where `thorough`, else that it is wrong."""
    try:
        form = _typed(row, MeasurementIn, MEASUREMENT_EXAMPLE, (position,), thorough)
        workload = _workload(form.workload, (position, "workload"), thorough)
        _refuse_odd_date(form.measured_at, position)
    except BadInput as error:
        return error.errors
    try:
        return _Parsed(position, form, workload, gpus.index(form.gpu))
    except GpucastError as error:
        inner = error.errors or (FieldError((), error.detail),)
        return [FieldError((position, "gpu", *item.loc), item.msg) for item in inner]
    except RecursionError:
        return [FieldError((position, "gpu"), "nested too deeply")]


def _typed(raw: Row, form: type[_T], example: Row, loc: Loc, thorough: bool) -> _T:
    if thorough:
        return convert(raw, form, example=example, loc=loc)
    try:
        return msgspec.convert(raw, form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput(str(error), errors=[FieldError(loc, str(error))]) from error


def _workload(given: Row, loc: Loc, thorough: bool) -> KernelWorkload:
    kind = given.get("kind")
    if kind not in STORED_KINDS:
        stored = ", ".join(STORED_KINDS)
        msg = f"measurements of kind {str(kind)[:50]!r} are not stored by this version; stored are: {stored}"
        raise BadInput(msg, errors=[FieldError((*loc, "kind"), msg)])
    workload = _typed(given, KernelWorkload, KERNEL_EXAMPLE, loc, thorough)
    if workload.measured:
        msg = "send each measured time as a row of its own"
        raise BadInput(msg, errors=[FieldError((*loc, "measured"), msg)])
    return workload


def _refuse_odd_date(when: datetime | None, position: int) -> None:
    if when is not None and not _EARLIEST <= when <= datetime.now(UTC) + timedelta(days=1):
        msg = f"between {_EARLIEST:%Y} and now, with a time zone"
        raise BadInput(msg, errors=[FieldError((position, "measured_at"), msg)])


def _impossible(parsed: Sequence[_Parsed], measured: Measurements, gpus: GpuTable) -> dict[int, FieldError]:
    """Rows that cannot be: launches that no SM can hold, and times under the hardware limit. By row of `parsed`."""
    every = np.arange(len(parsed))
    residency = resident_blocks(measured.ops, gpus, every, measured.gpu)
    limit = hardware_limit(measured.ops, gpus, every, measured.gpu)
    wrong: dict[int, FieldError] = {}
    for k in np.flatnonzero(measured.latency_s < (1 - LIMIT_TOLERANCE) * limit.latency_s).tolist():
        msg = (
            f"{measured.latency_s[k] * 1e3:.6g} ms is more than {LIMIT_TOLERANCE:.0%} under the hardware limit of"
            f" {gpus.ids[measured.gpu[k]]}, {limit.latency_s[k] * 1e3:.6g} ms ({BOUNDS[limit.bound[k]]}):"
            " check the time, FLOPs, bytes and working set"
        )
        wrong[k] = FieldError((parsed[k].position, "latency_ms"), msg)
    stuck = np.flatnonzero(residency.blocks < 1)
    for k, broken in zip(stuck.tolist(), check_launch(measured.ops, gpus, stuck, measured.gpu[stuck]), strict=True):
        # A dtype that the data sheet lacks is shown to run by the very measurement.
        reasons = [item for item in broken if item.loc != ("dtype",)]
        first = reasons[0] if reasons else FieldError((), f"does not fit ({LIMITS[residency.limit[k]]})")
        msg = f"{first.msg}: this launch never ran"
        wrong[k] = FieldError((parsed[k].position, "workload", *first.loc), msg)
    return wrong


def _stored(item: _Parsed, gpu_id: str) -> MeasurementRow:
    """A checked row in the store's terms: seconds, and the workload with its defaults left out."""
    form = item.form
    phases = form.phases_ms
    return MeasurementRow(
        gpu_id=gpu_id,
        software=form.software,
        kind="kernel",
        name=item.workload.name,
        workload=_canonical(item.workload),
        latency_s=form.latency_ms / 1e3,
        source=form.source,
        latency_std_s=None if form.latency_std_ms is None else form.latency_std_ms / 1e3,
        runs=form.runs,
        phases_s=None if phases is None else {name: value / 1e3 for name, value in phases.items()},
        kernel=None if form.kernel is None else msgspec.to_builtins(form.kernel),
        clock_hz=form.clock_hz,
        power_w=form.power_w,
        measured_at=form.measured_at,
    )


def _canonical(workload: KernelWorkload) -> dict[str, Any]:
    """The workload in the API's form; sizes of 0, which say nothing, are left out like absent ones."""
    said: dict[str, Any] = msgspec.to_builtins(workload)
    size = {name: value for name, value in said.pop("size", {}).items() if value}
    return said | {"size": size} if size else said


def refuse_wrong(checked: Checked, received: int) -> None:
    """BadInput with the row-by-row report unless every row is sound."""
    if checked.errors:
        wrong = len({error.loc[0] for error in checked.errors})
        shown = f" The first {MAX_REPORTED} errors are listed." if len(checked.errors) > MAX_REPORTED else ""
        detail = f"{wrong} of {received} measurements cannot be stored, so none was.{shown}"
        raise BadInput(detail, errors=checked.errors[:MAX_REPORTED])


def save(connection: Connection, checked: Checked) -> int:
    """Store the checked rows and the GPUs they bring along; returns how many rows are new."""
    for spec in checked.newcomers:
        _add_gpu(connection, spec)
    return store.insert(connection, checked.rows)


def _add_gpu(connection: Connection, spec: GpuSpec) -> None:
    try:
        gpu_store.insert_spec(connection, spec, "import")
    except Conflict:
        # Somebody else was first, which is fine as long as they mean the same GPU.
        if gpu_store.get_spec(connection, spec.id) != spec:
            raise


def ingest(database: Database, engine: Engine, rows: Sequence[Row], *, dry_run: bool = False) -> Report:
    """Check all rows and store them, all or none; BadInput lists what is wrong row by row."""
    checked = check(engine.catalog, rows)
    refuse_wrong(checked, len(rows))
    with database.begin() as connection, connection.begin_nested() as savepoint:
        compared = _drift(connection, engine, checked)
        inserted = save(connection, checked)
        if dry_run:
            savepoint.rollback()
    added = tuple(spec.id for spec in checked.newcomers)
    return Report(len(rows), inserted, len(rows) - inserted, added, compared, dry_run)


def _drift(connection: Connection, engine: Engine, checked: Checked) -> Drift | None:
    """Drift of a sample of the rows that are new; a stored row would be compared with itself."""
    if checked.measured is None:
        return None
    chosen = sample(len(checked.rows))
    ids = [store.identity(checked.rows[k]) for k in chosen]
    known = store.known(connection, ids)
    fresh = np.array([k for k, row_id in zip(chosen, ids, strict=True) if row_id not in known], dtype=np.intp)
    return drift(engine, checked.measured.take(fresh), checked.gpus) if len(fresh) else None
