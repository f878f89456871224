"""Clock and power while a point runs, from NVML (nvidia-ml-py) where it is installed and there is a driver."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

# The energy counter moves in steps of some 20 to 100 ms.
_SHORTEST_S = 0.2
_HZ_PER_MHZ, _J_PER_MJ = 1e6, 1e-3
# NVML's bits of reasons; that the GPU is idle, or its owner has set its clocks, is none.
_THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "power brake",
}


class Sensors:
    """Reads one GPU; says nothing where it cannot."""

    def __init__(self, *, is_cuda: bool) -> None:
        self._nvml: Any
        self._handle: Any
        self._nvml, self._handle = _opened() if is_cuda else (None, None)
        self._began = 0.0
        self._energy = 0

    def start(self) -> None:
        """A point begins."""
        if self._nvml is not None:
            self._began = time.monotonic()
            self._energy = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)

    def read(self) -> dict[str, Any]:
        """Mean power since `start`, W, where it took long enough to tell; the SMs' clock, Hz, and what limits it."""
        if self._nvml is None:
            return {}
        clock = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)
        elapsed = time.monotonic() - self._began
        used = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) - self._energy
        power = {"power_w": used * _J_PER_MJ / elapsed} if elapsed >= _SHORTEST_S else {}
        return {"clock_hz": clock * _HZ_PER_MHZ} | power | self._throttled()

    def _throttled(self) -> dict[str, str]:
        """Why clocks are under the highest, where they are."""
        reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        named = ", ".join(name for bit, name in _THROTTLES.items() if reasons & bit)
        return {"throttle_reason": named} if named else {}

    def facts(self) -> dict[str, Any]:
        """What the driver says of the GPU itself: its version, clocks (Hz), limit of power (W), bus of the memory."""
        if self._nvml is None:
            return {}
        nvml, handle = self._nvml, self._handle
        return {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "boost_clock_hz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * _HZ_PER_MHZ,
            "memory_clock_hz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * _HZ_PER_MHZ,
            "memory_bus_bits": nvml.nvmlDeviceGetMemoryBusWidth(handle),
            "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * 1e-3,
        }


def _opened() -> tuple[Any, Any]:
    """NVML and the handle of the first GPU; None without."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except Exception:
        return None, None
    return nvml, handle
