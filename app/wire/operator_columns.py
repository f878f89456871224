"""Validate operator rows in columns as arrays, and split them into one table per operator.

Errors name the field and the row; a single cell for all rows has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np

from app.errors import MAX_ERRORS, BadInput, FieldError, TooLarge
from app.ops.figures import Broken
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import DTYPE_CODE, OpTable
from app.wire.names import own_dtype
from app.wire.operator_forms import FORMS, REQUEST_NAMES, Field, Form, unknown_op

Path = tuple[str | int, ...]


class Numbers(NamedTuple):
    """A column of numbers.

    values  float64 [m], or [m, 2] for pairs; m is 1 for a single cell for all rows
    absent  bool [m], true where the cell is missing
    single  whether one cell holds for all rows
    """

    values: Floats
    absent: Bools
    single: bool


class Words(NamedTuple):
    """A column of text: `codes` int [m] into `words`, -1 where the cell is missing; `single` as in Numbers."""

    words: tuple[str, ...]
    codes: Ints
    single: bool


Column: TypeAlias = Numbers | Words


def slice_cells(column: Column, rows: slice) -> Column:
    """Return consecutive cells; a single cell for all rows is returned as it is."""
    if column.single:
        return column
    if isinstance(column, Words):
        return column._replace(codes=column.codes[rows])
    return column._replace(values=column.values[rows], absent=column.absent[rows])


class Family(NamedTuple):
    """Rows of one operator: their table, and their places among all rows, int [m]."""

    form: Form
    table: OpTable
    rows: Ints


class Problems:
    """Errors found in columns, at most `most`; `loc` is the path of the object that holds the columns."""

    def __init__(self, loc: Path, *, most: int = MAX_ERRORS) -> None:
        self._loc = loc
        self._most = most
        self._errors: list[FieldError] = []

    def add(self, name: str, message: str, rows: Ints | None = None) -> None:
        """Add an error of a column, or of its cells at `rows`."""
        places: Sequence[Path] = [(name,)] if rows is None else [(name, row) for row in rows[: self._most].tolist()]
        self._errors += [FieldError((*self._loc, *place), message) for place in places]

    def refuse(self) -> None:
        """Raise BadInput if there are errors."""
        if self._errors:
            raise BadInput.of(self._errors, most=self._most)

    @property
    def is_full(self) -> bool:
        """Whether no further error would be reported."""
        return len(self._errors) >= self._most

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """The errors so far."""
        return tuple(self._errors[: self._most])

    def refuse_field(self, name: str, message: str) -> NoReturn:
        """Raise BadInput with the errors so far and this one."""
        self.add(name, message)
        raise BadInput.of(self._errors, most=self._most)


def row_count(columns: Mapping[str, Column], problems: Problems, *, max_rows: int) -> int:
    """Return the number of rows, 1 if all are single cells. Raises BadInput for unequal lengths, or TooLarge."""
    lengths = {name: _length(column) for name, column in columns.items() if not column.single}
    n = max(lengths.values(), default=1)
    if n > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are taken at once; these columns have {n:,}.")
    longest = next((name for name, length in lengths.items() if length == n), "")
    for name, length in lengths.items():
        if length != n:
            problems.add(name, f"has {length:,} rows where {longest} has {n:,}")
        elif n == 0:
            problems.add(name, "has no rows")
    problems.refuse()
    return n


def _length(column: Column) -> int:
    return len(column.codes if isinstance(column, Words) else column.values)


def read_families(columns: Mapping[str, Column], n: int, problems: Problems) -> list[Family]:
    """Return one table per operator. `columns` have `op`, `dtype` and fields of the operators."""
    ops = columns.get("op")
    if not isinstance(ops, Words):
        problems.refuse_field("op", "required: the operator, as text" if ops is None else "must be text")
    every = np.arange(n)
    codes = np.broadcast_to(text_to_numbers("op", ops, _op_code, None if ops.single else every, problems), n)
    problems.refuse()
    if np.isnan(codes).any():
        problems.add("op", "required: the operator, as text", np.flatnonzero(np.isnan(codes)))
    problems.refuse()
    present = np.unique(codes).tolist()
    families = []
    for code in present:
        rows = every if len(present) == 1 else np.flatnonzero(codes == code)
        families.append(_family(_FORM_BY_CODE[int(code)], columns, rows, problems))
    problems.refuse()
    return families


_FORM_BY_CODE = {form.code: form for form in FORMS.values()}


def _op_code(word: str) -> float:
    if word not in FORMS:
        raise ValueError(unknown_op(word))
    return float(FORMS[word].code)


def text_to_numbers(
    name: str,
    column: Words,
    number: Callable[[str], float | tuple[float, ...]],
    rows: Ints | None,
    problems: Problems,
    columns: int = 1,
) -> Floats:
    """Return the numbers of the words at `rows` (None: of the single cell), float64; NaN where the cell is missing.

    `number` raises ValueError for an unknown word. It returns one number, or as many as there are `columns`: then the
    answer is [n, columns].
    """
    codes = column.codes if rows is None else column.codes[rows]
    size = len(column.words) + 1  # index -1 picks the last entry
    numbers = np.full(size if columns == 1 else (size, columns), np.nan)
    for code in np.unique(codes[codes >= 0]).tolist():
        if problems.is_full:  # each word may take milliseconds
            break
        try:
            numbers[code] = number(column.words[code])
        except ValueError as error:
            problems.add(name, str(error), None if rows is None else rows[codes == code])
    return numbers[codes]


def _family(form: Form, columns: Mapping[str, Column], rows: Ints, problems: Problems) -> Family:
    """Return the checked rows of one operator."""
    _refuse_foreign(form, columns, rows, problems)
    dims, first = np.empty((len(form.op.fields), len(rows))), 0
    for field in form.fields:
        width = len(field.dim.columns)
        dims[first : first + width] = figures(form.op.name, field, columns.get(field.name), rows, problems)
        first += width
    dtype = _dtypes(form, columns.get("dtype"), rows, problems)
    problems.refuse()
    table = OpTable(np.full(len(rows), form.code), dtype, np.zeros(len(rows), dtype=np.intp), form.op.fields, dims)
    for broken in form.op.broken(table):
        if broken.rows.any():
            _blame(broken, columns, rows, problems)
    return Family(form, table, rows)


def _blame(broken: Broken, columns: Mapping[str, Column], rows: Ints, problems: Problems) -> None:
    """Report the rows that break a rule between fields; if one cell holds for all rows, the message names the row."""
    name, bad = REQUEST_NAMES.get(broken.field, broken.field), rows[broken.rows]
    column = columns.get(name)
    if column is not None and not column.single:
        problems.add(name, broken.message, bad)
    else:
        problems.add(name, broken.message if len(rows) == 1 else f"{broken.message}: row {bad[0]}")


def _refuse_foreign(form: Form, columns: Mapping[str, Column], rows: Ints, problems: Problems) -> None:
    """Report fields of other operators that are not empty in these rows."""
    known = {"op", "dtype", *(field.name for field in form.fields)}
    for name in columns.keys() - known:
        column = columns[name]
        cells = column.codes >= 0 if isinstance(column, Words) else ~column.absent
        message = f"is not a field of {form.op.name}; its fields are {form.names}"
        if column.single:
            problems.add(name, message)
        elif cells[rows].any():
            problems.add(name, message, rows[cells[rows]])


def figures(owner: str, field: Field, column: Column | None, rows: Ints, problems: Problems) -> Floats:
    """Return the checked columns of one field, float64 [1 or 2, rows or 1]; `owner` names its operator."""
    missing = f"required for {owner}: {field.help}"
    default = np.nan if field.dim.default is None else field.dim.default
    nothing = np.full((1, 1), default)
    if column is None:
        if field.required:
            problems.add(field.name, missing)
        return nothing
    at = None if column.single else rows
    if isinstance(column, Words):
        if field.number is None:
            problems.add(field.name, "must be a number")
            return nothing
        values = text_to_numbers(field.name, column, field.number, at, problems, len(field.dim.columns))
        absent = (column.codes if at is None else column.codes[at]) < 0
    else:
        if field.number is not None:
            problems.add(field.name, "must be text")
            return nothing
        values = column.values if at is None else column.values[at]
        absent = column.absent if at is None else column.absent[at]
        _refuse_numbers(field, values, absent, at, problems)
    if absent.any():
        if field.required:
            problems.add(field.name, missing, None if at is None else at[absent])
        values = np.where(absent if values.ndim == 1 else absent[:, None], default, values)
    return values.T if values.ndim > 1 else values[None]


def _refuse_numbers(field: Field, values: Floats, absent: Bools, rows: Ints | None, problems: Problems) -> None:
    """Report numbers that are not finite, out of range, fractional for integer fields, or unexpected pairs."""
    dim = field.dim
    if values.ndim > 1 and not dim.pair:
        problems.add(field.name, "must be one number a row, not a pair")
        return
    good = (values >= dim.least) & (values <= dim.most)  # False for NaN
    if dim.whole:
        good &= values == np.floor(values)
    bad = ~(good if values.ndim == 1 else good.all(axis=1)) & ~absent
    if bad.any():
        expected = f"must be a {'whole ' * dim.whole}number from {dim.least:.15g} to {dim.most:.15g}"
        for k in np.flatnonzero(bad)[:MAX_ERRORS].tolist():
            got = ", ".join(f"{value:.17g}" for value in np.ravel(values[k]).tolist())
            problems.add(field.name, f"{expected}, got {got}", None if rows is None else rows[k : k + 1])


def _dtypes(form: Form, column: Column | None, rows: Ints, problems: Problems) -> Ints:
    """Return codes into DTYPES, int [rows]."""
    valid = ", ".join(form.op.dtypes)
    default = np.nan if form.default_dtype is None else DTYPE_CODE[form.default_dtype]

    def number(word: str) -> float:
        own = own_dtype(word)
        if own not in form.op.dtypes:
            raise ValueError(f"invalid value {word[:100]!r}; valid for {form.op.name}: {valid}")
        return float(DTYPE_CODE[own])

    if isinstance(column, Words):
        codes = text_to_numbers("dtype", column, number, None if column.single else rows, problems)
    else:
        if column is not None:
            problems.add("dtype", f"must be text: {valid}")
        codes = np.full(1, np.nan)
    problems.refuse()
    codes = np.where(np.isnan(codes), default, codes)
    if np.isnan(codes).any():
        each = column is not None and not column.single
        problems.add("dtype", f"required: {valid}", rows[np.isnan(codes)] if each else None)
        problems.refuse()
    return np.broadcast_to(codes, len(rows)).astype(np.intp)
