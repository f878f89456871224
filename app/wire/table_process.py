"""Decode files of strangers in a process of limited memory and time, which the next file finds again.

Both ends of the pipe send frames: a head of one letter, a number and a length, then as many bytes.

    python -m app.wire.table_process    is the process
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
from typing import IO

import pyarrow as pa

from app.errors import TooLarge, Unavailable
from app.wire.table_files import ARROW, DAMAGED, PARQUET, read_table

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
        """End the process."""
        with self._free:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()

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
