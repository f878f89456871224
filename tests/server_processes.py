"""The processes of a PostgreSQL of the tests, to stop and kill."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from app.store.postgres import EmbeddedPostgres


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


def set_read_only(server: EmbeddedPostgres, on: bool) -> None:
    """Make all transactions of the server read-only, as those of a standby are after a failover, or end that."""
    with psycopg.connect(server.url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
        connection.execute("SELECT pg_reload_conf()")
