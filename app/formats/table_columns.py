"""Read columns of Parquet files under the API's names; shared by importers of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError, Malformed
from app.wire.operators.batch_files import is_numbers, is_words, to_numbers, to_words
from app.wire.operators.operator_columns import Numbers, Words


def read_table(
    path: Path,
    text_column: Sequence[str],
    numbers: Sequence[str],
    *,
    optional: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> pa.Table:
    """Return the file's rows. Raises BadInput that names unknown, missing and wrongly typed columns.

    `optional` columns may be missing; they are returned empty.
    """
    try:
        schema = pq.read_schema(path)
        table = pq.read_table(path, columns=[name for name in schema.names if name not in unused])
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} is not a Parquet file: {str(error)[:200]}") from error
    known = {*text_column, *numbers, *unused}
    wrong = {name: "unknown column" for name in schema.names if name not in known}
    wrong |= {
        name: "this column is missing" for name in (*text_column, *numbers) if name not in (*schema.names, *optional)
    }
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if name in text_column and not is_words(kind):
            wrong[name] = f"a column of {kind} where text is expected"
        elif name in numbers and not is_numbers(kind, pair=False):
            wrong[name] = f"a column of {kind} where numbers are expected"
    if wrong:
        errors = [FieldError((path.name, name), message) for name, message in wrong.items()]
        raise BadInput(f"{path.name}: columns {', '.join(wrong)} cannot be read.", errors=errors)
    for name in optional:
        if name not in schema.names:
            table = table.append_column(name, pa.nulls(table.num_rows))
    return table


def number_column(table: pa.Table, name: str) -> Numbers:
    """Return a column of numbers."""
    return to_numbers(name, table[name])


def text_column(table: pa.Table, name: str, spelled: Mapping[str, str] | Callable[[str], str] | None = None) -> Words:
    """Return a column of text, in the API's spelling where `spelled` translates it."""
    column = to_words(table[name])
    if spelled is None:
        return column
    if callable(spelled):
        return column._replace(words=tuple(map(spelled, column.words)))
    return column._replace(words=tuple(spelled.get(word, word) for word in column.words))


def constant_column(word: str) -> Words:
    """Return a column with the same text in every row."""
    return Words((word,), np.zeros(1, dtype=np.intp), True)


def join_text(first: Words, second: Words) -> Words:
    """Return two text columns joined as `a-b`, or `a` alone where b is missing."""
    width = len(second.words) + 1
    pairs, codes = np.unique(first.codes * width + second.codes + 1, return_inverse=True)
    parts = [divmod(int(pair), width) for pair in pairs]
    names = [first.words[a] + (f"-{second.words[b - 1]}" if b else "") for a, b in parts]
    return Words(tuple(names), codes.ravel(), False)


def stack_numbers(table: pa.Table, names: Sequence[str]) -> Numbers:
    """Return columns side by side, [n, len(names)]; missing where any of them is."""
    values = np.column_stack([number_column(table, name).values for name in names])
    return Numbers(values, np.isnan(values.sum(axis=1)), False)
