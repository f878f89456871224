"""The processes of a PostgreSQL of the tests, to stop and kill."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


def server_processes(root: Path) -> list[psutil.Process]:
    """The processes of the embedded server in the folder `root`."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.name().startswith("postgres") and Path(process.cwd()) == root / "data":
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def signal_server(root: Path, number: int) -> None:
    for process in server_processes(root):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextmanager
def hanging(root: Path) -> Iterator[None]:
    """While inside, the server in the folder `root` accepts connections and answers nothing."""
    signal_server(root, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_server(root, signal.SIGCONT)
