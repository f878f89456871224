"""Read the columns of measured operators besides the operator: GPU, software, time and spread, clock, power, launch.

Errors of cells are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np

from app.engine.operator_blocks import MeasurementColumns
from app.errors import GpucastError
from app.formats.operator_uploads import FIGURES
from app.services.measurements.upload_gpus import UploadGpus
from app.store.operator_blocks import NO_TIME
from app.tables.arrays import Floats, Ints
from app.wire.kernel_workload import Name
from app.wire.measurements.measurement_form import Symbol
from app.wire.operators.operator_columns import Column, Numbers, Problems, Words, figures, text_to_numbers
from app.wire.operators.row_forms import Field

# Before this year there were no programmable GPUs; an earlier date means an unset clock.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LARGEST_EXTENT = 2**31 - 1


def read_measurement_columns(
    gpus: UploadGpus, columns: Mapping[str, Column], every: Ints, problems: Problems
) -> MeasurementColumns:
    """Return the columns of rows `every`, int [n], in SI units. GPUs that rows name are added to `gpus`."""
    fields = [Field(dim.name, dim, dim.help) for dim in FIGURES]
    values = [figures("a measurement", field, columns.get(field.name), every, problems)[0] for field in fields]
    latency_ms, std_ms, runs, clock_hz, power_w = (np.broadcast_to(column, len(every)) for column in values)
    gpu = _text_numbers("gpu", columns, every, problems, lambda word: float(_gpu(gpus, word)), required=True)
    when = _text_numbers("measured_at", columns, every, problems, _microseconds)
    # Unresolved GPUs are NaN here and refused by the caller, with all other errors.
    return MeasurementColumns(
        gpus.specs,
        np.nan_to_num(gpu).astype(np.intp),
        _name_column("software", columns, every, problems, Name),
        _name_column("source", columns, every, problems, Name),
        _name_column("kernel.name", columns, every, problems, Symbol, required=False),
        latency_ms / 1e3,
        std_ms / 1e3,
        runs,
        clock_hz,
        power_w,
        np.where(np.isnan(when), NO_TIME, np.nan_to_num(when)).astype(np.int64),
        _extents("kernel.grid", columns, every, problems),
        _extents("kernel.block", columns, every, problems),
    )


def _gpu(gpus: UploadGpus, word: str) -> int:
    try:
        return gpus.index(word)
    except GpucastError as error:
        raise ValueError(error.detail) from error


def _microseconds(word: str) -> float:
    """Return microseconds since 1970 of an ISO 8601 time."""
    expected = f"between {EARLIEST:%Y} and now, with a time zone"
    try:
        when = datetime.fromisoformat(word)
    except ValueError as error:
        raise ValueError(f"invalid time {word[:50]!r}; {expected}") from error
    if when.tzinfo is None or not EARLIEST <= when <= datetime.now(UTC) + timedelta(days=1):
        raise ValueError(expected)
    return float((when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


def _text_numbers(
    name: str,
    columns: Mapping[str, Column],
    every: Ints,
    problems: Problems,
    number: Callable[[str], float],
    *,
    required: bool = False,
) -> Floats:
    """Return the numbers of text cells, float64 [n], NaN where missing."""
    column = columns.get(name)
    if column is not None and not isinstance(column, Words):
        problems.refuse_field(name, "must be text")
    if column is None:
        numbers = np.full(len(every), np.nan)
        if required:
            problems.add(name, "required field is missing")
        return numbers
    numbers = text_to_numbers(name, column, number, None if column.single else every, problems)
    if required and (column.codes < 0).any():
        problems.add(name, "required field is missing", np.flatnonzero(column.codes < 0))
    return np.broadcast_to(numbers, len(every))


def _name_column(
    name: str, columns: Mapping[str, Column], every: Ints, problems: Problems, kind: Any, *, required: bool = True
) -> Words:
    """Return a column of names, with distinct `words`."""
    codes: dict[str, int] = {}

    def number(word: str) -> float:
        try:
            msgspec.convert(word, kind)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return float(codes.setdefault(word, len(codes)))

    numbers = _text_numbers(name, columns, every, problems, number, required=required)
    return Words(tuple(codes), np.where(np.isnan(numbers), -1, np.nan_to_num(numbers)).astype(np.intp), False)


def _extents(name: str, columns: Mapping[str, Column], every: Ints, problems: Problems) -> Floats:
    """Return sizes of a grid or block, float64 [3, n], NaN where missing."""
    column = columns.get(name)
    if isinstance(column, Numbers):
        return np.broadcast_to(column.values, (len(every), 3)).T
    sizes: list[tuple[float, ...]] = []

    def number(word: str) -> float:
        parts = word.replace(",", "x").split("x")
        expected = "one to three whole numbers as 64x64x1, each at least 1"
        if len(parts) > 3 or not all(part.strip().isdecimal() and 1 <= int(part) <= _LARGEST_EXTENT for part in parts):
            raise ValueError(f"{word[:40]!r} is not {expected}")
        sizes.append((*map(float, parts), 1.0, 1.0)[:3])
        return float(len(sizes) - 1)

    codes = _text_numbers(name, columns, every, problems, number)
    table = np.array([*sizes, (np.nan, np.nan, np.nan)])
    return table[np.where(np.isnan(codes), len(sizes), np.nan_to_num(codes)).astype(np.intp)].T
