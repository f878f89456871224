"""Measured operators in columns: every row checked against its form, its GPU and the hardware limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.operator_blocks import MeasurementColumns, to_blocks
from app.errors import BadInput, FieldError
from app.predictors.roofline import hardware_limit
from app.services.measurements.operator_facts import ROW_COLUMNS, facts_of
from app.services.measurements.upload_gpus import UploadGpus
from app.store.operator_blocks import OperatorBlock
from app.tables.predictions import BOUNDS
from app.wire.measurements.row_columns import MAX_REPORTED
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Family, Problems, read_families

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# Room for clocks above the data sheet's and rounded counts; a time further under the limit is wrong, or its counts are.
LIMIT_TOLERANCE = 0.05


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
        for block, rows in to_blocks(family.form, family.table.take(sound), facts.take(family.rows[sound])):
            blocks.append(block)
            positions.append(sent.position[family.rows[sound[rows]]])
    return CheckedOperators(tuple(blocks), tuple(positions), tuple(limits.errors), limits.wrong, limits.reasons)


def placed(error: FieldError, position: Ints) -> FieldError:
    """An error of a column, (name, row), as one of a measurement, (position, field)."""
    name, *row = error.loc
    field = (*str(name).split("."),) if name in ROW_COLUMNS else ("workload", name)
    return FieldError((*(int(position[int(k)]) for k in row), *field), error.msg)


def _read(gpus: UploadGpus, sent: OperatorColumns, problems: Problems) -> tuple[MeasurementColumns, list[Family]]:
    columns, every = sent.columns, np.arange(len(sent))
    facts = facts_of(gpus, columns, every, problems)
    own = {name: column for name, column in columns.items() if name not in ROW_COLUMNS or name == "software"}
    families = read_families(own, len(sent), problems)
    for family in families:
        repeated = family.table.column("count") != 1
        if repeated.any():
            problems.add("count", "must be 1: send the time of one run", family.rows[repeated])
    problems.refuse()
    return facts, families


@dataclass(slots=True)
class _Limits:
    """Rows under the hardware limit."""

    errors: list[FieldError]
    wrong: int
    reasons: Counter[str]


def _possible(
    family: Family, facts: MeasurementColumns, gpus: UploadGpus, sent: OperatorColumns, limits: _Limits
) -> Ints:
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
