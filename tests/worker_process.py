"""A real worker as a process, and waits for its jobs, for tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import psycopg

from app.config import Settings
from app.store import jobs
from app.store.jobs import Job
from app.store.session import Database
from tests.forked import start

TIMEOUT_S = 60
T = TypeVar("T")


class Worker:
    """`gpucast worker` in a process of its own."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.log = log
        self.process = start(["worker"], env=os.environ | settings.environment(), log=log)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def trainer(self) -> psutil.Process:
        """The training process of the running job."""
        return eventually(lambda: next(iter(psutil.Process(self.process.pid).children()), None))


@contextmanager
def worker(settings: Settings, tmp_path: Path) -> Iterator[Worker]:
    running = Worker(settings, tmp_path / "worker.log")
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGKILL)


@contextmanager
def training_held(settings: Settings) -> Iterator[psycopg.Connection]:
    """While inside, a job can start but not read its measurements."""
    with psycopg.connect(settings.database_url or "") as connection:
        connection.execute("LOCK TABLE measurements IN ACCESS EXCLUSIVE MODE")
        yield connection


def eventually(probe: Callable[[], T | None], timeout_s: float = TIMEOUT_S) -> T:
    deadline = time.monotonic() + timeout_s
    while (found := probe()) is None:
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def job_when(database: Database, job_id: int, *states: str) -> Job:
    def probe() -> Job | None:
        with database.begin() as connection:
            job = jobs.get(connection, job_id)
        return job if job.state in states else None

    return eventually(probe)


def over(database: Database, job_id: int) -> Job:
    return job_when(database, job_id, "succeeded", "failed")
