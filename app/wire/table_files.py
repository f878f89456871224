"""Decode Arrow streams and Parquet files to tables of bounded size, those of strangers in a process of their own.

Text stays in dictionaries, so that a long text of many rows is there once. A file's own figures (rows, sizes and
encodings) may lie, and compression and dictionaries make gigabytes of a kilobyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.errors import Malformed, TooLarge
from app.runtime.apart import Apart

ARROW, PARQUET = "Arrow stream", "Parquet file"
# Most bytes of a decoded table, a text counted in each row that has it: a million rows of 33 figures.
MAX_TABLE_BYTES = 1 << 28
# Most bytes of a file's description of its columns and row groups, which is read here: 20,000 columns in some 30 ms.
MAX_SCHEMA_BYTES = 1 << 22
# Errors of a file that cannot be decoded.
DAMAGED = (pa.ArrowException, OSError, ValueError, KeyError)

# (body, ARROW or PARQUET, most rows) -> table. Raises TooLarge, or one of DAMAGED.
TableReader: TypeAlias = Callable[[bytes, str, int], pa.Table]


def read_schema(body: bytes, form: str) -> pa.Schema:
    """Return the columns of a file, which is not decoded. Raises TooLarge, or one of DAMAGED."""
    if (size := _schema_bytes(body, form)) > MAX_SCHEMA_BYTES:
        raise TooLarge(
            f"The {form} describes its columns and row groups in {size:,} bytes; at most {MAX_SCHEMA_BYTES:,}:"
            " send fewer columns."
        )
    if form == PARQUET:
        return pq.ParquetFile(pa.BufferReader(body)).schema_arrow
    with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
        return reader.schema


def _schema_bytes(body: bytes, form: str) -> int:
    """Return the bytes of a schema: before the last magic, or the first message; 0 of damaged files."""
    if form == PARQUET:
        word = body[-8:-4] if body.endswith(b"PAR1") else b""
    else:
        word = body[4:8] if body.startswith(b"\xff\xff\xff\xff") else body[:4]
    size = int.from_bytes(word, "little")
    return size if size < len(body) else 0


def read_table(body: bytes, form: str, max_rows: int) -> pa.Table:
    """Return the table of a file. Raises TooLarge, or one of DAMAGED."""
    table = _read_parquet(body, max_rows) if form == PARQUET else _read_arrow(body, max_rows)
    _check_bytes(sum(_decoded_bytes(column) for column in table.columns), form)
    return table


def _read_parquet(body: bytes, max_rows: int) -> pa.Table:
    schema = pq.ParquetFile(pa.BufferReader(body)).schema_arrow
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    source = pq.ParquetFile(pa.BufferReader(body), read_dictionary=texts)
    metadata: Any = source.metadata
    _check_rows(metadata.num_rows, PARQUET, max_rows)
    groups = range(metadata.num_row_groups)
    _check_bytes(sum(metadata.row_group(group).total_byte_size for group in groups), PARQUET)
    try:
        return source.read(use_threads=False)
    except OSError:  # texts encoded by their differences cannot be read as dictionaries
        return pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)


def _read_arrow(body: bytes, max_rows: int) -> pa.Table:
    source = pa.BufferReader(body)
    batches, rows, size = [], 0, 0
    with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        for batch in reader:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            _check_rows(rows, ARROW, max_rows)
            _check_bytes(size, ARROW)
            batch.validate(full=True)
            batches.append(batch)
        if source.tell() < len(body):
            raise ValueError(f"it ends at byte {source.tell():,} of {len(body):,}: send one stream at a time")
        return pa.Table.from_batches(batches, reader.schema)


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of a column without dictionaries."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    size = 0
    for chunk in column.chunks:
        values = chunk.dictionary
        if pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            size += pc.sum(pc.binary_length(values).cast(pa.int64()).take(chunk.indices)).as_py() or 0
        size += chunk.indices.nbytes + values.nbytes
    return size


def _check_rows(rows: int, form: str, max_rows: int) -> None:
    if rows > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are accepted at once; this {form} has {rows:,}.")


def _check_bytes(size: int, form: str) -> None:
    if size > MAX_TABLE_BYTES:
        raise TooLarge(f"The {form} unpacks to more than {MAX_TABLE_BYTES:,} bytes.")


def read_apart(apart: Apart) -> TableReader:
    """Return a reader that decodes in a process of its own. It raises Unavailable if those of others take long."""

    def read(body: bytes, form: str, max_rows: int) -> pa.Table:
        try:
            answer = apart.result("app.wire.table_files:to_stream", {"form": form, "max_rows": max_rows}, body)
        except Malformed as error:
            raise ValueError(error.detail) from None
        with pa.ipc.open_stream(answer) as reader:
            return reader.read_all()

    return read


def to_stream(body: bytes, form: str, max_rows: int) -> pa.Buffer:
    """Return the table of a file as an uncompressed Arrow stream. Raises TooLarge or Malformed."""
    try:
        table = read_table(body, form, max_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=True)) as writer:
            writer.write_table(table)
        return sink.getvalue()
    except MemoryError:
        raise
    except DAMAGED as error:
        raise Malformed(str(error)[:2000].encode(errors="replace").decode()) from None
