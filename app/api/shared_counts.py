"""Share counts between the API processes of a service: each writes its own every second, a reader adds them up."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from app.api.metrics import Counts
from app.config import Settings

EVERY_S = 1.0
_DECODER = msgspec.msgpack.Decoder(Counts)


class SharedCounts:
    """A folder with one file per process, named after their parent; a single process shares nothing."""

    def __init__(self, settings: Settings, mine: Counts) -> None:
        self._mine = mine
        self._root = settings.data_dir / "metrics" if settings.workers > 1 else None
        self._file = Path(str(os.getpid()))
        if self._root is not None:
            parent = psutil.Process(os.getppid())
            self._file = self._root / f"{parent.pid}-{parent.create_time():.2f}" / str(os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_for_ever, name="counts", daemon=True)

    def start(self) -> None:
        """Start writing; remove the folders of services that have ended."""
        if self._root is None:
            return
        for folder in self._root.glob("*-*"):
            if not _lives(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def all(self) -> Iterator[Counts]:
        """Yield this process's counts, and those of the others as last written, including processes that died."""
        yield self._mine
        if self._root is None:
            return
        for path in self._file.parent.glob("[0-9]*"):
            if path != self._file and path.suffix == "":
                with suppress(OSError, msgspec.MsgspecError):
                    yield _DECODER.decode(path.read_bytes())

    def _write_for_ever(self) -> None:
        while not self._stop.wait(EVERY_S):
            with suppress(OSError, RuntimeError):  # disk full, or a count that grew meanwhile: retried in a second
                self._file.parent.mkdir(parents=True, exist_ok=True)
                fresh = self._file.with_suffix(".new")
                fresh.write_bytes(msgspec.msgpack.encode(self._mine))
                fresh.replace(self._file)


def _lives(name: str) -> bool:
    """Return whether the parent that a folder is named after still runs."""
    pid, _, started = name.partition("-")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == started
    except (ValueError, psutil.Error):
        return False
