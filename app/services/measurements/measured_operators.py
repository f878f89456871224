"""Measured operators in columns: every row checked against its form, its GPU and the hardware limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.errors import BadInput, FieldError, GpucastError
from app.ops.base import Dim
from app.predictors.roofline import hardware_limit
from app.services.measurements.form import Symbol
from app.services.measurements.operator_blocks import Facts, blocks_of
from app.services.measurements.upload_gpus import UploadGpus
from app.services.operators.columns import Column, Family, Numbers, Problems, Words, cut, figures, read_families, spoken
from app.services.operators.forms import Field
from app.services.workloads import Name
from app.store.operator_blocks import NO_TIME, OperatorBlock
from app.tables.predictions import BOUNDS

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# Room for clocks above the data sheet's and rounded counts; a time further under the limit is wrong, or its counts are.
LIMIT_TOLERANCE = 0.05
MAX_REPORTED = 1000
# The first programmable GPUs; a clock that says otherwise was not set.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_ABSENT = float("nan")
# Figures beside the operator's own, in the request's units.
_FIGURES = (
    Dim("latency_ms", "time on the device, milliseconds", least=1e-6, whole=False, most=1e9),
    Dim("latency_std_ms", "its spread, milliseconds", least=0.0, default=_ABSENT, whole=False, most=1e9),
    Dim("runs", "how often it was run", default=_ABSENT, most=2.0**31 - 1),
    Dim("clock_hz", "clock, Hz", default=_ABSENT, whole=False, most=1e12),
    Dim("power_w", "power, W", least=0.0, default=_ABSENT, whole=False, most=1e6),
)
FIGURES = tuple(dim.name for dim in _FIGURES)
WORDS = ("gpu", "software", "source", "measured_at", "kernel.name", "kernel.grid", "kernel.block")
# Columns of a measurement beside those of its operator; `software` is also the operator's.
ROW_COLUMNS = (*WORDS, *FIGURES)
_LARGEST_EXTENT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OperatorColumns:
    """Measurements of operators as they were sent: n rows in columns, a measurement's and its operator's.

    `position` says where each row stood in what was sent, int [n].
    """

    columns: Mapping[str, Column]
    position: Ints

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: slice) -> OperatorColumns:
        """Consecutive rows."""
        return OperatorColumns({name: cut(column, rows) for name, column in self.columns.items()}, self.position[rows])


@dataclass(frozen=True, slots=True)
class CheckedOperators:
    """The sound rows of what was sent, and what is wrong with the others.

    blocks     sound rows, ready to store; none where a row is not in the form
    position   int, one array per block: where its rows stood
    errors     wrong rows, `loc` their position and field, MAX_REPORTED at most
    wrong      how many rows are wrong
    reasons    rows that cannot be true: why, and how many
    """

    blocks: tuple[OperatorBlock, ...]
    position: tuple[Ints, ...]
    errors: tuple[FieldError, ...]
    wrong: int
    reasons: Counter[str]

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def readable(self) -> bool:
        """Whether every row is in the form, though it may not be true."""
        return not self.errors or bool(self.reasons)


def joined(parts: Sequence[CheckedOperators]) -> CheckedOperators:
    """What was sent in several parts."""
    return CheckedOperators(
        tuple(block for part in parts for block in part.blocks),
        tuple(rows for part in parts for rows in part.position),
        tuple(error for part in parts for error in part.errors),
        sum(part.wrong for part in parts),
        sum((part.reasons for part in parts), Counter()),
    )


def check_operators(gpus: UploadGpus, sent: OperatorColumns) -> CheckedOperators:
    """Check every row; `gpus` learns the GPUs that are named."""
    problems = Problems((), most=MAX_REPORTED)
    try:
        facts, families = _read(gpus, sent, problems)
    except BadInput as error:
        errors = tuple(placed(item, sent.position) for item in error.errors)
        return CheckedOperators((), (), errors, len({item.loc[0] for item in errors}), Counter())
    limits = _Limits([], 0, Counter())
    blocks, positions = [], []
    for family in families:
        sound = _possible(family, facts, gpus, sent, limits)
        for block, rows in blocks_of(family.form, family.table.take(sound), facts.take(family.rows[sound])):
            blocks.append(block)
            positions.append(sent.position[family.rows[sound[rows]]])
    return CheckedOperators(tuple(blocks), tuple(positions), tuple(limits.errors), limits.wrong, limits.reasons)


def placed(error: FieldError, position: Ints) -> FieldError:
    """An error of a column, (name, row), as one of a measurement, (position, field)."""
    name, *row = error.loc
    field = (*str(name).split("."),) if name in ROW_COLUMNS else ("workload", name)
    return FieldError((*(int(position[int(k)]) for k in row), *field), error.msg)


def _read(gpus: UploadGpus, sent: OperatorColumns, problems: Problems) -> tuple[Facts, list[Family]]:
    columns, every = sent.columns, np.arange(len(sent))
    facts = _facts(gpus, columns, every, problems)
    own = {name: column for name, column in columns.items() if name not in ROW_COLUMNS or name == "software"}
    families = read_families(own, len(sent), problems)
    for family in families:
        repeated = family.table.column("count") != 1
        if repeated.any():
            problems.add("count", "must be 1: send the time of one run", family.rows[repeated])
    problems.refuse()
    return facts, families


def _facts(gpus: UploadGpus, columns: Mapping[str, Column], every: Ints, problems: Problems) -> Facts:
    """What rows say beside their operator; wrong cells are noted."""
    fields = [Field(dim.name, dim, dim.help) for dim in _FIGURES]
    values = [figures("a measurement", field, columns.get(field.name), every, problems)[0] for field in fields]
    latency_ms, std_ms, runs, clock_hz, power_w = (np.broadcast_to(column, len(every)) for column in values)
    gpu = _numbers("gpu", columns, every, problems, lambda word: float(_gpu(gpus, word)), required=True)
    when = _numbers("measured_at", columns, every, problems, _moment)
    # An unresolved GPU is refused below, with all that is wrong.
    return Facts(
        gpus.specs,
        np.nan_to_num(gpu).astype(np.intp),
        _named("software", columns, every, problems, Name),
        _named("source", columns, every, problems, Name),
        _named("kernel.name", columns, every, problems, Symbol, required=False),
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


def _moment(word: str) -> float:
    """Microseconds since 1970 of a time as ISO 8601 writes it."""
    wanted = f"between {EARLIEST:%Y} and now, with a time zone"
    try:
        when = datetime.fromisoformat(word)
    except ValueError as error:
        raise ValueError(f"invalid time {word[:50]!r}; {wanted}") from error
    if when.tzinfo is None or not EARLIEST <= when <= datetime.now(UTC) + timedelta(days=1):
        raise ValueError(wanted)
    return float((when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


def _numbers(
    name: str,
    columns: Mapping[str, Column],
    every: Ints,
    problems: Problems,
    number: Callable[[str], float],
    *,
    required: bool = False,
) -> Floats:
    """Numbers behind words, float64 [n], NaN where there is none."""
    column = columns.get(name)
    if column is not None and not isinstance(column, Words):
        problems.refuse_field(name, "must be a word")
    if column is None:
        found = np.full(len(every), np.nan)
        if required:
            problems.add(name, "required field is missing")
        return found
    numbers = spoken(name, column, number, None if column.single else every, problems)
    if required and (column.codes < 0).any():
        problems.add(name, "required field is missing", np.flatnonzero(column.codes < 0))
    return np.broadcast_to(numbers, len(every))


def _named(
    name: str, columns: Mapping[str, Column], every: Ints, problems: Problems, kind: Any, *, required: bool = True
) -> Words:
    """A column of names: `words` without repetition."""
    codes: dict[str, int] = {}

    def number(word: str) -> float:
        try:
            msgspec.convert(word, kind)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        return float(codes.setdefault(word, len(codes)))

    numbers = _numbers(name, columns, every, problems, number, required=required)
    return Words(tuple(codes), np.where(np.isnan(numbers), -1, np.nan_to_num(numbers)).astype(np.intp), False)


def _extents(name: str, columns: Mapping[str, Column], every: Ints, problems: Problems) -> Floats:
    """Sizes of a grid or block, float64 [3, n], NaN where there are none."""
    column = columns.get(name)
    if isinstance(column, Numbers):
        return np.broadcast_to(column.values, (len(every), 3)).T
    sizes: list[tuple[float, ...]] = []

    def number(word: str) -> float:
        parts = word.replace(",", "x").split("x")
        wanted = "one to three whole numbers as 64x64x1, each at least 1"
        if len(parts) > 3 or not all(part.strip().isdecimal() and 1 <= int(part) <= _LARGEST_EXTENT for part in parts):
            raise ValueError(f"{word[:40]!r} is not {wanted}")
        sizes.append((*map(float, parts), 1.0, 1.0)[:3])
        return float(len(sizes) - 1)

    codes = _numbers(name, columns, every, problems, number)
    table = np.array([*sizes, (np.nan, np.nan, np.nan)])
    return table[np.where(np.isnan(codes), len(sizes), np.nan_to_num(codes)).astype(np.intp)].T


@dataclass(slots=True)
class _Limits:
    """Rows under the hardware limit."""

    errors: list[FieldError]
    wrong: int
    reasons: Counter[str]


def _possible(family: Family, facts: Facts, gpus: UploadGpus, sent: OperatorColumns, limits: _Limits) -> Ints:
    """The rows of a family, int [m], that are not under the hardware limit; the others are noted.

    A dtype that the data sheet lacks is shown to run by the very measurement.
    """
    latency_s, gpu = facts.latency_s[family.rows], facts.gpu[family.rows]
    limit = hardware_limit(family.table, gpus.table(), np.arange(len(family.rows)), gpu)
    low = latency_s < (1 - LIMIT_TOLERANCE) * limit.latency_s
    wrong = np.flatnonzero(low)
    limits.wrong += len(wrong)
    for j, count in zip(*np.unique(gpu[wrong], return_counts=True), strict=True):
        reason = f"{family.form.op.name} on {gpus.specs[j].id}: latency more than 5 % under the hardware limit"
        limits.reasons[reason] += int(count)
    for k in wrong[: MAX_REPORTED - len(limits.errors)].tolist():
        msg = (
            f"{latency_s[k] * 1e3:.6g} ms is more than {LIMIT_TOLERANCE:.0%} under the hardware limit of"
            f" {gpus.specs[gpu[k]].id}, {limit.latency_s[k] * 1e3:.6g} ms ({BOUNDS[limit.bound[k]]}):"
            " check the time and the dimensions"
        )
        limits.errors.append(FieldError((int(sent.position[family.rows[k]]), "latency_ms"), msg))
    return np.flatnonzero(~low)
