"""Measuring one point: allocated, timed, refused where the machine was busy, and what is to be said of it as a row."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

import torch

from app.measure.device import Device
from app.measure.point import Point, Prepared
from app.measure.timing import Clock, Timing, measure
from app.ops.stacks import is_eager

MEASURED, BUSY, OUT_OF_MEMORY = "measured", "busy", "out_of_memory"
TRIES = 3


class Runner:
    """Measures points on one device.

    `most_spread` is the spread between trials (app.measure.timing) above which a time is not reported: something else
    ran meanwhile.
    """

    def __init__(self, device: Device, *, most_spread: float = 0.1) -> None:
        self.device = device
        self.most_spread = most_spread
        self._clock = Clock(device)
        self._stream = torch.cuda.Stream() if self._clock.is_cuda else None

    def run(self, point: Point) -> dict[str, Any]:
        """The row of a point, flattened as measurements are in Parquet, with its `outcome`."""
        row = flat(point.workload) | {"software": point.software}
        try:
            with self._on_stream():
                found = self._timed(point)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            found = {"outcome": OUT_OF_MEMORY}
        finally:
            self._free()
        return row | found | {"measured_at": datetime.now(UTC).isoformat(timespec="seconds")}

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _timed(self, point: Point) -> dict[str, Any]:
        """Outcome and times; a spread too large is tried again before it is said."""
        prepared, eager = point.prepare(), bool(is_eager(point.software))
        for _ in range(TRIES):
            timing = measure(self._clock, prepared, eager=eager)
            if timing.spread <= self.most_spread:
                return {"outcome": MEASURED} | times(timing) | kernel(prepared) | dict(prepared.facts)
        return {"outcome": BUSY}

    def _free(self) -> None:
        if self._clock.is_cuda:
            gc.collect()
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host has no memory left; PyTorch's CPU allocator says so in words alone."""
    known = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
    words = str(error)
    return known or "can't allocate memory" in words or "out of memory" in words


def flat(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a workload: sizes of a kernel as `size.n`, pairs as they are."""
    row: dict[str, Any] = {}
    for name, value in workload.items():
        row |= {f"{name}.{part}": cell for part, cell in value.items()} if isinstance(value, Mapping) else {name: value}
    return row


def times(timing: Timing) -> dict[str, Any]:
    """A timing in the form's fields and units."""
    phases = {f"phases_ms.{name}": seconds * 1e3 for name, seconds in timing.phases_s.items() if name}
    return {"latency_ms": timing.latency_s * 1e3, "latency_std_ms": timing.std_s * 1e3, "runs": timing.runs} | phases


def kernel(prepared: Prepared) -> dict[str, Any]:
    """The launched function as columns, where the suite knows it."""
    return {f"kernel.{name}": value for name, value in (prepared.kernel or {}).items()}
