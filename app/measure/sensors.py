"""Clock and power while a point runs, from NVML (nvidia-ml-py) if it is installed and a driver is present.

Figures that the driver does not provide (MIG instances, containers, missing rights) are omitted.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import torch

# The energy counter moves in steps of some 20 to 100 ms.
_SHORTEST_S = 0.2
_HZ_PER_MHZ, _J_PER_MJ, _W_PER_MW = 1e6, 1e-3, 1e-3
# NVML's throttle reason bits, without idleness and clocks set by the owner.
_THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
}
# NVML's kinds of clocks.
_SM, _MEMORY = 1, 2
# NVML's only kind of temperature sensor.
_GPU_DIE = 0


class Sensors:
    """Reads PyTorch's first GPU; returns nothing if it cannot."""

    def __init__(self, *, is_cuda: bool) -> None:
        self._nvml = _library() if is_cuda else None
        self._handle = None if self._nvml is None else self._found()
        self._began = 0.0
        self._energy: int | None = None

    def start(self) -> None:
        """Start a point."""
        self._began = time.monotonic()
        self._energy = self._of_device("TotalEnergyConsumption")

    def read(self) -> dict[str, Any]:
        """Return mean power since `start`, W, if long enough; SM clock, Hz; temperature, Celsius; throttle reason."""
        clock, energy = self._of_device("ClockInfo", _SM), self._of_device("TotalEnergyConsumption")
        elapsed = time.monotonic() - self._began
        degrees = self._of_device("Temperature", _GPU_DIE)
        figures: dict[str, Any] = {} if clock is None else {"clock_hz": clock * _HZ_PER_MHZ}
        if degrees is not None:
            figures["temperature_c"] = float(degrees)
        if energy is not None and self._energy is not None and elapsed >= _SHORTEST_S:
            figures["power_w"] = (energy - self._energy) * _J_PER_MJ / elapsed
        return figures | self._throttled()

    def _throttled(self) -> dict[str, str]:
        """Return the throttle reason, if any."""
        reasons = self._of_device("CurrentClocksEventReasons") or self._of_device("CurrentClocksThrottleReasons") or 0
        named = ", ".join(name for bit, name in _THROTTLES.items() if reasons & bit)
        return {"throttle_reason": named} if named else {}

    def facts(self) -> dict[str, Any]:
        """Return the driver's figures of the GPU: version, clocks (Hz), power limit (W), memory bus width."""
        driver = self._ask("nvmlSystemGetDriverVersion")
        given = {
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "boost_clock_hz": _scaled(self._of_device("MaxClockInfo", _SM), _HZ_PER_MHZ),
            "memory_clock_hz": _scaled(self._of_device("MaxClockInfo", _MEMORY), _HZ_PER_MHZ),
            "memory_bus_bits": self._of_device("MemoryBusWidth"),
            "power_limit_w": _scaled(self._of_device("EnforcedPowerLimit"), _W_PER_MW),
        }
        return {name: value for name, value in given.items() if value}

    def _found(self) -> Any:
        """Return the handle of PyTorch's first GPU, which may not be the driver's first; None if unavailable."""
        uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
        by_uuid = self._ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}")
        return self._ask("nvmlDeviceGetHandleByIndex", 0) if by_uuid is None else by_uuid

    def _of_device(self, what: str, *arguments: Any) -> Any:
        return None if self._handle is None else self._ask(f"nvmlDeviceGet{what}", self._handle, *arguments)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return the result of an NVML function; None if the driver refuses or lacks it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except Exception:
            return None


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _library() -> Any:
    """Return NVML, initialised; None if unavailable."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return None
    return nvml
