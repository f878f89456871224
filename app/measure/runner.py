"""Measuring one point: allocated, timed, refused where the machine was busy, and what is to be said of it as a row."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from math import ceil
from typing import Any

import torch

from app.measure.device import Device
from app.measure.kernel_profile import launched
from app.measure.point import Point, Prepared
from app.measure.sensors import Sensors
from app.measure.timing import Clock, Timing, measure
from app.ops.stacks import is_eager

# Outcomes; what else went wrong is FAILED with its reason. INTERRUPTED: the process ended while the point ran.
MEASURED, BUSY, OUT_OF_MEMORY, FAILED, INTERRUPTED = "measured", "busy", "out_of_memory", "failed", "interrupted"
# A spread too large is tried again, unless that took so long, seconds.
TRIES, _PATIENCE_S = 3, 10.0
_LONGEST_REASON = 200
# Work beside which sensors are read, seconds and repetitions.
_AT_WORK_S, _MOST_RUNS_ON = 0.03, 1000


class Runner:
    """Measures points on one device.

    `most_spread` is the spread between trials (app.measure.timing) above which a time is not reported: something else
    ran meanwhile.
    """

    def __init__(self, device: Device, *, most_spread: float = 0.1) -> None:
        self.device = device
        self.most_spread = most_spread
        self.sensors = Sensors(is_cuda=device.kind == "cuda")
        self._clock = Clock(device)
        self._stream = torch.cuda.Stream() if self._clock.is_cuda else None
        if self._clock.is_cuda:
            gc.freeze()  # what is there now is no garbage: to look through it takes longer than to time a point

    def run(self, point: Point) -> dict[str, Any]:
        """The row of a point, flattened as measurements are in Parquet, with its `outcome`."""
        try:
            with self._on_stream():
                found = self._measured(point)
        except Exception as error:  # whatever one of thousands of points meets, the others are measured
            found = {"outcome": outcome_of(error)}
        self._free()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return said(point) | found | {"measured_at": now}

    def kernel(self, point: Point) -> dict[str, Any]:
        """The function behind a point of one phase, as columns, by the profiler; nothing where it does not tell.

        For when all is timed: a profiler that has run once slows down every launch after it.
        """
        found: dict[str, Any] = {}
        with suppress(Exception), self._on_stream():
            (run,) = point.prepare().phases.values()
            found = launched(run)
        self._free()
        return found

    def is_sound(self) -> bool:
        """Whether the device still computes.

        A kernel that wrote where it may not, or a graph that failed half way, takes every later point of its process
        with it.
        """
        try:
            torch.randn(8, device=self.device.handle).sum().item()
        except RuntimeError as error:
            return outcome_of(error) == OUT_OF_MEMORY
        return True

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _measured(self, point: Point) -> dict[str, Any]:
        """Outcome, times and what runs there; a spread too large is tried again before it is said."""
        prepared, eager, began = point.prepare(), bool(is_eager(point.software)), time.monotonic()
        for k in range(TRIES):
            if k and time.monotonic() - began > _PATIENCE_S:
                break
            self.sensors.start()
            timing = measure(self._clock, prepared, eager=eager)
            sensed = self._sensed(prepared, timing)
            if timing.spread <= self.most_spread:
                kernel = {f"kernel.{name}": value for name, value in (prepared.kernel or {}).items()}
                return {"outcome": MEASURED} | times(timing) | sensed | kernel | dict(prepared.facts)
        return {"outcome": BUSY}

    def _sensed(self, prepared: Prepared, timing: Timing) -> dict[str, Any]:
        """What the sensors say while the point runs on: at rest, a clock that power held back is high again."""
        if self._clock.is_cuda:
            for _ in range(min(_MOST_RUNS_ON, ceil(_AT_WORK_S / (timing.latency_s * prepared.launches)))):
                for run in prepared.phases.values():
                    run()
        sensed = self.sensors.read()
        if self._clock.is_cuda:
            torch.cuda.synchronize()
        return sensed

    def _free(self) -> None:
        if self._clock.is_cuda:
            gc.collect()
            with suppress(RuntimeError):
                torch.cuda.empty_cache()


def said(point: Point) -> dict[str, Any]:
    """What a row says before anything is measured."""
    return flat(point.workload) | {"software": point.software}


def outcome_of(error: BaseException) -> str:
    """That memory ran out, which PyTorch's CPU allocator says in words alone; else what failed."""
    words = str(error)
    known = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
    if known or "can't allocate memory" in words or "out of memory" in words:
        return OUT_OF_MEMORY
    return f"{FAILED}: {words.strip().partition(chr(10))[0][:_LONGEST_REASON]}"


def flat(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a workload: sizes of a kernel as `size.n`, parallelism in JSON, pairs as they are."""
    row: dict[str, Any] = {}
    for name, value in workload.items():
        if name == "parallelism":
            row[name] = json.dumps(value)
        else:
            row |= {f"{name}.{part}": x for part, x in value.items()} if isinstance(value, Mapping) else {name: value}
    return row


def times(timing: Timing) -> dict[str, Any]:
    """A timing in the form's fields and units."""
    phases = {f"phases_ms.{name}": seconds * 1e3 for name, seconds in timing.phases_s.items() if name}
    return {"latency_ms": timing.latency_s * 1e3, "latency_std_ms": timing.std_s * 1e3, "runs": timing.runs} | phases
