"""Check measured operators in columns: schema, GPU, time, launch and hardware limit of every row."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Connection

from app.coefficients import Coefficients
from app.engine.measurement_tables import MeasurementColumns, to_blocks
from app.errors import BadInput, FieldError, GpucastError, NotFound
from app.formats.own import FIGURES, ROW_COLUMNS, to_measurement_error
from app.predictors.roofline import Limit, hardware_limit, limiting_figures
from app.runtime.cancellation import check_cancelled
from app.services.measurements.parse_rows import PLAUSIBLE, UploadGpus, is_plausible
from app.store import doubtful, gpus, revision
from app.store.doubtful import Breach, Raise
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock
from app.store.session import Database
from app.tables.arrays import Floats, Ints
from app.tables.complete import revise
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import BOUNDS
from app.wire.kernel_workload import Name
from app.wire.measurement_form import OperatorCells, OperatorColumns, Symbol, columns_of
from app.wire.measurement_rows import MAX_REPORTED
from app.wire.operator_columns import Column, Family, Numbers, Problems, Words, figures, read_families, text_to_numbers
from app.wire.operator_forms import Field

_LARGEST_EXTENT = 2**31 - 1
# Tolerance for clocks above the data sheet and rounded counts; times further below the limit are wrong.
LIMIT_TOLERANCE = Coefficients("service").number("limit_tolerance")


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
    try:
        when = datetime.fromisoformat(word)
    except ValueError as error:
        raise ValueError(f"invalid time {word[:50]!r}; {PLAUSIBLE}") from error
    if not is_plausible(when):
        raise ValueError(PLAUSIBLE)
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


@dataclass(frozen=True, slots=True)
class CheckedOperators:
    """Valid rows of an upload, and the errors of the others.

    readable   whether every row is well-formed, even if impossible
    blocks     valid rows, ready to store; empty if any row is malformed
    position   int, one array per block: places of its rows in the upload
    errors     errors of wrong rows, `loc` is position and field; at most MAX_REPORTED
    wrong      number of wrong rows
    reasons    reason -> number of impossible rows
    breaches   what impossible rows say of their GPU's limits; at most MAX_REPORTED
    """

    readable: bool
    blocks: tuple[OperatorBlock, ...]
    position: tuple[Ints, ...]
    errors: tuple[FieldError, ...]
    wrong: int
    reasons: Counter[str]
    breaches: tuple[Breach, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.blocks))


def join_checks(parts: Sequence[CheckedOperators]) -> CheckedOperators:
    """Return the checks of several parts as one."""
    return CheckedOperators(
        all(part.readable for part in parts),
        tuple(block for part in parts for block in part.blocks),
        tuple(rows for part in parts for rows in part.position),
        tuple(error for part in parts for error in part.errors)[:MAX_REPORTED],
        sum(part.wrong for part in parts),
        sum((part.reasons for part in parts), Counter()),
        tuple(one for part in parts for one in part.breaches)[:MAX_REPORTED],
    )


# Rows that are checked, or compared with predictions, at once: some 10 ms.
_STEP = 10_000
# Contexts of one upload, each of which every API process holds as an object while it reads the rows.
MOST_CONTEXTS = 50_000


def check_in_turn(gpus: UploadGpus, sent: OperatorColumns | OperatorCells) -> Iterator[CheckedOperators]:
    """Yield the checks of the rows, part by part, until enough of them are malformed, or all of them in one column."""
    malformed, contexts = 0, set[Context]()
    for rows in columns_of(sent, _STEP):
        check_cancelled()
        checked = check_operators(gpus, rows)
        contexts.update(context for block in checked.blocks for context in block.contexts)
        if len(contexts) > MOST_CONTEXTS:
            raise BadInput(
                f"The rows have over {MOST_CONTEXTS:,} combinations of operator, number format, GPU, software, source"
                " and kernel.name, the most of one upload: send them in several."
            )
        yield checked
        malformed += 0 if checked.readable else len(checked.errors)
        if malformed >= MAX_REPORTED or not all(isinstance(error.loc[0], int) for error in checked.errors):
            return


def check_operators(gpus: UploadGpus, sent: OperatorColumns) -> CheckedOperators:
    """Check every row. GPUs that rows name are added to `gpus`."""
    problems = Problems((), most=MAX_REPORTED)
    try:
        measured, families = _read(gpus, sent, problems)
    except BadInput as error:
        errors = tuple(to_measurement_error(item, sent.position) for item in error.errors)
        return CheckedOperators(False, (), (), errors, len({item.loc[0] for item in errors}), Counter())
    limits = _Limits([], 0, Counter(), [])
    blocks, positions = [], []
    for family in families:
        possible = _possible(family, measured, gpus, sent, limits)
        for block, rows in to_blocks(family.form, family.table.take(possible), measured.take(family.rows[possible])):
            blocks.append(block)
            positions.append(sent.position[family.rows[possible[rows]]])
    errors = tuple(limits.errors)
    return CheckedOperators(
        True, tuple(blocks), tuple(positions), errors, limits.wrong, limits.reasons, tuple(limits.breaches)
    )


def _read(gpus: UploadGpus, sent: OperatorColumns, problems: Problems) -> tuple[MeasurementColumns, list[Family]]:
    columns, every = sent.columns, np.arange(len(sent))
    measured = read_measurement_columns(gpus, columns, every, problems)
    own = {name: column for name, column in columns.items() if name not in ROW_COLUMNS or name == "software"}
    families = read_families(own, len(sent), problems)
    for family in families:
        repeated = family.table.column("count") != 1
        if repeated.any():
            problems.add("count", "must be 1: send the time of one run", family.rows[repeated])
    problems.refuse()
    return measured, families


def under_limit(latency_s: float, limit_s: float, gpu_id: str, bound: str, checked: str) -> str:
    """Return the message about a time under the hardware limit; `bound` is what limits it, if that is known."""
    under = f"{latency_s * 1e3:.6g} ms is more than {LIMIT_TOLERANCE:.0%} under the hardware limit of {gpu_id}"
    return f"{under}, {limit_s * 1e3:.6g} ms{bound}: check {checked}"


@dataclass(slots=True)
class _Limits:
    """Rows below the hardware limit."""

    errors: list[FieldError]
    wrong: int
    reasons: Counter[str]
    breaches: list[Breach]


def _possible(
    family: Family, measured: MeasurementColumns, gpus: UploadGpus, sent: OperatorColumns, limits: _Limits
) -> Ints:
    """Return the rows of a family, int [m], that are not below the hardware limit, and record the others.

    A measurement proves that the dtype runs, even if the data sheet does not list it.
    """
    latency_s, gpu = measured.latency_s[family.rows], measured.gpu[family.rows]
    table = gpus.table()
    limit = hardware_limit(family.table, table, np.arange(len(family.rows)), gpu)
    low = latency_s < (1 - LIMIT_TOLERANCE) * limit.latency_s
    wrong = np.flatnonzero(low)
    limits.wrong += len(wrong)
    for j, count in zip(*np.unique(gpu[wrong], return_counts=True), strict=True):
        reason = f"{family.form.op.name} on {gpus.specs[j].id}: latency more than 5 % under the hardware limit"
        limits.reasons[reason] += int(count)
    listed = wrong[: MAX_REPORTED - len(limits.errors)]
    limits.breaches += find_breaches(family.table, table, gpu, latency_s, limit, listed)
    for k in listed.tolist():
        of = gpus.specs[gpu[k]].id, f" ({BOUNDS[limit.bound[k]]})"
        msg = under_limit(latency_s[k], limit.latency_s[k], *of, "the time and the dimensions")
        limits.errors.append(FieldError((int(sent.position[family.rows[k]]), "latency_ms"), msg))
    return np.flatnonzero(~low)


LOG = logging.getLogger(__name__)
_PEAK = "peak_flops."
# A busy machine registers a part of its figures; measurements that are faster by more are in a wrong unit.
MOST_RAISED = 10.0


def find_breaches(
    ops: OpTable, table: GpuTable, gpu: Ints, latency_s: Floats, limit: Limit, rows: Ints
) -> tuple[Breach, ...]:
    """Return the breaches of `rows`, whose times are under the limit; `gpu[k]` is the row of `table` of row k.

    Rows so far under it that their unit must be wrong are left out.
    """
    rows = rows[limit.latency_s[rows] <= MOST_RAISED * latency_s[rows]]
    figures = limiting_figures(ops, table, rows, gpu[rows]) if len(rows) else []
    breaches = []
    for k, figure in zip(rows.tolist(), figures, strict=True):
        gpu_id, faster = table.ids[gpu[k]], float(limit.latency_s[k] / latency_s[k])
        # The limit stands for the workload: without it, equal times of two workloads would be one measurement.
        content = f"{gpu_id} {figure} {latency_s[k]!r} {limit.latency_s[k]!r}"
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        breaches.append(Breach(digest, gpu_id, figure, faster * _figure(table, figure, int(gpu[k]))))
    return tuple(breaches)


def _figure(table: GpuTable, figure: str, gpu: int) -> float:
    name = f"peak_{figure.removeprefix(_PEAK)}_flops" if figure.startswith(_PEAK) else figure
    return float(table.column(name)[gpu])


def correct_limits(database: Database, breaches: Sequence[Breach], key_id: int | None) -> bool:
    """Record the breaches; raise the figures that they repeat, unless a data sheet states them. True if any was raised.

    Other processes notice through the revision.
    """
    with database.begin() as connection:
        revision.lock(connection)
        doubtful.record_breaches(connection, breaches, key_id)
        pairs = sorted({(one.gpu_id, one.figure) for one in breaches})
        corrected = [_corrected(connection, gpu_id, figure) for gpu_id, figure in pairs]
    return any(corrected)


def _corrected(connection: Connection, gpu_id: str, figure: str) -> bool:
    value = doubtful.repeated(connection, gpu_id, figure)
    if value is None:
        return False
    try:
        spec = gpus.get_spec(connection, gpu_id)
        if spec.provenance.get(figure, "datasheet") == "datasheet":
            return False
        before, provenance = _value(spec, figure), spec.provenance[figure]
        gpus.update_spec(connection, _changed(spec, figure, value, "measured"))
    except (BadInput, NotFound) as error:  # a GPU outside the catalogue, or a figure that nothing could have
        LOG.warning("%s of %s stays as it is: %s", figure, gpu_id, error.detail)
        return False
    LOG.warning("%s of %s is %.4g now: repeated measurements were beyond the limit", figure, gpu_id, value)
    doubtful.record_raise(connection, Raise(gpu_id, figure, value, before, provenance))
    doubtful.forget(connection, gpu_id, figure)
    return True


def withdraw_limits(connection: Connection, key_id: int, gpu_id: str | None = None) -> None:
    """Give figures that measurements of a key raised their earlier values, on one GPU or on all.

    What others measured raises them again. A figure that was changed otherwise since then stays.
    """
    doubtful.withdraw(connection, key_id, gpu_id)
    for raised in doubtful.take_back(connection, key_id, gpu_id):
        try:
            spec = gpus.get_spec(connection, raised.gpu_id)
            if _value(spec, raised.figure) == raised.value:
                gpus.update_spec(connection, _changed(spec, raised.figure, raised.before, raised.provenance))
        except (BadInput, NotFound) as error:  # a GPU that was removed, or whose other figures changed
            LOG.warning("%s of %s stays as it is: %s", raised.figure, raised.gpu_id, error.detail)


def _value(spec: GpuSpec, figure: str) -> float:
    value = spec.peak_flops[figure.removeprefix(_PEAK)] if figure.startswith(_PEAK) else getattr(spec, figure)
    return float(value)


def _changed(spec: GpuSpec, figure: str, value: float, provenance: str) -> GpuSpec:
    changes: dict[str, Any] = {figure: value}
    if figure.startswith(_PEAK):
        changes = {"peak_flops": {figure.removeprefix(_PEAK): value}}
    return revise(spec, {**changes, "provenance": {figure: provenance}})
