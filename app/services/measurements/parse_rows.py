"""Parse measurements sent as objects: schema, workload, date and GPU of each row, or its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from app.errors import MAX_ERRORS, BadInput, FieldError, GpucastError, NotFound
from app.formats.own import FIGURES, WORDS
from app.runtime.release import release
from app.services.operators.operator_tables import json_columns
from app.stacks.release import release_of
from app.store.measurements import MeasurementRow
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.tables.gpus import GpuSpec, GpuTable
from app.wire.decoding import convert
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload
from app.wire.measurement_form import (
    MEASURED_MODEL_EXAMPLE,
    MEASUREMENT_EXAMPLE,
    MeasuredModel,
    MeasurementIn,
    Objects,
    OperatorColumns,
)
from app.wire.measurement_rows import MAX_REPORTED
from app.wire.operator_forms import OPERATORS_EXAMPLE, ROW_FORMS, WORD_FIELDS, unknown_op
from app.wire.serving_form import SERVING_EXAMPLE, ServingWorkload

_T = TypeVar("_T")
Row = Mapping[str, Any]
Loc = tuple[str | int, ...]

# Before this year there were no programmable GPUs; an earlier date means an unset clock.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
PLAUSIBLE = f"between {EARLIEST:%Y} and now, with a time zone"
STORED_KINDS = ("kernel", "operator", "operators", "model", "serving")


@dataclass(frozen=True, slots=True)
class ParsedRow:
    """A valid row: its place in the upload, schema struct, workload struct, and row of `UploadGpus`."""

    position: int
    form: MeasurementIn
    workload: Any
    gpu: int


def parse_rows(sent: Objects, gpus: UploadGpus) -> tuple[list[ParsedRow], list[FieldError]]:
    """Return the valid rows and the errors of the others: all errors of the first rows, one for each later row."""
    parsed: list[ParsedRow] = []
    errors: list[FieldError] = []
    for position, row in zip(sent.position.tolist(), sent.rows, strict=True):
        outcome = _parse(position, row, gpus, thorough=len(errors) < MAX_REPORTED)
        if isinstance(outcome, ParsedRow):
            parsed.append(outcome)
        else:
            errors.extend(outcome)
    return parsed, errors


def _parse(position: int, row: Row, gpus: UploadGpus, *, thorough: bool) -> ParsedRow | Sequence[FieldError]:
    try:
        form = _convert(row, MeasurementIn, MEASUREMENT_EXAMPLE, (position,), thorough)
        workload = _workload(form, position, thorough)
        _check_date(form.measured_at, position)
    except BadInput as error:
        return error.errors
    try:
        return ParsedRow(position, form, workload, gpus.index(form.gpu))
    except GpucastError as error:
        inner = error.errors or (FieldError((), error.detail),)
        return [FieldError((position, "gpu", *item.loc), item.msg) for item in inner]


def _convert(raw: Row, form: type[_T], example: Row, loc: Loc, thorough: bool) -> _T:
    if thorough:
        return convert(raw, form, example=example, loc=loc)
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), errors=[FieldError(loc, str(error))]) from error


def _bad_field(loc: Loc, msg: str) -> BadInput:
    return BadInput(msg, errors=[FieldError(loc, msg)])


def _workload(form: MeasurementIn, position: int, thorough: bool) -> Any:
    workload, loc = form.workload, (position, "workload")
    kind = workload.get("kind")
    if (form.serving is not None) != (kind == "serving"):
        msg = "required field is missing: ttft_ms and tpot_ms" if kind == "serving" else "only of kind serving"
        raise _bad_field((position, "serving"), msg)
    if kind == "kernel":
        kernel = _convert(workload, KernelWorkload, KERNEL_EXAMPLE, loc, thorough)
        if kernel.measured:
            raise _bad_field((*loc, "measured"), "send each measured time as a row of its own")
        return kernel
    if kind == "model":
        return _model(form, loc, thorough)
    if kind == "serving":
        return _served(form, loc, thorough)
    if kind in ("operator", "operators"):
        return _operator(form, kind, loc, thorough)
    kinds = ", ".join(STORED_KINDS)
    msg = f"measurements of kind {str(kind)[:50]!r} are not stored by this version; stored are: {kinds}"
    raise _bad_field((*loc, "kind"), msg)


def _model(form: MeasurementIn, loc: Loc, thorough: bool) -> MeasuredModel:
    model = _convert(form.workload, MeasuredModel, MEASURED_MODEL_EXAMPLE, loc, thorough)
    for name in ("dataset_size", "output_tokens", "failures"):
        if getattr(model, name) is not None:
            raise _bad_field((*loc, name), "not allowed: a measurement is of one step")
    if model.software not in (None, form.software):
        raise _bad_field((*loc, "software"), f"must be the measurement's own, {form.software!r}, or absent")
    _check_storable(model.config, (*loc, "config"))
    return model


def _served(form: MeasurementIn, loc: Loc, thorough: bool) -> ServingWorkload:
    """Return the load on a served model of a row, with the measurement's software."""
    served = _convert(form.workload, ServingWorkload, SERVING_EXAMPLE["workload"], loc, thorough)
    if "software" in form.workload and release_of(served.software).name != release_of(form.software).name:
        raise _bad_field((*loc, "software"), f"must be of the measurement's own stack, {form.software!r}, or absent")
    assert form.serving is not None
    if form.latency_ms < form.serving.ttft_ms:
        raise _bad_field((loc[0], "latency_ms"), "the mean end to end is less than the mean time to first token")
    _check_storable(served.config, (*loc, "config"))
    return structs.replace(served, software=form.software)


def _check_storable(raw: Any, loc: Loc) -> None:
    """Raise BadInput for values that PostgreSQL's JSON cannot store: NUL, NaN and infinities."""
    pending: list[tuple[Loc, Any]] = [(loc, raw)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, str) and "\0" in value:
            raise _bad_field(place, "contains a NUL character")
        if isinstance(value, float) and not isfinite(value):
            raise _bad_field(place, "must be a finite number")
        if isinstance(value, dict):
            pending += [(place, name) for name in value]
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        pending += [((*place, part), item) for part, item in inner]


def _operator(form: MeasurementIn, kind: str, loc: Loc, thorough: bool) -> Any:
    fields: Any = {name: value for name, value in form.workload.items() if name != "kind"}
    if kind == "operators":
        operators = fields.pop("operators", None)
        if fields:
            raise _bad_field((*loc, next(iter(fields))), "unknown field")
        if not isinstance(operators, list) or len(operators) != 1 or not isinstance(operators[0], dict):
            raise _bad_field((*loc, "operators"), "must have one operator: send each measured time as a row of its own")
        fields, loc = operators[0], (*loc, "operators", 0)
    op = fields.get("op")
    if not isinstance(op, str) or op not in ROW_FORMS:
        raise _bad_field((*loc, "op"), "required field is missing" if op is None else unknown_op(op))
    operator = _convert(fields, ROW_FORMS[op], OPERATORS_EXAMPLE["workload"]["operators"][0], loc, thorough)
    if getattr(operator, "software", None) not in (None, form.software):
        raise _bad_field((*loc, "software"), f"must be the measurement's own, {form.software!r}, or absent")
    if form.phases_ms is not None:
        raise _bad_field(
            (loc[0], "phases_ms"), "not allowed for operators: send phases forward and backward as rows of their own"
        )
    return operator


def is_plausible(when: datetime) -> bool:
    """Return whether a measurement may have been made then; a time without a zone is refused."""
    return when.tzinfo is not None and EARLIEST <= when <= datetime.now(UTC) + timedelta(days=1)


def _check_date(when: datetime | None, position: int) -> None:
    if when is not None and not is_plausible(when):
        raise _bad_field((position, "measured_at"), f"must be {PLAUSIBLE}")


def operator_columns(rows: Sequence[ParsedRow], gpus: UploadGpus) -> OperatorColumns:
    """Return rows of operators in columns."""
    flat = [_flat(item, gpus) for item in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    columns = json_columns(((name, [row.get(name) for row in flat]) for name in names), WORD_FIELDS | set(WORDS))
    release(flat)
    return OperatorColumns(columns, np.array([item.position for item in rows], dtype=np.intp))


def _flat(item: ParsedRow, gpus: UploadGpus) -> dict[str, Any]:
    form, kernel = item.form, item.form.kernel
    row: dict[str, Any] = {name: value for name, value in structs.asdict(item.workload).items() if value is not None}
    row |= {
        "op": item.workload.__struct_config__.tag,
        "gpu": gpus.specs[item.gpu].id,
        **{name: getattr(form, name) for name in ("software", "source", *(figure.name for figure in FIGURES))},
        "measured_at": None if form.measured_at is None else form.measured_at.isoformat(),
    }
    if kernel is not None:
        grid, block = _extents(kernel.grid), _extents(kernel.block)
        row |= {"kernel.name": kernel.name, "kernel.grid": grid, "kernel.block": block}
    return row


def _extents(dims: int | list[int] | None) -> str | None:
    if dims is None:
        return None
    return "x".join(map(str, dims)) if isinstance(dims, list) else str(dims)


def to_stored_row(item: ParsedRow, gpu_id: str) -> MeasurementRow:
    """Return a checked row in the store's units (seconds), with the workload's defaults left out."""
    form = item.form
    phases: Mapping[str, float] | None = form.phases_ms  # type: ignore[assignment]  # names of phases
    if form.serving is not None:
        phases = {"ttft": form.serving.ttft_ms, "tpot": form.serving.tpot_ms}
    return MeasurementRow(
        gpu_id=gpu_id,
        software=form.software,
        kind=item.workload.kind,
        name=_name(item.workload),
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


def _name(workload: KernelWorkload | MeasuredModel | ServingWorkload) -> str:
    """Return the name that rows are searched by: the model type for a configuration."""
    return workload.name or str((workload.config or {}).get("model_type"))  # type: ignore[union-attr]


def _canonical(workload: KernelWorkload | MeasuredModel | ServingWorkload) -> dict[str, Any]:
    """Return the workload in the API's form, without sizes of 0, which mean absent."""
    form: dict[str, Any] = msgspec.to_builtins(workload)
    size = {name: value for name, value in form.pop("size", {}).items() if value}
    return form | {"size": size} if size else form


@dataclass(slots=True)
class UploadGpus:
    """GPUs of one upload: each name is resolved once, and each specification has one row.

    `device` is the specification in a file's metadata, for rows that name a GPU which the catalogue lacks. Only the
    errors of the first unknown names say which known ones are close.
    """

    catalog: Catalog
    device: Mapping[str, Any] | None = None
    row: dict[str, int] = field(default_factory=dict)
    specs: list[GpuSpec] = field(default_factory=list)
    _by_name: dict[str, int] = field(default_factory=dict)
    _unknown: int = 0

    def index(self, ref: str | Mapping[str, Any]) -> int:
        """Return the row of a name or an inline specification. Raises NotFound or BadInput."""
        if isinstance(ref, str):
            if ref not in self._by_name:
                self._by_name[ref] = self._named(ref)
            return self._by_name[ref]
        spec = complete(ref)
        known = self.specs[self.row[spec.id]] if spec.id in self.row else self.catalog.find(spec.id)
        if known is not None and known != spec:
            raise BadInput(f"the id {spec.id!r} belongs to another GPU: send its name, or choose another id")
        return self._add(spec)

    def _named(self, name: str) -> int:
        if self.device is not None and self.catalog.find(name) is None:
            carried = complete(self.device, where=("gpucast.device",))
            if Catalog([carried]).find(name) is not None:
                return self.index(self.device)
        try:
            return self._add(self.catalog.resolve(name, hint=self._unknown < MAX_ERRORS))
        except NotFound:
            self._unknown += 1
            raise

    def _add(self, spec: GpuSpec) -> int:
        if spec.id not in self.row:
            self._by_name[spec.id] = self.row[spec.id] = len(self.specs)
            self.specs.append(spec)
        return self.row[spec.id]

    def table(self) -> GpuTable:
        """Return all GPUs."""
        return GpuTable.from_specs(self.specs)

    def newcomers(self, used: NDArray[np.intp]) -> tuple[GpuSpec, ...]:
        """Return the GPUs of rows `used` that are not in the catalogue."""
        own = {spec.id for spec in self.catalog.specs}
        return tuple(self.specs[k] for k in np.unique(used) if self.specs[k].id not in own)
