"""The real service as a user starts it, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from app.config import Settings
from tests.forked import Running, start, start_fresh

# Of every entry of an answer of POST /predict, in this order.
PREDICTION_FIELDS = (
    "gpu",
    "latency_ms",
    "interval_ms",
    "bound",
    "predictor",
    "support",
    "memory",
    "breakdown",
    "warnings",
    "warning_codes",
)
START_TIMEOUT_S = 120  # two processes of tests may start servers at once
STOP_TIMEOUT_S = 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_corrected(client: httpx.Client, timeout_s: float = 60) -> None:
    """Until every measured row corrects the predictions of others."""
    deadline = time.monotonic() + timeout_s
    while (state := client.get("/readyz").raise_for_status().json())["corrected"] < state["revision"]:
        assert time.monotonic() < deadline, state
        time.sleep(0.02)


class Service:
    """`gpucast serve` in a process group of its own; `client` speaks to it over HTTP.

    It is forked (tests.forked), unless `fresh`: then an interpreter is started, as a user does.
    """

    def __init__(
        self, settings: Settings, log: Path, extra: Mapping[str, str] | None = None, *, fresh: bool = False
    ) -> None:
        self.settings = settings
        self.log = log
        self.port = free_port()
        self._extra = dict(extra or {})
        self._start = start_fresh if fresh else start
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        self.process: Running | None = None

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.stop()

    def start(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        env = {**inherited, **self.settings.environment(), "PORT": str(self.port), **self._extra}
        self.process = self._start(["serve"], env=env, log=self.log)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"the service ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"the service is not ready:\n{self.log.read_text()}")
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal and wait; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    def wait_for_job(self, job_id: int, timeout_s: float = 120) -> dict[str, object]:
        """The job once it is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            job: dict[str, object] = self.client.get(f"/jobs/{job_id}").raise_for_status().json()
            if job["state"] in ("succeeded", "failed"):
                return job
            if time.monotonic() > deadline:
                raise AssertionError(f"job {job_id} is not over: {job}\n{self.log.read_text()}")
            time.sleep(0.1)
