"""A clock that is wrong, and jumps, for a service as a process of its own."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from app.config import CHECKOUT

# Python runs it before anything else. Time that only grows (`time.monotonic`) is right, as after a clock was set.
_CUSTOMIZED = """
import datetime, mmap, struct, time

import app.wire.measurement_form  # msgspec knows the real type alone

_time, _datetime = time.time, datetime.datetime
with open({path!r}, "r+b") as file:
    _shift = mmap.mmap(file.fileno(), 8)

def _shift_s():
    return struct.unpack("d", _shift[:8])[0]

class Wrong(_datetime):
    @classmethod
    def now(cls, tz=None):
        return _datetime.now(tz) + datetime.timedelta(seconds=_shift_s())

time.time = lambda: _time() + _shift_s()
datetime.datetime = Wrong
"""


class WrongClock:
    """The clock of the processes that have its `environment`, ahead by a number of seconds that may change."""

    def __init__(self, folder: Path, ahead_s: float = 0.0) -> None:
        self._file = folder / "ahead"
        self._file.write_bytes(struct.pack("d", ahead_s))
        (folder / "sitecustomize.py").write_text(_CUSTOMIZED.format(path=str(self._file)))
        self.environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(CHECKOUT)])}

    def jump(self, ahead_s: float) -> None:
        """Set the clock of processes that run."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("d", ahead_s))
