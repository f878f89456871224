"""Check measured operators in columns: schema, GPU and hardware limit of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.engine.operator_blocks import MeasurementColumns, to_blocks
from app.errors import BadInput, FieldError
from app.formats.operator_uploads import ROW_COLUMNS, to_measurement_error
from app.predictors.roofline import hardware_limit
from app.services.measurements.limits import find_breaches
from app.services.measurements.measurement_columns import read_measurement_columns
from app.services.measurements.upload_gpus import UploadGpus
from app.store.limit_breaches import Breach
from app.store.operator_blocks import OperatorBlock
from app.tables.arrays import Ints
from app.tables.predictions import BOUNDS
from app.wire.measurements.row_columns import MAX_REPORTED
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Family, Problems, read_families

# Tolerance for clocks above the data sheet and rounded counts; times further below the limit are wrong.
LIMIT_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class CheckedOperators:
    """Valid rows of an upload, and the errors of the others.

    blocks     valid rows, ready to store; empty if any row is malformed
    position   int, one array per block: places of its rows in the upload
    errors     errors of wrong rows, `loc` is position and field; at most MAX_REPORTED
    wrong      number of wrong rows
    reasons    reason -> number of impossible rows
    breaches   what impossible rows say of their GPU's limits; at most MAX_REPORTED
    """

    blocks: tuple[OperatorBlock, ...]
    position: tuple[Ints, ...]
    errors: tuple[FieldError, ...]
    wrong: int
    reasons: Counter[str]
    breaches: tuple[Breach, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def readable(self) -> bool:
        """Whether every row is well-formed, even if impossible."""
        return not self.errors or bool(self.reasons)


def join_checks(parts: Sequence[CheckedOperators]) -> CheckedOperators:
    """Return the checks of several parts as one."""
    return CheckedOperators(
        tuple(block for part in parts for block in part.blocks),
        tuple(rows for part in parts for rows in part.position),
        tuple(error for part in parts for error in part.errors),
        sum(part.wrong for part in parts),
        sum((part.reasons for part in parts), Counter()),
        tuple(one for part in parts for one in part.breaches),
    )


def check_operators(gpus: UploadGpus, sent: OperatorColumns) -> CheckedOperators:
    """Check every row. GPUs that rows name are added to `gpus`."""
    problems = Problems((), most=MAX_REPORTED)
    try:
        measured, families = _read(gpus, sent, problems)
    except BadInput as error:
        errors = tuple(to_measurement_error(item, sent.position) for item in error.errors)
        return CheckedOperators((), (), errors, len({item.loc[0] for item in errors}), Counter())
    limits = _Limits([], 0, Counter(), [])
    blocks, positions = [], []
    for family in families:
        possible = _possible(family, measured, gpus, sent, limits)
        for block, rows in to_blocks(family.form, family.table.take(possible), measured.take(family.rows[possible])):
            blocks.append(block)
            positions.append(sent.position[family.rows[possible[rows]]])
    found = (tuple(limits.errors), limits.wrong, limits.reasons, tuple(limits.breaches))
    return CheckedOperators(tuple(blocks), tuple(positions), *found)


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
        msg = (
            f"{latency_s[k] * 1e3:.6g} ms is more than {LIMIT_TOLERANCE:.0%} under the hardware limit of"
            f" {gpus.specs[gpu[k]].id}, {limit.latency_s[k] * 1e3:.6g} ms ({BOUNDS[limit.bound[k]]}):"
            " check the time and the dimensions"
        )
        limits.errors.append(FieldError((int(sent.position[family.rows[k]]), "latency_ms"), msg))
    return np.flatnonzero(~low)
