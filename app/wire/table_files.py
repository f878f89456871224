"""Decode Arrow streams and Parquet files to tables of bounded size, those of strangers in a process of their own.

Text stays in dictionaries, so that a long text of many rows is there once. A file's own figures (rows, sizes and
encodings) may lie, and compression and dictionaries make gigabytes of a kilobyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

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
# Rows of a Parquet file that are decoded at once. Each batch has all words of a text.
_BATCH = 1 << 16
# Errors of a file that cannot be decoded.
DAMAGED = (pa.ArrowException, OSError, ValueError, KeyError)

T = TypeVar("T")
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
    return _read(body, form, max_rows, lambda schema, batches: pa.Table.from_batches([*batches], schema))


def _read(body: bytes, form: str, max_rows: int, take: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T]) -> T:
    """Return what `take` makes of a file's schema and batches. Raises TooLarge, or one of DAMAGED."""
    if form == PARQUET:
        try:
            return take(*_read_parquet(body, max_rows, as_words=True))
        except OSError:  # texts encoded by their differences cannot be read as dictionaries
            return take(*_read_parquet(body, max_rows, as_words=False))
    source = pa.BufferReader(body)
    with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        return take(reader.schema, _within_limits(_read_arrow(source, reader), ARROW, max_rows))


def _read_parquet(body: bytes, max_rows: int, *, as_words: bool) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    schema = pq.ParquetFile(pa.BufferReader(body)).schema_arrow
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    source = pq.ParquetFile(pa.BufferReader(body), read_dictionary=texts if as_words else [])
    metadata: Any = source.metadata
    check_rows(metadata.num_rows, PARQUET, max_rows)
    groups = range(metadata.num_row_groups)
    _check_bytes(sum(metadata.row_group(group).total_byte_size for group in groups), PARQUET)
    batches = source.iter_batches(batch_size=_BATCH, use_threads=False)
    return source.schema_arrow, _within_limits(batches, PARQUET, max_rows)


def _read_arrow(source: pa.BufferReader, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        _check_bytes(batch.nbytes, ARROW)
        batch.validate(full=True)
        yield batch
    if source.tell() < source.size():
        raise ValueError(f"it ends at byte {source.tell():,} of {source.size():,}: send one stream at a time")


def _within_limits(batches: Iterable[pa.RecordBatch], form: str, max_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Raises TooLarge once they have too many rows, or bytes without dictionaries."""
    rows = size = 0
    words: dict[int, pa.Array] = {}
    for batch in batches:
        rows += batch.num_rows
        check_rows(rows, form, max_rows)
        for k, column in enumerate(batch.columns):
            size += _decoded_bytes(column)
            if pa.types.is_dictionary(column.type) and not (k in words and column.dictionary.equals(words[k])):
                words[k] = column.dictionary
                size += column.dictionary.nbytes
        _check_bytes(size, form)
        yield batch


def _decoded_bytes(column: pa.Array) -> int:
    """Return the bytes of a column with its texts in each row that has them."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    size, values = int(column.indices.nbytes), column.dictionary
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        size += pc.sum(pc.binary_length(values).cast(pa.int64()).take(column.indices)).as_py() or 0
    return size


def check_rows(rows: int, form: str, max_rows: int) -> None:
    """Raise TooLarge if a file has more rows than it may."""
    if rows > max_rows:
        several = "send them in several requests"
        raise TooLarge(f"At most {max_rows:,} rows are accepted at once; this {form} has {rows:,}: {several}.")


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
        return _read(body, form, max_rows, _streamed)
    except MemoryError:
        raise
    except DAMAGED as error:
        raise Malformed(str(error)[:2000].encode(errors="replace").decode()) from None


def _streamed(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()
