"""A run: points one after another within a time budget, every one kept as soon as it is done.

When all are timed, the functions that GPUs launched for them are looked up, and kept beside them.
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
from app.measure.host_link import host_link
from app.measure.output import Output
from app.measure.point import Point
from app.measure.runner import BUSY, INTERRUPTED, MEASURED, Runner, said

SOURCE = f"gpucast measure {__version__}"
# Points that the profiler tells nothing of before it is asked no more.
_SILENT = 5
Observer = Callable[[Point, Mapping[str, Any]], None]


class DeviceLost(GpucastError):
    """A point has left the device unusable to this process; another one can go on behind it."""


def facts(device: Device) -> dict[str, Any]:
    """What a file tells beside the device's description: libraries, and what the driver says."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    return versions | dict(device.facts) | host_link(device)


def pending(output: Output, points: Sequence[Point]) -> list[Point]:
    """Points that no earlier run has done, each once, in their order; last those that one ended in."""
    left = [point for digest, point in {p.digest: p for p in points}.items() if not output.is_done(digest)]
    return sorted(left, key=lambda point: output.outcome(point.digest) == INTERRUPTED)


def measure_all(runner: Runner, output: Output, points: Sequence[Point], *, until: float, observe: Observer) -> None:
    """Measure `points` in order, starting none after `until` (time.monotonic); call `observe` with each and its row."""
    always = {"gpu": runner.device.name, "source": SOURCE}
    for point in points:
        if time.monotonic() >= until:
            return
        output.add(point.digest, said(point) | {"outcome": INTERRUPTED} | always)
        row = runner.run(point) | always
        output.add(point.digest, row)
        observe(point, row)
        if row["outcome"] not in (MEASURED, BUSY) and not runner.is_sound():
            raise DeviceLost(f"{row['outcome']}: the device computes no more in this process")


def name_kernels(runner: Runner, output: Output, points: Sequence[Point], *, until: float) -> None:
    """Add the functions behind those of `points` that were measured and have none yet, while there is time."""
    silent = 0
    for point in points:
        row = output.rows.get(point.digest, {})
        if time.monotonic() >= until or silent == _SILENT:
            return
        if row.get("outcome") == MEASURED and "kernel.name" not in row:
            found = runner.kernel(point)
            silent = 0 if found else silent + 1
            output.add(point.digest, row | found)
