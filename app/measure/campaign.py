"""A measuring run: points in order within a time budget, each stored at once.

After timing, the profiler adds the names of the launched GPU functions.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from app import __version__
from app.errors import GpucastError
from app.measure.device import Device
from app.measure.output import Output
from app.measure.point import Point
from app.measure.runner import BUSY, INTERRUPTED, MEASURED, Runner, described

_BYTES, _COPIES = 1 << 28, 5


def host_link(device: Device) -> dict[str, float]:
    """Return bytes per second in both directions with pinned memory; empty for a CPU or without enough memory."""
    if device.kind != "cuda":
        return {}
    try:
        host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty_like(host, device=device.handle)
    except RuntimeError:
        return {}
    return {"host_to_device_bytes_per_s": _rate(on_device, host), "device_to_host_bytes_per_s": _rate(host, on_device)}


def _rate(target: torch.Tensor, source: torch.Tensor) -> float:
    """Return the best rate of a few copies, the first of which is a warm-up."""
    seconds = []
    for _ in range(1 + _COPIES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return _BYTES / min(seconds[1:])


SOURCE = f"gpucast measure {__version__}"
# Consecutive points without a kernel name after which profiling stops.
_SILENT = 5
Observer = Callable[[Point, Mapping[str, Any]], None]


class DeviceLost(GpucastError):
    """A point left the device unusable for this process; a new process can continue after it."""


def facts(device: Device) -> dict[str, Any]:
    """Return the file's facts besides the device's description: libraries, and the driver's figures."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    return versions | dict(device.facts) | host_link(device)


def pending(output: Output, points: Sequence[Point]) -> list[Point]:
    """Return the distinct points that no earlier run has completed, in order; interrupted ones last."""
    left = [point for digest, point in {p.digest: p for p in points}.items() if not output.is_done(digest)]
    return sorted(left, key=lambda point: output.outcome(point.digest) == INTERRUPTED)


def measure_all(runner: Runner, output: Output, points: Sequence[Point], *, until: float, observe: Observer) -> None:
    """Measure `points` in order, starting none after `until` (time.monotonic); call `observe` with each and its row."""
    always = {"gpu": runner.device.name, "source": SOURCE}
    for point in points:
        if time.monotonic() >= until:
            return
        output.add(point.digest, described(point) | {"outcome": INTERRUPTED} | always)
        row = runner.run(point) | always
        output.add(point.digest, row)
        observe(point, row)
        if row["outcome"] not in (MEASURED, BUSY) and not runner.is_sound():
            raise DeviceLost(f"{row['outcome']}: the device computes no more in this process")


def name_kernels(runner: Runner, output: Output, points: Sequence[Point], *, until: float) -> None:
    """Add kernel names to measured `points` that have none, until `until`."""
    silent = 0
    for point in points:
        row = output.rows.get(point.digest, {})
        if time.monotonic() >= until or silent == _SILENT:
            return
        if row.get("outcome") == MEASURED and "kernel.name" not in row:
            function = runner.kernel(point)
            silent = 0 if function else silent + 1
            output.add(point.digest, row | function)
