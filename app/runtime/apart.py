"""Work on bytes of strangers in processes of limited memory and time, which the next piece of work finds again.

A long call of the decoder, or what it makes of a few bytes, stops nobody there. Work of a caller who leaves ends with
its process. Both ends of a pipe send frames: a head in JSON, and as many bytes of content as it goes with.

    python -m app.runtime.apart    is a process
"""

from __future__ import annotations

import math
import mmap
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec

from app.coefficients import Coefficients
from app.errors import BadInput, FieldError, GpucastError, Malformed, TooLarge, Unavailable, UnsupportedMedia
from app.runtime.cancellation import check_cancelled, current_caller

# Memory for a piece of work beyond what the process has, and its processor time; a million rows take a tenth of both.
_MOST_BYTES, _MOST_S = 1 << 30, 20
# Longest time for one, also where other programs take the processor, and longest wait for those of others.
_LONGEST_S, _WAIT_S = 60.0, 30.0
# Memory of a process after its work, of which 200 MiB are modules, from which on no more work follows in it.
_MOST_LEFT_BYTES = 1 << 29
# Pieces of work at a time, and of one caller.
_PROCESSES = 2
_SHARE = max(int(Coefficients("service").number("share_of_caller") * _PROCESSES), 1)
# How often a waiting thread looks whether its caller left.
_LOOK_S = Coefficients("service").number("caller_look_s")
# Allocators that reserve no gigabytes ahead.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# Of a pipe: a thread that reads a large answer in small steps takes Python's lock back before others wake up.
_PIPE_BYTES = 1 << 20
_LENGTHS = struct.Struct(">QQ")
_ERRORS = {error.__name__: error for error in (BadInput, Malformed, TooLarge, UnsupportedMedia, GpucastError)}


class Apart:
    """The processes, started as they are needed. They end with this one, whose pipes they read."""

    def __init__(self) -> None:
        self._turns = threading.Condition()
        self._working = Counter[str]()  # pieces of work of each caller
        self._line: list[tuple[str, object]] = []  # callers that wait, as they came
        self._idle: list[_Process] = []
        self._every: set[_Process] = set()

    def result(self, work: str, options: Mapping[str, Any], content: bytes) -> memoryview:
        """Return what the function `work` ("module:name") makes of keywords and content.

        Raises its error; TooLarge for work beyond the limits, Unavailable if that of others takes long, or Cancelled.
        """
        with self._turn(current_caller()):
            process, goes_on = self._taken(), False
            try:
                head, answer = process.ask({"work": work, "options": options}, content)
                goes_on = head["goes_on"]
            except (EOFError, OSError):
                raise TooLarge(f"The file takes more than {_MOST_BYTES:,} bytes or {_MOST_S} s to decode.") from None
            finally:
                if goes_on:
                    self._idle.append(process)
                else:
                    self._drop(process)
        if "error" in head:
            raise _error(head)
        return answer

    @contextmanager
    def _turn(self, caller: str) -> Iterator[None]:
        """Wait until a process is free, first come, first served, except that no caller has more than its share."""
        deadline, mine = time.monotonic() + _WAIT_S, (caller, object())
        with self._turns:
            self._line.append(mine)
            try:
                while self._next() is not mine:
                    self._turns.wait(_LOOK_S)
                    check_cancelled()
                    if time.monotonic() > deadline:
                        raise Unavailable("Too many files are decoded at once.")
                self._working[caller] += 1
            finally:
                self._line.remove(mine)
                self._turns.notify_all()
        try:
            yield
        finally:
            with self._turns:
                self._working[caller] -= 1
                self._working += Counter()  # without those that have none
                self._turns.notify_all()

    def _next(self) -> tuple[str, object] | None:
        """Return whose turn it is; None if that is nobody's."""
        if self._working.total() >= _PROCESSES:
            return None
        return next((each for each in self._line if self._working[each[0]] < _SHARE), None)

    def stop(self) -> None:
        """End the processes, also those that threads wait for."""
        for process in tuple(self._every):
            process.kill()

    def _taken(self) -> _Process:
        """Return a process that is free, or a new one."""
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                process = _Process()
                self._every.add(process)
                return process
            if process.lives:
                return process
            self._drop(process)

    def _drop(self, process: _Process) -> None:
        process.end()
        self._every.discard(process)


class _Process:
    """One process, which works for one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pipesize=_PIPE_BYTES,
            env=os.environ | _ENVIRONMENT,
            start_new_session=True,  # only the parent handles Ctrl-C
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._deadline = 0.0

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def ask(self, head: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], memoryview]:
        """Return the head and content of its answer. Raises EOFError or OSError if it ended or took too long."""
        self._deadline = time.monotonic() + _LONGEST_S
        text = msgspec.json.encode(head)
        for part in (_LENGTHS.pack(len(text), len(content)) + text, content):
            view = memoryview(part)
            while view:
                self._wait(self._in, select.POLLOUT)
                view = view[os.write(self._in, view) :]
        size, length = _LENGTHS.unpack(self._read(_LENGTHS.size))
        answer: dict[str, Any] = msgspec.json.decode(self._read(size))
        return answer, self._read(length)

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End it and close its pipes, which no other thread uses."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self, length: int) -> memoryview:
        # Zeroed page by page as it is read into, rather than at once while other threads wait.
        whole = memoryview(mmap.mmap(-1, max(length, 1), mmap.MAP_PRIVATE))[:length]
        view = whole
        while view:
            self._wait(self._out, select.POLLIN)
            if not (taken := os.readv(self._out, [view])):
                raise EOFError
            view = view[taken:]
        return whole

    def _wait(self, pipe: int, event: int) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        while not poll.poll(1e3 * _LOOK_S):
            check_cancelled()
            if time.monotonic() > self._deadline:
                raise TimeoutError


def _error(head: Mapping[str, Any]) -> GpucastError:
    errors = [FieldError(tuple(each["loc"]), each["msg"]) for each in head["errors"]]
    error = _ERRORS[head["error"]](head["detail"], errors=errors)
    if isinstance(error, Malformed):
        error.reason = head["reason"]
    return error


def _answer(work: str, options: Mapping[str, Any], content: bytes) -> tuple[dict[str, Any], Any]:
    module, _, name = work.partition(":")
    function = getattr(import_module(module), name)
    _limit()
    try:
        return {}, function(content, **options)
    except MemoryError:
        return _described(TooLarge(f"The file takes more than {_MOST_BYTES:,} bytes to decode.")), b""
    except (BadInput, TooLarge, UnsupportedMedia) as error:
        return _described(error), b""
    except Exception:  # a mistake of ours is no large file
        traceback.print_exc()
        return _described(GpucastError(f"{work} failed; the log has the reason.")), b""


def _described(error: GpucastError) -> dict[str, Any]:
    about = {"error": type(error).__name__, "detail": error.detail, "errors": error.errors}
    return about | {"reason": getattr(error, "reason", "")}


def _used() -> tuple[int, int]:
    """Return the bytes that this process has reserved, and those of them in memory."""
    with open("/proc/self/statm") as file:
        reserved, resident = file.read().split()[:2]
    return int(reserved) * resource.getpagesize(), int(resident) * resource.getpagesize()


def _limit() -> None:
    """Limit memory and time for the next piece of work."""
    for kind, most in (
        (resource.RLIMIT_AS, _used()[0] + _MOST_BYTES),
        (resource.RLIMIT_CPU, math.ceil(time.process_time()) + _MOST_S),
    ):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _serve() -> None:
    """Answer frame after frame until the pipe is closed."""
    pipe = sys.stdin.buffer
    while len(lengths := pipe.read(_LENGTHS.size)) == _LENGTHS.size:
        size, length = _LENGTHS.unpack(lengths)
        head = msgspec.json.decode(pipe.read(size))
        answer, content = _answer(head["work"], head["options"], pipe.read(length))
        text = msgspec.json.encode(answer | {"goes_on": _used()[1] <= _MOST_LEFT_BYTES})
        sys.stdout.buffer.write(_LENGTHS.pack(len(text), len(content)) + text)
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        del content


if __name__ == "__main__":
    _serve()
