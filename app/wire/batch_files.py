"""Read and write operator columns as Arrow streams and Parquet, without a Python object per cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import Malformed
from app.tables.arrays import Floats, Ints
from app.tables.predictions import BOUNDS
from app.wire.operator_columns import Column, Numbers, Problems, Words
from app.wire.operator_forms import COLUMN_NAMES, PAIR_FIELDS, WORD_FIELDS
from app.wire.table_files import ARROW, DAMAGED, PARQUET, TableReader, read_schema

# Schema metadata key of the predictors and versions that answered, in JSON.
ANSWERED_BY = b"gpucast"


# Polars writes string views by default.
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


class File(NamedTuple):
    """A column format: `read` parses a body of limited rows; `write` takes times [3, n], bounds and metadata."""

    read: Callable[[bytes, int, TableReader], dict[str, Column]]
    write: Callable[[Floats, Ints, bytes], bytes]


def _read(form: str, body: bytes, max_rows: int, read_table: TableReader) -> dict[str, Column]:
    try:
        _check_schema(read_schema(body, form))
        return _columns(read_table(body, form, max_rows))
    except DAMAGED as error:
        raise Malformed(f"The {form} cannot be read: {str(error)[:200]}") from error


def _check_schema(schema: pa.Schema) -> None:
    """Raise BadInput for unknown, repeated and wrongly typed columns, before any cell is read."""
    problems = Problems(())
    seen = set[str]()
    for field in schema:
        name = field.name
        if name in seen:
            problems.add(name, "appears twice")
        elif name not in COLUMN_NAMES:
            problems.add(name, f"unknown column; known are {', '.join(COLUMN_NAMES)}")
        elif name in WORD_FIELDS and not is_words(field.type):
            problems.add(name, f"a column of {field.type} where text is expected")
        elif name not in WORD_FIELDS and not is_numbers(field.type, pair=name in PAIR_FIELDS):
            problems.add(name, f"a column of {field.type} where numbers are expected")
        seen.add(name)
    problems.refuse()


def is_words(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_null(kind) or any(test(kind) for test in _TEXTS)


def is_numbers(kind: pa.DataType, *, pair: bool) -> bool:
    """Return whether a column of this type holds numbers, or with `pair` lists of them."""
    if (pair and _is_list(kind)) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _columns(table: pa.Table) -> dict[str, Column]:
    return {
        name: to_words(column) if name in WORD_FIELDS else to_numbers(name, column)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def to_words(column: pa.ChunkedArray) -> Words:
    """Return a column of text, dictionary-encoded or not."""
    if pa.types.is_null(column.type):
        return Words((), np.full(len(column), -1), False)
    if pa.types.is_string_view(column.type):  # string_view has no dictionary_encode
        column = column.cast(pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no rows
        return Words((), np.empty(0, dtype=np.intp), False)
    if array.dictionary.null_count:  # a cell may be null by its index, or by the entry that the index refers to
        return to_words(pa.chunked_array([array.dictionary_decode()]))
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
    words = array.dictionary
    if len(words) > len(codes):  # of some rows of many
        used = np.unique(codes[codes >= 0])
        codes = np.where(codes < 0, -1, np.searchsorted(used, codes))
        words = words.take(pa.array(used))
    return Words(tuple(words.to_pylist()), codes, False)


def to_numbers(name: str, column: pa.ChunkedArray) -> Numbers:
    """Return a column of numbers or pairs, dictionary-encoded or not."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    absent = column.is_null().to_numpy()
    if _is_list(column.type):
        return Numbers(_pairs(name, column), absent, False)
    return Numbers(_floats(column), absent, False)


def _floats(column: pa.ChunkedArray) -> Floats:
    """Return cells as float64, NaN where missing."""
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy()
    return values


def _pairs(name: str, column: pa.ChunkedArray) -> Floats:
    """Return [height, width] of every row, float64 [n, 2], NaN where missing."""
    lengths = pa.compute.list_value_length(column).fill_null(2).to_numpy()
    wrong = np.flatnonzero(lengths != 2)
    if len(wrong):
        problems = Problems(())
        problems.add(name, "must be one number, or height and width", wrong)
        problems.refuse()
    flat = _floats(pa.compute.list_flatten(column.drop_null()))
    values = np.full((len(column), 2), np.nan)
    values[~column.is_null().to_numpy()] = flat.reshape(-1, 2)
    return values


def _table(times_ms: Floats, bound: Ints, answered_by: bytes) -> pa.Table:
    names = pa.DictionaryArray.from_arrays(pa.array(bound.astype(np.int8)), pa.array(BOUNDS))
    columns = [*(pa.array(column) for column in times_ms), names]
    table = pa.table(columns, names=["latency_ms", "low_ms", "high_ms", "bound"])
    return table.replace_schema_metadata({ANSWERED_BY: answered_by})


def _write_arrow(times_ms: Floats, bound: Ints, answered_by: bytes) -> bytes:
    table = _table(times_ms, bound, answered_by)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return _to_bytes(sink)


def _write_parquet(times_ms: Floats, bound: Ints, answered_by: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(_table(times_ms, bound, answered_by), sink)
    return _to_bytes(sink)


def _to_bytes(sink: pa.BufferOutputStream) -> bytes:
    written: bytes = sink.getvalue().to_pybytes()
    return written


_PARQUET = File(partial(_read, PARQUET), _write_parquet)
FILES: dict[str, File] = {
    "application/vnd.apache.arrow.stream": File(partial(_read, ARROW), _write_arrow),
    "application/vnd.apache.parquet": _PARQUET,
    "application/x-parquet": _PARQUET,
}
