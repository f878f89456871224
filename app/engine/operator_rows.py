"""Convert the operators of a request to one table of distinct rows, with repeat counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from app.errors import MAX_ERRORS, BadInput, FieldError
from app.ops import MIXED_FIELDS, OPS
from app.predictors.operator_digests import digests, first_seen
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_CODE, OpTable
from app.wire.decoding import summary
from app.wire.operator_forms import FORM_BY_TYPE, REQUEST_NAMES, Form

Path = tuple[str | int, ...]

_LOC = ("workload", "operators")


class Distinct(NamedTuple):
    """Distinct operator rows, and the index of every requested row among them.

    table    the distinct rows, each with a count of 1
    row      int [n], row of `table` for each requested operator
    repeats  float64 [n], how often that operator runs
    """

    table: OpTable
    row: Ints
    repeats: Floats


def read_operators(operators: Sequence[Any]) -> Distinct:
    """Return operators (structs of ROW_FORMS) as a table. Raises BadInput that names wrong rows and fields."""
    kind, dtype = np.empty(len(operators), dtype=np.intp), np.empty(len(operators), dtype=np.intp)
    figures: dict[int, list[list[float]]] = {}
    places: dict[int, list[int]] = {}
    columns: dict[int, list[int]] = {}
    errors: list[FieldError] = []
    for k, operator in enumerate(operators):
        form = FORM_BY_TYPE[type(operator)]
        kind[k], dtype[k] = form.code, DTYPE_CODE[operator.dtype]
        figures.setdefault(form.code, []).append(_figures(form, operator, k, errors))
        places.setdefault(form.code, []).append(k)
        columns.setdefault(form.code, [MIXED_FIELDS[name] for name in form.op.fields])
    _refuse(errors)
    dims = np.full((len(MIXED_FIELDS), len(operators)), np.nan)
    for code, rows in figures.items():
        dims[np.ix_(columns[code], places[code])] = np.array(rows).T
    table = OpTable(kind, dtype, np.zeros(len(operators), dtype=np.intp), MIXED_FIELDS, dims)
    _check(table, places)
    return deduplicate(table)


def _figures(form: Form, operator: Any, k: int, errors: list[FieldError]) -> list[float]:
    """Return one row in the order of its operator's columns."""
    row: list[float] = []
    for field, value in zip(form.fields, structs.astuple(operator), strict=False):  # the dtype comes last
        if value is None:
            row += [field.dim.default] * len(field.dim.columns)  # type: ignore[list-item]
        elif isinstance(value, str):
            try:
                numbers = field.number(value)  # type: ignore[misc]
                row += numbers if isinstance(numbers, tuple) else (numbers,)
            except ValueError as error:
                errors.append(FieldError((*_LOC, k, field.name), str(error)))
                row += [np.nan] * len(field.dim.columns)
        elif isinstance(value, list):
            row += value
        else:
            row += [value] * len(field.dim.columns)
    return row


def _check(table: OpTable, places: dict[int, list[int]]) -> None:
    """Check the rules between fields, operator by operator."""
    errors = []
    for code, rows in places.items():
        for broken in OPS[code].check(table.take(np.array(rows))):
            bad = np.flatnonzero(broken.rows)[:MAX_ERRORS]
            errors += [
                FieldError((*_LOC, rows[q], REQUEST_NAMES.get(broken.field, broken.field)), broken.message)
                for q in bad.tolist()
            ]
    _refuse(errors)


def _refuse(errors: list[FieldError]) -> None:
    if errors:
        errors.sort(key=lambda error: error.loc[len(_LOC)])
        raise BadInput(summary(errors), errors=errors[:MAX_ERRORS])


def deduplicate(table: OpTable) -> Distinct:
    """Return equal rows once, in order of first occurrence. Rows that differ only in `count` are equal."""
    first, row = first_seen(digests(table))
    once = table.take(first)
    once.dims[once.fields["count"]] = 1.0
    return Distinct(once, row, table.column("count").copy())
