"""What importers of measured operators share: columns of a Parquet file under the API's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError, Malformed
from app.services.operators.batch_files import is_numbers, is_words, numbers_of, words_of
from app.wire.operators.operator_columns import Numbers, Words


def read_table(
    path: Path,
    words: Sequence[str],
    numbers: Sequence[str],
    *,
    optional: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> pa.Table:
    """The file's rows; unknown and missing columns, and those of the wrong type, are refused by name.

    Columns of words or numbers that are `optional` may be missing: they come back empty.
    """
    try:
        schema = pq.read_schema(path)
        table = pq.read_table(path, columns=[name for name in schema.names if name not in unused])
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} is not a Parquet file: {str(error)[:200]}") from error
    known = {*words, *numbers, *unused}
    wrong = {name: "unknown column" for name in schema.names if name not in known}
    wrong |= {name: "this column is missing" for name in (*words, *numbers) if name not in (*schema.names, *optional)}
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if name in words and not is_words(kind):
            wrong[name] = f"a column of {kind} where words are wanted"
        elif name in numbers and not is_numbers(kind, pair=False):
            wrong[name] = f"a column of {kind} where numbers are wanted"
    if wrong:
        errors = [FieldError((path.name, name), message) for name, message in wrong.items()]
        raise BadInput(f"{path.name}: columns {', '.join(wrong)} cannot be read.", errors=errors)
    for name in optional:
        if name not in schema.names:
            table = table.append_column(name, pa.nulls(table.num_rows))
    return table


def figures(table: pa.Table, name: str) -> Numbers:
    """A column of numbers."""
    return numbers_of(name, table[name])


def words(table: pa.Table, name: str, spelled: Mapping[str, str] | Callable[[str], str] | None = None) -> Words:
    """A column of words, in the API's spelling where `spelled` has another one."""
    found = words_of(table[name])
    if spelled is None:
        return found
    if callable(spelled):
        return found._replace(words=tuple(map(spelled, found.words)))
    return found._replace(words=tuple(spelled.get(word, word) for word in found.words))


def one(word: str) -> Words:
    """The same word in every row."""
    return Words((word,), np.zeros(1, dtype=np.intp), True)


def joined(first: Words, second: Words) -> Words:
    """Two columns of words as one: `a-b`, and `a` alone where there is no b."""
    width = len(second.words) + 1
    pairs, codes = np.unique(first.codes * width + second.codes + 1, return_inverse=True)
    told = [divmod(int(pair), width) for pair in pairs]
    names = [first.words[a] + (f"-{second.words[b - 1]}" if b else "") for a, b in told]
    return Words(tuple(names), codes.ravel(), False)


def stacked(table: pa.Table, names: Sequence[str]) -> Numbers:
    """Columns side by side, [n, len(names)]; absent where one of them is."""
    values = np.column_stack([figures(table, name).values for name in names])
    return Numbers(values, np.isnan(values.sum(axis=1)), False)
