"""The measured device: its description as POST /gpus takes it, for a server that does not know it yet, and its sensors.

Every figure of the specification is `inferred`: a driver's clocks and a kernel's list of flags are no data sheet. A
GPU's name, compute capability and SMs do for the rest. Of a CPU, cores stand in for SMs and the last-level cache for
the L2, as in the catalogue; its clock and bandwidth are the highest seen, so that no later measurement is faster than
the hardware.

Clock and power while a point runs are NVML's (nvidia-ml-py), if it is installed and a driver is present. Figures that
the driver does not provide (MIG instances, containers, missing rights) are omitted.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import torch

from measure.data_parallel import Peers

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
        self._handle = None if self._nvml is None else self._first_gpu()
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

    def _first_gpu(self) -> Any:
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


_HZ_PER_KHZ = 1e3
# Attributes of a device in CUDA's driver: clocks in kHz, bits.
_CLOCK, _MEMORY_CLOCK, _MEMORY_BUS = 13, 36, 37
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FOLDER = Path("/sys/devices/system/cpu/cpu0")
# FP32 lanes of two units, by flag of the widest registers; without any, those of SSE.
_LANES = (("avx512f", 32), ("avx2", 16), ("", 8))
# Operations in 16 bits per FP32 one: tiles (AMX), vectors, or converted first.
_BF16_RATE = (("amx_bf16", 32.0), ("avx512_bf16", 2.0), ("", 1.0))
_HEADROOM = 1.5
_UNKNOWN_CACHE_BYTES = 16 * 2**20
# Something else may run for a while: rounds of all probes, and the pause between two, seconds.
ROUNDS, PAUSE_S = 5, 0.25
_PROBE_SIDE, _PROBE_BYTES, _CACHED_BYTES, _PROBES = 384, 1 << 22, 1 << 18, 64


def description(kind: str, name: str, sm_count: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The device's description; `facts` are the driver's (measure.device)."""
    known = _gpu(facts) if kind == "cuda" else _cpu(sm_count)
    figures = [field for field, value in known.items() if isinstance(value, int | float)]
    pipes = [f"peak_flops.{pipe}" for pipe in known.get("peak_flops", ())]
    named = {"name": name, "sm_count": sm_count, "source": "gpucast measure"}
    return named | known | {"provenance": dict.fromkeys([*figures, *pipes, "sm_count"], "inferred")}


def _gpu(facts: Mapping[str, Any]) -> dict[str, Any]:
    figures = torch.cuda.get_device_properties(0)
    clock = facts.get("boost_clock_hz") or _attribute(_CLOCK) * _HZ_PER_KHZ
    memory_clock = facts.get("memory_clock_hz") or _attribute(_MEMORY_CLOCK) * _HZ_PER_KHZ
    bus = facts.get("memory_bus_bits") or _attribute(_MEMORY_BUS)
    power = {"board_power_w": facts["power_limit_w"]} if "power_limit_w" in facts else {}
    return {
        "compute_capability": f"{figures.major}.{figures.minor}",
        "boost_clock_hz": clock,
        "memory_bytes": figures.total_memory,
        "memory_bandwidth_bytes_per_s": 2.0 * memory_clock * bus / 8.0,  # two transfers a clock
        "l2_bytes": figures.L2_cache_size,
    } | power


def _attribute(number: int) -> int:
    """What CUDA's driver says of the first device, where NVML does not: PyTorch tells these only since 2.7."""
    value = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(value), number, 0)
    return value.value


def _cpu(threads: int) -> dict[str, Any]:
    cpuinfo = _cpuinfo()
    flags = set(_field(cpuinfo, "flags").split())
    lanes = next(lanes for flag, lanes in _LANES if not flag or flag in flags)
    bf16 = next(rate for flag, rate in _BF16_RATE if not flag or flag in flags)
    flops, memory, cache = best_of_rounds(
        _flops, partial(_copied_per_s, range(_PROBES)), partial(_copied_per_s, [0] * _PROBES, _CACHED_BYTES)
    )
    clock = max(_clock_hz(cpuinfo), _HEADROOM * flops / (2.0 * lanes * threads))
    fp32 = 2.0 * lanes * threads * clock
    family = ", ".join(f"{name} {_field(cpuinfo, name)}" for name in ("vendor_id", "cpu family", "model"))
    return {
        "kind": "cpu",
        "architecture": f"CPU ({family})",
        "fp32_lanes_per_sm": lanes,
        "boost_clock_hz": clock,
        "memory_bytes": psutil.virtual_memory().total,
        "memory_bandwidth_bytes_per_s": _HEADROOM * memory,
        "l2_bytes": _cache_bytes(),
        "l2_bandwidth_bytes_per_s": _HEADROOM * max(cache, memory),  # all that comes from memory passes the cache
        "peak_flops": {"fp32": fp32, "fp64": fp32 / 2.0, "fp16": bf16 * fp32, "bf16": bf16 * fp32},
    }


def best_of_rounds(*probes: Callable[[], float], rounds: int = ROUNDS, pause_s: float = PAUSE_S) -> list[float]:
    """Return the highest figure of each probe, in rounds `pause_s` seconds apart."""
    best = [probe() for probe in probes]
    for _ in range(rounds - 1):
        time.sleep(pause_s)
        best = [max(figure, probe()) for figure, probe in zip(best, probes, strict=True)]
    return best


def processor() -> str:
    """The processor's name."""
    return _field(_cpuinfo(), "model name")


def _cpuinfo() -> str:
    return _CPUINFO.read_text() if _CPUINFO.exists() else ""


def _field(text: str, name: str) -> str:
    """A field of /proc/cpuinfo."""
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else "unknown"


def _clock_hz(cpuinfo: str) -> float:
    """The highest clock that the system tells."""
    clocks = [float(mhz) * _HZ_PER_MHZ for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", cpuinfo, re.MULTILINE)]
    highest = _CPU_FOLDER / "cpufreq" / "cpuinfo_max_freq"
    if highest.exists():
        clocks.append(float(highest.read_text()) * _HZ_PER_KHZ)
    return max(clocks, default=1e9)


def _cache_bytes() -> int:
    """The last-level cache."""
    sizes = [path.read_text().strip() for path in sorted((_CPU_FOLDER / "cache").glob("index*/size"))]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes), default=_UNKNOWN_CACHE_BYTES)


def _flops() -> float:
    """FLOP/s of a product of matrices, of short ones the quickest: something else may run."""
    a = torch.randn(_PROBE_SIDE, _PROBE_SIDE)
    return 2.0 * _PROBE_SIDE**3 / quickest_s([partial(torch.mm, a, a)] * _PROBES)


def _copied_per_s(order: Sequence[int], size: int = _PROBE_BYTES) -> float:
    """Bytes per second, read and written, of the quickest copy: of one part after another no cache holds any."""
    parts = torch.ones(_PROBES, size // 4)
    copies = torch.empty_like(parts)
    return 2.0 * size / quickest_s([partial(copies[k].copy_, parts[k]) for k in order])


def rates(dtypes: Mapping[str, Any]) -> dict[str, float]:
    """FLOP/s of a convolution of 4 images of 16 channels in PyTorch's `dtypes`, by their names."""
    flops = {}
    for name, dtype in dtypes.items():
        images, weight = torch.randn(4, 16, 18, 18).to(dtype), torch.randn(16, 16, 3, 3).to(dtype)
        flops[name] = 2.0 * 4 * 16 * 16 * 16 * 16 * 9 / quickest_s([partial(torch.conv2d, images, weight)] * 4)
    return flops


def quickest_s(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds of the quickest of some calls."""
    times = []
    for run in calls:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


# Formats of PyTorch's matrix products, most used first, with the compute capability that introduced them.
_SINCE = {"bf16": 8.0, "fp32": 0.0, "fp16": 5.3, "fp8": 8.9, "tf32": 8.0, "fp64": 0.0}
_CPU_DTYPES = ("fp32", "bf16", "fp16", "fp64")


@dataclass(frozen=True, slots=True)
class Device:
    """The device that points run on.

    kind          "cuda" or "cpu"
    name          name by its driver or the system
    dtypes        supported formats by the API's names, most used first
    memory_bytes  memory available to points
    sm_count      SMs; for a CPU its computing threads
    software      label of eager PyTorch, whose times include host launches
    replayed      label of CUDA graphs of PyTorch's kernels (device time only); for a CPU that of eager
    description   body for POST /gpus
    facts         further figures of its driver: version, clocks (Hz), power limit (W)
    rates         FLOP/s of a small convolution by dtype on a CPU, where unsupported formats may be a hundred times
                  slower; empty for a GPU
    in_graphs     whether operators of every format and phase run in CUDA graphs, not forward in narrow formats alone
    peers         other devices of a data-parallel group; None if it works alone
    """

    kind: str
    name: str
    dtypes: tuple[str, ...]
    memory_bytes: float
    sm_count: int
    software: str
    replayed: str
    description: Mapping[str, Any] = field(default_factory=dict, compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    rates: Mapping[str, float] = field(default_factory=dict, compare=False)
    in_graphs: bool = False
    peers: Peers | None = field(default=None, compare=False)

    @property
    def handle(self) -> torch.device:
        """The PyTorch device."""
        return torch.device(self.kind)


def torch_dtypes() -> Mapping[str, Any]:
    """Return PyTorch's dtypes by the API's names; tf32 is fp32 in memory."""
    return {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
    }


def find(threads: int | None = None) -> Device:
    """Return the CUDA device, or else the CPU with `threads` threads (None: PyTorch's default)."""
    if threads is not None:
        torch.set_num_threads(threads)
    eager = f"pytorch-{torch.__version__.partition('+')[0]}"
    if not torch.cuda.is_available():
        used = torch.get_num_threads()
        name = f"{processor()}, {used} thread{'s' * (used > 1)}"
        known = {dtype: torch_dtypes()[dtype] for dtype in _CPU_DTYPES}
        memory = psutil.virtual_memory().available
        described = description("cpu", name, used, {})
        return Device("cpu", name, _CPU_DTYPES, memory, used, eager, eager, described, {}, rates(known))
    figures = torch.cuda.get_device_properties(0)
    capability = figures.major + figures.minor / 10
    dtypes = tuple(dtype for dtype, since in _SINCE.items() if capability >= since)
    free, _ = torch.cuda.mem_get_info()
    facts = Sensors(is_cuda=True).facts()
    sms = figures.multi_processor_count
    described = description("cuda", figures.name, sms, facts)
    return Device("cuda", figures.name, dtypes, free, sms, eager, f"cudagraph-{eager}", described, facts)
