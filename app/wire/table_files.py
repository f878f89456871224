"""Decode Arrow streams and Parquet files to tables of bounded size, those of strangers in a process of their own.

Text stays in dictionaries, so that a long text of many rows is there once. A file's own figures (rows, sizes and
encodings) may lie, and compression and dictionaries make gigabytes of a kilobyte: what strangers send is decoded in a
process of limited memory and time, which the next file finds again. Both ends of its pipe send frames: a head of one
letter, a number and a length, then as many bytes.

    python -m app.wire.table_files    is the process
"""

from __future__ import annotations

import math
import os
import resource
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.errors import TooLarge, Unavailable

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


_HEAD = struct.Struct(">cQQ")
_FORMS = {ARROW: b"A", PARQUET: b"P"}
_TABLE, _TOO_LARGE, _DAMAGED = b"T", b"L", b"D"
# Memory for a file beyond what an idle process has, and processor time; a million rows take a tenth of both.
_MOST_BYTES, _MOST_S = 1 << 30, 20
# Longest time for a file, also where other programs take the processor.
_LONGEST_S = 60.0
# Allocators that reserve no gigabytes ahead.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# Longest wait for files of others.
_WAIT_S = 30.0


class TableProcess:
    """The process, started by the first file. It ends with this one, whose pipe it reads."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read_table(self, body: bytes, form: str, max_rows: int) -> pa.Table:
        """Return the table of a file, as `app.wire.table_files.read_table`. Raises Unavailable if others take long."""
        if not self._free.acquire(timeout=_WAIT_S):
            raise Unavailable("Too many files are decoded at once.")
        try:
            status, answer = self._ask(_FORMS[form], max_rows, body)
        finally:
            self._free.release()
        if status == _TABLE:
            with pa.ipc.open_stream(answer) as reader:
                return reader.read_all()
        message = answer.decode(errors="replace")
        if status == _TOO_LARGE:
            raise TooLarge(message or f"The {form} takes more than {_MOST_BYTES:,} bytes or {_MOST_S} s to decode.")
        raise ValueError(message)

    def stop(self) -> None:
        """End the process, and what it decodes."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, kind: bytes, number: int, body: bytes) -> tuple[bytes, bytes]:
        """Return the answer's status and content; a process that died, or took too long, found a file too large."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = _start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_LONGEST_S, process.kill)
        timer.start()
        try:
            _write(process.stdin, kind, number, body)
            status, _, answer = _read(process.stdout)
        except (EOFError, OSError):
            process.kill()
            process.wait()
            self._process = None
            return _TOO_LARGE, b""
        finally:
            timer.cancel()
        return status, answer


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | _ENVIRONMENT,
        start_new_session=True,  # only the parent handles Ctrl-C
    )


def _write(pipe: IO[bytes], kind: bytes, number: int, content: bytes | pa.Buffer) -> None:
    pipe.write(_HEAD.pack(kind, number, len(content)))
    pipe.write(content)
    pipe.flush()


def _read(pipe: IO[bytes]) -> tuple[bytes, int, bytes]:
    """Return the next frame. Raises EOFError if the other end is closed."""
    head = pipe.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    kind, number, length = _HEAD.unpack(head)
    content = pipe.read(length)
    if len(content) < length:
        raise EOFError
    return kind, number, content


def _answer(kind: bytes, max_rows: int, body: bytes) -> tuple[bytes, bytes | pa.Buffer]:
    form = next(form for form, letter in _FORMS.items() if letter == kind)
    try:
        table = read_table(body, form, max_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=True)) as writer:
            writer.write_table(table)
        return _TABLE, sink.getvalue()
    except TooLarge as error:
        return _TOO_LARGE, error.detail.encode()
    except MemoryError:
        return _TOO_LARGE, b""
    except DAMAGED as error:
        return _DAMAGED, str(error)[:2000].encode(errors="replace")


def _serve() -> None:
    """Answer frame after frame until the pipe is closed."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_BYTES,) * 2)
    while True:
        try:
            kind, max_rows, body = _read(sys.stdin.buffer)
        except EOFError:
            return
        _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + _MOST_S, most_s))
        status, answer = _answer(kind, max_rows, body)
        _write(sys.stdout.buffer, status, 0, answer)


if __name__ == "__main__":
    _serve()
