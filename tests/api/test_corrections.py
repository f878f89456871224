"""Corrections by measured rows follow an upload, and never hold it up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from app.config import Settings
from benchmarks.uploads import GPU, rows
from tests.busy_machine import until
from tests.service import Service, wait_corrected

pytestmark = pytest.mark.slow

MODULE = "app.engine.correction_process"
# More than the service computes for an upload, and less than the fits of these rows take.
QUICK_S = 1.0


def fitting(service: Service) -> set[psutil.Process]:
    """Processes of the service that fit corrections."""
    assert service.process is not None
    return {child for child in psutil.Process(service.process.pid).children(recursive=True) if _fits(child)}


def _fits(process: psutil.Process) -> bool:
    try:
        return MODULE in process.cmdline()
    except psutil.NoSuchProcess:  # ended meanwhile
        return False


def latency_ms(service: Service, m: int) -> tuple[float, str]:
    operator = {"op": "linear", "m": m, "n": 1000, "k": 1000, "dtype": "fp32"}
    asked = {"gpu": GPU, "workload": {"kind": "operators", "operators": [operator]}}
    answer = service.client.post("/predict", json=asked).raise_for_status().json()["predictions"][0]
    return answer["latency_ms"], answer["support"]


def test_one_row_is_stored_and_used_at_once_beside_many_unlearned_ones(service: Service) -> None:
    """It took seconds: every correction of the GPU was fitted again before the answer."""
    service.client.post("/measurements", json=list(rows(1200))).raise_for_status()
    wait_corrected(service.client)
    uncorrected = latency_ms(service, 1001)
    operator = {"op": "linear", "m": 999, "n": 1000, "k": 1000, "dtype": "fp32"}
    row = {"gpu": GPU, "software": "pytorch-2.4", "source": "later", "latency_ms": 7.0}
    assert service.process is not None
    (fits,), api = fitting(service), psutil.Process(service.process.pid)
    fits.suspend()
    try:
        computed = sum(api.cpu_times()[:2])
        workload = {"kind": "operator"} | operator
        service.client.post("/measurements", json=[row | {"workload": workload}]).raise_for_status()
        assert latency_ms(service, 999) == (pytest.approx(7.0), "measured")
        assert sum(api.cpu_times()[:2]) - computed < QUICK_S
    finally:
        fits.resume()
    wait_corrected(service.client)
    assert latency_ms(service, 1001)[0] > uncorrected[0]


def test_the_process_that_fits_is_started_again_and_ends_with_the_service(settings: Settings, tmp_path: Path) -> None:
    made = list(rows(1260))[1200:]
    with Service(settings, tmp_path / "log") as service:
        service.client.post("/measurements", json=made[:30]).raise_for_status()
        wait_corrected(service.client)
        (killed,) = fitting(service)
        killed.kill()
        service.client.post("/measurements", json=made[30:]).raise_for_status()
        wait_corrected(service.client)
        (fits,) = fitting(service)
        assert fits != killed
        assert service.process is not None
        os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait()
        until(lambda: not _fits(fits))


def test_a_start_does_not_depend_on_corrections(settings: Settings, tmp_path: Path) -> None:
    """The process that fits is killed in the middle of the start, as one without memory would be."""
    with Service(settings, tmp_path / "first") as service:
        service.client.post("/measurements", json=list(rows(1320))[1260:]).raise_for_status()
    starting = Service(settings, tmp_path / "second")
    starting.start()
    try:
        until(lambda: fitting(starting), every_s=0.005).pop().kill()
        starting.wait_ready()
        assert "the start goes on without corrections" in starting.log.read_text()
        wait_corrected(starting.client)
    finally:
        starting.stop()
