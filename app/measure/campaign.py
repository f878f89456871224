"""A run: points one after another within a time budget, every one kept as soon as it is done."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from app import __version__
from app.measure.device import Device
from app.measure.host_link import host_link
from app.measure.output import Output
from app.measure.point import Point
from app.measure.runner import Runner

SOURCE = f"gpucast measure {__version__}"
Told = Callable[[Point, Mapping[str, Any]], None]


def facts(device: Device) -> dict[str, Any]:
    """What a file tells beside the device's description: libraries, and what the driver says."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    return versions | dict(device.facts) | host_link(device)


def pending(output: Output, points: Sequence[Point]) -> list[Point]:
    """Points that no earlier run has done, each once, in their order."""
    return [point for digest, point in {p.digest: p for p in points}.items() if not output.is_done(digest)]


def measure_all(runner: Runner, output: Output, points: Sequence[Point], *, until: float, told: Told) -> None:
    """Measure `points` in order, beginning none after `until` (of time.monotonic); `told` hears of each and its row."""
    for point in points:
        if time.monotonic() >= until:
            return
        row = runner.run(point) | {"gpu": runner.device.name, "source": SOURCE}
        output.add(point.digest, row)
        told(point, row)
