"""Sensors with limited drivers: a part of a GPU, a container, an old NVML."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from measure.device import Sensors


def refuses(*_: object) -> int:
    raise RuntimeError("Insufficient Permissions")


def driver(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """An NVML that has these functions, of `nvmlDeviceGet...` without the beginning, and a GPU that is its second."""
    nvml: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.159.03",
        "nvmlDeviceGetHandleByUUID": {"GPU-4f2a": "the second"}.__getitem__,
        "nvmlDeviceGetHandleByIndex": lambda index: f"number {index}",
    }
    nvml |= {f"nvmlDeviceGet{name}": function for name, function in functions.items()}
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**nvml))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="4f2a"))


def test_readings_that_the_driver_refuses_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {("the second", 1): 1980, ("the second", 2): 3201}
    driver(
        monkeypatch,
        ClockInfo=lambda *asked: clocks[asked] - 180,
        MaxClockInfo=lambda *asked: clocks[asked],
        TotalEnergyConsumption=refuses,
        CurrentClocksThrottleReasons=lambda _: 0x4 | 0x1,
        EnforcedPowerLimit=refuses,
    )
    sensors = Sensors(is_cuda=True)
    assert sensors.facts() == {"driver": "580.159.03", "boost_clock_hz": 1.98e9, "memory_clock_hz": 3.201e9}
    sensors.start()
    assert sensors.read() == {"clock_hz": 1.8e9, "throttle_reason": "power cap"}


def test_power_is_energy_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    joules = iter((100.0, 250.0))
    seconds = iter((10.0, 10.5))
    driver(monkeypatch, TotalEnergyConsumption=lambda _: round(next(joules) * 1e3))
    monkeypatch.setattr("measure.device.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    sensors = Sensors(is_cuda=True)
    sensors.start()
    assert sensors.read() == {"power_w": pytest.approx(300.0)}


def test_without_a_library_there_are_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sensors = Sensors(is_cuda=True)
    sensors.start()
    assert sensors.facts() == sensors.read() == {}


def test_temperature_is_read_if_the_driver_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, Temperature=lambda handle, sensor: {("the second", 0): 59}[handle, sensor])
    assert Sensors(is_cuda=True).read() == {"temperature_c": 59.0}
