"""A measuring run: points of suites in order within a time budget, each allocated, timed and stored at once.

Times of a busy machine are rejected. After timing, the profiler adds the names of the launched GPU functions. Suites
are imported at use: some need more than PyTorch.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import torch

from app import __version__
from app.errors import GpucastError
from app.stacks.release import is_eager
from measure.device import Device, Sensors
from measure.output import Output
from measure.point import BUSY, FAILED, INTERRUPTED, MEASURED, OUT_OF_MEMORY, Point, Prepared
from measure.timing import Clock, Timing, measure

# Keep CUPTI between profiles: its teardown crashes on CUDA graphs before CUDA 12.6.
_KEPT = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}


def launched(run: Callable[[], object]) -> dict[str, Any]:
    """Return name, grid and block of the kernel with most of `run`'s time, as columns; none without kernels."""
    os.environ.update(_KEPT)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        # Only the trace tells grid and block.
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return longest(events)


def longest(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of the kernel with the longest total time in a trace's events."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if not kernels:
        return {}
    total: dict[str, float] = {}
    for event in kernels:
        total[event["name"]] = total.get(event["name"], 0.0) + event["dur"]
    chosen = next(event for event in kernels if total[event["name"]] == max(total.values()))
    sizes = {name: "x".join(map(str, chosen["args"][name])) for name in ("grid", "block") if name in chosen["args"]}
    return {"kernel.name": chosen["name"][:2000]} | {f"kernel.{name}": size for name, size in sizes.items()}


# Tries after too large a spread, unless a try takes longer than this, seconds.
TRIES, _PATIENCE_S = 3, 10.0
_LONGEST_REASON = 200
# Work during which sensors are read: seconds, and most repetitions.
_AT_WORK_S, _MOST_RUNS_ON = 0.03, 1000


class Runner:
    """Measures points on one device.

    `most_spread` is the largest spread between trials (measure.timing) of a reported time: a larger one means that
    something else was running.
    """

    def __init__(self, device: Device, *, most_spread: float = 0.1) -> None:
        self.device = device
        self.most_spread = most_spread
        self.sensors = Sensors(is_cuda=device.kind == "cuda")
        self._clock = Clock(device)
        self._stream = torch.cuda.Stream() if self._clock.is_cuda else None
        if self._clock.is_cuda:
            gc.freeze()  # scanning existing objects would take longer than timing a point

    def facts(self) -> dict[str, float]:
        """Return the seconds that events add to a CUDA graph, which times are without; nothing on a CPU."""
        if not self._clock.is_cuda:
            return {}
        with self._on_stream():
            return {"graph_events_s": self._clock.events_s}

    def run(self, point: Point) -> dict[str, Any]:
        """Return the row of a point, flattened as in Parquet, with its `outcome`."""
        try:
            with self._on_stream():
                measured = self._measured(point)
        except Exception as error:  # any failure of one of thousands of points must not stop the others
            measured = {"outcome": outcome_of(error)}
        self._free()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return described(point) | measured | {"measured_at": now}

    def kernel(self, point: Point) -> dict[str, Any]:
        """Return the function of a single-phase point by the profiler, as columns; empty if unknown.

        Call it only after all timing: once used, the profiler slows down every later launch.
        """
        function: dict[str, Any] = {}
        with suppress(Exception), self._on_stream():
            (run,) = point.prepare().phases.values()
            function = launched(run)
        self._free()
        return function

    def is_sound(self) -> bool:
        """Return True if the device still computes.

        An illegal access or a failed graph makes every later point of the process fail.
        """
        try:
            torch.randn(8, device=self.device.handle).sum().item()
        except RuntimeError as error:
            return outcome_of(error) == OUT_OF_MEMORY
        return True

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _measured(self, point: Point) -> dict[str, Any]:
        """Return outcome and times; retries after too large a spread."""
        prepared, eager, began = point.prepare(), is_eager(point.software), time.monotonic()
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
        """Return sensor readings while the point keeps running: a throttled clock recovers at rest."""
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


def described(point: Point) -> dict[str, Any]:
    """Return a row's columns before measuring."""
    return flat(point.workload) | {"software": point.software}


def outcome_of(error: BaseException) -> str:
    """Return the outcome of an error: out of memory (from PyTorch's CPU allocator only in its message), or failed."""
    words = str(error)
    known = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
    if known or "can't allocate memory" in words or "out of memory" in words:
        return OUT_OF_MEMORY
    return f"{FAILED}: {words.strip().partition(chr(10))[0][:_LONGEST_REASON]}"


def flat(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a workload: kernel sizes as `size.n`, parallelism as JSON, pairs unchanged."""
    row: dict[str, Any] = {}
    for name, value in workload.items():
        if name == "parallelism":
            row[name] = json.dumps(value)
        else:
            row |= {f"{name}.{part}": x for part, x in value.items()} if isinstance(value, Mapping) else {name: value}
    return row


def times(timing: Timing) -> dict[str, Any]:
    """Return a timing in the form's fields and units."""
    phases = {f"phases_ms.{name}": seconds * 1e3 for name, seconds in timing.phases_s.items() if name}
    return {"latency_ms": timing.latency_s * 1e3, "latency_std_ms": timing.std_s * 1e3, "runs": timing.runs} | phases


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


# Modules with `points(device)`, in running order.
SUITES = {
    "device": "measure.device_suite",
    "kernels": "measure.kernels_suite",
    "operators": "measure.operators_suite",
    "models": "measure.models_suite",
}
# Suites that run completely before the others share the time: short, and enough to calibrate an unknown GPU.
ALWAYS = ("device",)


def points_of(suite: str, device: Device) -> Sequence[Point]:
    """Return the points of a suite of SUITES, the most useful first."""
    points: Sequence[Point] = import_module(SUITES[suite]).points(device)
    return points
