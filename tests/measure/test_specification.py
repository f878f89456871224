"""The description of a CPU: probes spread over time, in physical order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

pytest.importorskip("torch")

from app.tables.complete import complete
from measure.device import best_of_rounds, description
from measure.device_suite import seen_peaks


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes that compute on every core."""
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop) for _ in range(2 * (psutil.cpu_count() or 1))]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.usefixtures("busy")
def test_a_busy_machine_registers_a_cache_as_fast_as_its_memory() -> None:
    described = description("cpu", "busy", 1, {})
    assert described["l2_bandwidth_bytes_per_s"] >= described["memory_bandwidth_bytes_per_s"]
    complete(described)


def test_a_probe_disturbed_in_one_round_counts_in_another() -> None:
    first, second = iter([1.0, 5.0, 2.0]), iter([9.0, 3.0, 4.0])
    assert best_of_rounds(lambda: next(first), lambda: next(second), rounds=3, pause_s=0.0) == [5.0, 9.0]


def test_a_measured_rate_above_the_peak_raises_it() -> None:
    device = {"boost_clock_hz": 2e9, "peak_flops": {"fp32": 1e11}}
    assert seen_peaks({"sustained_compute_flops": 1.5e11}, device)["boost_clock_hz"] == 3e9
