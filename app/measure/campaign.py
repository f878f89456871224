"""A run: suites one after another within a time budget, every point kept as soon as it is done."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from app import __version__
from app.measure.device import Device
from app.measure.output import Output
from app.measure.point import Point
from app.measure.runner import Runner

SOURCE = f"gpucast measure {__version__}"
Said = Callable[[Point, Mapping[str, Any]], None]


def identity(device: Device) -> dict[str, Any]:
    """What the output tells of the device: its description, the libraries, and what its driver says."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    return {"name": device.name, "description": device.description, **versions, **device.facts}


def pending(output: Output, points: Sequence[Point]) -> list[Point]:
    """Points that no earlier run has done, each once."""
    return [point for digest, point in {p.digest: p for p in points}.items() if not output.is_done(digest)]


def measure_all(
    runner: Runner, output: Output, points: Sequence[Point], *, labels: Mapping[str, Any], until: float, said: Said
) -> Counter[str]:
    """Measure `points` in order until `until` (of time.monotonic); counts by outcome.

    `labels` stand in every row (gpu, source); `said` hears of every point and its row.
    """
    outcomes: Counter[str] = Counter()
    for point in points:
        if time.monotonic() >= until:
            break
        row = runner.run(point)
        output.add(point.digest, row | dict(labels))
        outcomes[row["outcome"]] += 1
        said(point, row)
    return outcomes
