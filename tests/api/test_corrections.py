"""Corrections by measured rows follow an upload, and never hold it up."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from app.config import Settings
from benchmarks.uploads import GPU, rows
from tests.service import Service, wait_corrected

pytestmark = pytest.mark.slow

MODULE = b"app.engine.correction_process"
# More than an upload ever waits for, and less than the fits of these rows take.
QUICK_S = 1.0


def fitting() -> set[int]:
    """Processes that fit corrections, of any service."""
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if MODULE in _command(path)}


def _command(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return b""


def latency_ms(service: Service, m: int) -> tuple[float, str]:
    operator = {"op": "linear", "m": m, "n": 1000, "k": 1000, "dtype": "fp32"}
    asked = {"gpu": GPU, "workload": {"kind": "operators", "operators": [operator]}}
    answer = service.client.post("/predict", json=asked).raise_for_status().json()["predictions"][0]
    return answer["latency_ms"], answer["support"]


def test_one_row_is_stored_and_used_at_once_beside_many_unlearned_ones(service: Service) -> None:
    """It took seconds: every correction of the GPU was fitted again before the answer."""
    before = fitting()
    service.client.post("/measurements", json=list(rows(1200))).raise_for_status()
    wait_corrected(service.client)
    uncorrected = latency_ms(service, 1001)
    operator = {"op": "linear", "m": 999, "n": 1000, "k": 1000, "dtype": "fp32"}
    row = {"gpu": GPU, "software": "pytorch-2.4", "source": "later", "latency_ms": 7.0}
    began = time.monotonic()
    service.client.post("/measurements", json=[row | {"workload": {"kind": "operator"} | operator}]).raise_for_status()
    assert latency_ms(service, 999) == (pytest.approx(7.0), "measured")
    assert time.monotonic() - began < QUICK_S
    wait_corrected(service.client)
    assert latency_ms(service, 1001)[0] > uncorrected[0]
    assert fitting() - before


def test_the_process_that_fits_is_started_again_and_ends_with_the_service(settings: Settings, tmp_path: Path) -> None:
    others, made = fitting(), list(rows(1260))[1200:]
    with Service(settings, tmp_path / "log") as service:
        service.client.post("/measurements", json=made[:30]).raise_for_status()
        wait_corrected(service.client)
        (pid,) = fitting() - others
        os.kill(pid, signal.SIGKILL)
        service.client.post("/measurements", json=made[30:]).raise_for_status()
        wait_corrected(service.client)
        (pid,) = fitting() - others
        assert service.process is not None
        os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait()
        deadline = time.monotonic() + 20
        while pid in fitting():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_start_does_not_depend_on_corrections(settings: Settings, tmp_path: Path) -> None:
    """The process that fits is killed in the middle of the start, as one without memory would be."""
    with Service(settings, tmp_path / "first") as service:
        service.client.post("/measurements", json=list(rows(1320))[1260:]).raise_for_status()
    others, starting = fitting(), Service(settings, tmp_path / "second")
    starting.start()
    try:
        deadline = time.monotonic() + 60
        while not (new := fitting() - others):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(new.pop(), signal.SIGKILL)
        starting.wait_ready()
        assert "the start goes on without corrections" in starting.log.read_text()
        wait_corrected(starting.client)
    finally:
        starting.stop()
