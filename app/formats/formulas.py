"""Formulas over columns of a table, as the meanings of columns in `seed_data/formats` hold them.

A name is a column of numbers; `column == 'text'`, `starts(column, 'text')`, `ends` and `has` compare a column of text;
`model.heads` is a size of what the column `model` names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from app.errors import BadInput, FieldError
from app.formulas import evaluated, parsed
from app.tables.arrays import Bools, Floats
from app.wire.batch_files import to_numbers, to_words
from app.wire.operator_columns import Numbers, Words

# Column of text -> its words -> their sizes.
Sizes = Mapping[str, Mapping[str, Mapping[str, float]]]
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round": np.rint,
    "max": np.maximum,
    "coalesce": lambda first, second: np.where(np.isnan(first), second, first),
}
_OF_TEXT: dict[str, Callable[[str, str], bool]] = {
    "starts": str.startswith,
    "ends": str.endswith,
    "has": str.__contains__,
}
_KNOWN = "known"


class FileColumns:
    """Columns of a file's rows, each converted once."""

    def __init__(self, file: str, table: pa.Table, sizes: Sizes) -> None:
        self.file, self.table, self._sizes = file, table, sizes
        self._numbers: dict[str, Numbers] = {}
        self._text: dict[str, Words] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def take(self, rows: Bools) -> FileColumns:
        """Return the rows of a mask."""
        return self if rows.all() else FileColumns(self.file, self.table.filter(pa.array(rows)), self._sizes)

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers."""
        if name not in self._numbers:
            self._numbers[name] = to_numbers(name, self.table[name])
        return self._numbers[name]

    def text(self, name: str) -> Words:
        """Return a column of text."""
        if name not in self._text:
            self._text[name] = to_words(self.table[name])
        return self._text[name]

    def where(self, name: str, test: Callable[[str], bool]) -> Bools:
        """Return which cells of a column of text pass a test, bool [n]; missing ones do not."""
        column = self.text(name)
        return np.array([*map(test, column.words), False], dtype=np.bool_)[column.codes]

    def sizes(self, name: str, size: str) -> Floats:
        """Return a size of what a column of text names, float64 [n]. Raises BadInput for an unknown word."""
        column, known = self.text(name), self._sizes[name]
        words = [column.words[code] for code in np.unique(column.codes)]
        if unknown := [word for word in words if word not in known]:
            message = f"unknown {name} {unknown[0]!r}; known are {', '.join(known)}"
            raise BadInput(f"{self.file}: {message}", errors=[FieldError((self.file, name), message)])
        return np.array([known.get(word, {}).get(size, np.nan) for word in column.words], dtype=np.float64)[
            column.codes
        ]

    def value(self, formula: str) -> Any:
        """Return the value of a formula: float64 or bool [n], or a single number."""
        return evaluated(formula, self._meaning, _FUNCTIONS)

    def mask(self, formula: str) -> Bools:
        """Return the rows that a condition holds for, bool [n]."""
        return np.broadcast_to(np.asarray(self.value(formula), dtype=np.bool_), len(self))

    def field(self, formula: str) -> Numbers:
        """Return a formula's value as a column; NaN is missing."""
        if formula in self.table.column_names:
            return self.numbers(formula)
        values = np.broadcast_to(np.asarray(self.value(formula), dtype=np.float64), len(self))
        return Numbers(values, np.isnan(values), False)

    def _meaning(self, node: ast.expr) -> Any:
        """Return the value of what reads columns; None for any other node."""
        match node:
            case ast.Name(id=name):
                return self.numbers(name).values
            case ast.Attribute(value=ast.Name(id=name), attr=size):
                return self.sizes(name, size)
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=str(word))]):
                return self.where(name, word.__eq__)
            case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name), part]) if function in _OF_TEXT:
                return self.where(name, lambda word: _OF_TEXT[function](word, ast.literal_eval(part)))
            case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name)]) if function == _KNOWN:
                return self.where(name, self._sizes[name].__contains__)
        return None


def names_in(formulas: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of text, and of numbers, that formulas read, in order."""
    text, numbers = dict[str, None](), dict[str, None]()
    for node in (node for formula in formulas for node in ast.walk(parsed(formula))):
        match node:
            case ast.Attribute(value=ast.Name(id=name)):
                text[name] = None
            case ast.Compare(left=ast.Name(id=name), comparators=[ast.Constant(value=str())]):
                text[name] = None
            case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=name), *_]):
                if function in _OF_TEXT or function == _KNOWN:
                    text[name] = None
            case ast.Name(id=name):
                numbers[name] = None
    functions = {*_FUNCTIONS, *_OF_TEXT, _KNOWN}
    return [*text], [name for name in numbers if name not in text and name not in functions]
