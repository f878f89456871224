"""The JSON form of one measurement, as POST /measurements takes it and GET /measurements gives it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from app.errors import BadInput, FieldError

_T = TypeVar("_T")
Loc = tuple[str | int, ...]

# Shorter than any clock cycle, longer than any training run: outside, the unit is wrong.
MIN_MS, MAX_MS = 1e-9, 1e11
# PostgreSQL stores no NUL; the other control characters only hide in logs.
_PRINTABLE = "^[^\\x00-\\x1f\\x7f]+$"

Text = Annotated[str, Meta(min_length=1, max_length=200, pattern=_PRINTABLE)]
Milliseconds = Annotated[float, Meta(ge=MIN_MS, le=MAX_MS)]
Spread = Annotated[float, Meta(ge=0, le=MAX_MS)]
Phase = Literal["forward", "backward", "update", "communication"]
_Extent = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Dims = _Extent | Annotated[list[_Extent], Meta(min_length=1, max_length=3)]


class LaunchedKernel(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The device function that ran: its symbol, and its grid and block, one number or up to three."""

    name: Text | None = None
    grid: Dims | None = None
    block: Dims | None = None


class MeasurementIn(Struct, forbid_unknown_fields=True):
    """One measured time. `gpu` is an id, an alias or a whole specification; `workload` is a kernel."""

    gpu: Annotated[str, Meta(min_length=1, max_length=200)] | dict[str, Any]
    software: Text
    workload: dict[str, Any]
    latency_ms: Milliseconds
    source: Text
    latency_std_ms: Spread | None = None
    runs: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    phases_ms: dict[Phase, Spread] | None = None
    kernel: LaunchedKernel | None = None
    clock_hz: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    power_w: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    measured_at: Annotated[datetime, Meta(tz=True)] | None = None


_AT = re.compile(r" - at (?:`key` in )?`\$(?P<path>[^`]*)`$")
_FIELD = re.compile(r"(?:required|unknown) field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def convert(value: Any, form: type[_T], where: Loc) -> _T:
    """`value` as `form`; BadInput whose one error has the wrong field's path below `where`."""
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise BadInput("a field is wrong", errors=[_located(str(error), where)]) from error


def _located(text: str, where: Loc) -> FieldError:
    """Msgspec's "what - at `$.path`" as an error with that path."""
    at, named = _AT.search(text), _FIELD.search(text)
    steps = _STEP.findall(at["path"]) if at else []
    path: list[str | int] = [int(number) if number else name for number, name in steps]
    if named:
        path.append(named["name"])
    return FieldError((*where, *path), text[: at.start()] if at else text)
