"""Measurements as objects: each row's form, workload and GPU, as typed values or as what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from app.errors import BadInput, FieldError, GpucastError
from app.services.measurements.measurement_columns import EARLIEST, WORDS
from app.services.measurements.upload_gpus import UploadGpus
from app.services.operators.tables import json_columns
from app.store.measurements import MeasurementRow
from app.wire.decoding import convert
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload
from app.wire.measurements.measurement_form import MEASUREMENT_EXAMPLE, MODEL_EXAMPLE, MeasuredModel, MeasurementIn
from app.wire.measurements.row_columns import MAX_REPORTED
from app.wire.measurements.upload import Objects, OperatorColumns
from app.wire.operators.operators_form import OPERATORS_EXAMPLE
from app.wire.operators.row_forms import ROW_FORMS, WORD_FIELDS, unknown_op

_T = TypeVar("_T")
Row = Mapping[str, Any]
Loc = tuple[str | int, ...]

STORED_KINDS = ("kernel", "operator", "operators", "model")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A sound row: where it stood, its form, its workload (a struct) and its row of `UploadGpus`."""

    position: int
    form: MeasurementIn
    workload: Any
    gpu: int


def parse(sent: Objects, gpus: UploadGpus) -> tuple[list[Parsed], list[FieldError]]:
    """Every row, or what is wrong with it: every field of the first ones, of the others that they are wrong."""
    parsed: list[Parsed] = []
    errors: list[FieldError] = []
    for position, row in zip(sent.position.tolist(), sent.rows, strict=True):
        outcome = _parse(position, row, gpus, thorough=len(errors) < MAX_REPORTED)
        if isinstance(outcome, Parsed):
            parsed.append(outcome)
        else:
            errors.extend(outcome)
    return parsed, errors


def _parse(position: int, row: Row, gpus: UploadGpus, *, thorough: bool) -> Parsed | Sequence[FieldError]:
    try:
        form = _typed(row, MeasurementIn, MEASUREMENT_EXAMPLE, (position,), thorough)
        workload = _workload(form, position, thorough)
        _refuse_odd_date(form.measured_at, position)
    except BadInput as error:
        return error.errors
    try:
        return Parsed(position, form, workload, gpus.index(form.gpu))
    except GpucastError as error:
        inner = error.errors or (FieldError((), error.detail),)
        return [FieldError((position, "gpu", *item.loc), item.msg) for item in inner]


def _typed(raw: Row, form: type[_T], example: Row, loc: Loc, thorough: bool) -> _T:
    if thorough:
        return convert(raw, form, example=example, loc=loc)
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), errors=[FieldError(loc, str(error))]) from error


def _refused(loc: Loc, msg: str) -> BadInput:
    return BadInput(msg, errors=[FieldError(loc, msg)])


def _workload(form: MeasurementIn, position: int, thorough: bool) -> Any:
    given, loc = form.workload, (position, "workload")
    kind = given.get("kind")
    if kind == "kernel":
        kernel = _typed(given, KernelWorkload, KERNEL_EXAMPLE, loc, thorough)
        if kernel.measured:
            raise _refused((*loc, "measured"), "send each measured time as a row of its own")
        return kernel
    if kind == "model":
        return _model(form, loc, thorough)
    if kind in ("operator", "operators"):
        return _operator(form, kind, loc, thorough)
    stored = ", ".join(STORED_KINDS)
    msg = f"measurements of kind {str(kind)[:50]!r} are not stored by this version; stored are: {stored}"
    raise _refused((*loc, "kind"), msg)


def _model(form: MeasurementIn, loc: Loc, thorough: bool) -> MeasuredModel:
    """The network of a row."""
    model = _typed(form.workload, MeasuredModel, MODEL_EXAMPLE, loc, thorough)
    for field in ("dataset_size", "output_tokens"):
        if getattr(model, field) is not None:
            raise _refused((*loc, field), "a measurement is of one step: leave it out")
    if model.software not in (None, form.software):
        raise _refused((*loc, "software"), f"the measurement's own, {form.software!r}, or nothing")
    _refuse_unstorable(model.config, (*loc, "config"))
    return model


def _refuse_unstorable(given: Any, loc: Loc) -> None:
    """What JSON may hold and a database's JSON may not: NUL, NaN and infinities, in fields that nothing here reads."""
    left: list[tuple[Loc, Any]] = [(loc, given)]
    while left:
        place, value = left.pop()
        if isinstance(value, str) and "\0" in value:
            raise _refused(place, "holds a NUL character")
        if isinstance(value, float) and not isfinite(value):
            raise _refused(place, "must be a finite number")
        if isinstance(value, dict):
            left += [(place, name) for name in value]
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        left += [((*place, part), item) for part, item in inner]


def _operator(form: MeasurementIn, kind: str, loc: Loc, thorough: bool) -> Any:
    """The one operator of a row."""
    given: Any = {name: value for name, value in form.workload.items() if name != "kind"}
    if kind == "operators":
        every = given.pop("operators", None)
        if given:
            raise _refused((*loc, next(iter(given))), "unknown field")
        if not isinstance(every, list) or len(every) != 1 or not isinstance(every[0], dict):
            raise _refused((*loc, "operators"), "one operator: send each measured time as a row of its own")
        given, loc = every[0], (*loc, "operators", 0)
    op = given.get("op")
    if not isinstance(op, str) or op not in ROW_FORMS:
        raise _refused((*loc, "op"), "required field is missing" if op is None else unknown_op(op))
    operator = _typed(given, ROW_FORMS[op], OPERATORS_EXAMPLE["workload"]["operators"][0], loc, thorough)
    if getattr(operator, "software", None) not in (None, form.software):
        raise _refused((*loc, "software"), f"the measurement's own, {form.software!r}, or nothing")
    if form.phases_ms is not None:
        raise _refused((loc[0], "phases_ms"), "an operator has none: send phase forward and backward as rows")
    return operator


def _refuse_odd_date(when: datetime | None, position: int) -> None:
    if when is not None and not EARLIEST <= when <= datetime.now(UTC) + timedelta(days=1):
        raise _refused((position, "measured_at"), f"between {EARLIEST:%Y} and now, with a time zone")


def operator_columns(rows: Sequence[Parsed], gpus: UploadGpus) -> OperatorColumns:
    """Rows of operators in columns."""
    flat = [_flat(item, gpus) for item in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    columns = json_columns(((name, [row.get(name) for row in flat]) for name in names), WORD_FIELDS | set(WORDS))
    return OperatorColumns(columns, np.array([item.position for item in rows], dtype=np.intp))


def _flat(item: Parsed, gpus: UploadGpus) -> dict[str, Any]:
    form, kernel = item.form, item.form.kernel
    row: dict[str, Any] = {name: value for name, value in structs.asdict(item.workload).items() if value is not None}
    row |= {
        "op": item.workload.__struct_config__.tag,
        "gpu": gpus.specs[item.gpu].id,
        "software": form.software,
        "source": form.source,
        "latency_ms": form.latency_ms,
        "latency_std_ms": form.latency_std_ms,
        "runs": form.runs,
        "clock_hz": form.clock_hz,
        "power_w": form.power_w,
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


def stored(item: Parsed, gpu_id: str) -> MeasurementRow:
    """A checked row in the store's terms: seconds, and the workload with its defaults left out."""
    form = item.form
    phases = form.phases_ms
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


def _name(workload: KernelWorkload | MeasuredModel) -> str:
    """What rows are found by: of a configuration its type."""
    return workload.name or str((workload.config or {}).get("model_type"))  # type: ignore[union-attr]


def _canonical(workload: KernelWorkload | MeasuredModel) -> dict[str, Any]:
    """The workload in the API's form; sizes of 0, which say nothing, are left out like absent ones."""
    said: dict[str, Any] = msgspec.to_builtins(workload)
    size = {name: value for name, value in said.pop("size", {}).items() if value}
    return said | {"size": size} if size else said
