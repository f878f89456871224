"""The device suite: characterises an unknown device in about a minute; figures for the catalogue, and a summary.

Large matrix products measure the compute rate: on a cool device, after seconds of work, and after seconds of work that
also loads the memory. They determine a new GPU's clocks and power, which physics.clock_model otherwise takes from the
datasheet. Sums and copies of growing arrays measure memory and cache bandwidth, the smallest operator and kernel the
launch overhead, and copies between devices their link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from app.stacks.release import is_eager
from measure.device import Device
from measure.kernel_definitions import one_store
from measure.kernels_suite import compiled, has_compiler
from measure.kernels_suite import point_of as kernel_point
from measure.operators_suite import point_of
from measure.point import MEASURED, Point, Prepared
from measure.timing import replayed

SUITE = "device"
# FP32 elements per row `h` of an operator, and bytes of one.
WIDTH, WORD = 1024, 4
# Launches of the smallest operator, and of copies within caches, per graph.
LAUNCHES = 50
# Operations per written byte at which a product of small depth k saturates both compute and memory of most GPUs: 2 k
# operations per element of two or four bytes.
INTENSITY = 40
_MESSAGES = tuple(1 << power for power in (16, 20, 24, 28))
_STORES = (1, 16, 64)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the suite's points.

    side     of square products
    smaller  sides by (run_state, dtype) where SIMT lanes would take too long: a burst must end within 20 ms
    shallow  side of products of small depth
    arrays   bytes of arrays, from cache to memory sizes
    cached   number of the first ones that fit into caches
    busy_s   seconds of work before a sustained product
    rest_s   seconds of rest before a burst product
    """

    side: int
    shallow: int
    arrays: tuple[int, ...]
    cached: int
    busy_s: float
    rest_s: float
    smaller: Mapping[tuple[str, str], int] = field(default_factory=dict)


_LANES = {("burst", "fp32"): 4096, ("burst", "fp64"): 4096, ("sustained", "fp64"): 4096}
GPU = Sizes(8192, 16384, tuple(1 << power for power in (20, 22, 24, 26, 28, 30)), 4, 3.0, 0.3, _LANES)
CPU = Sizes(512, 2048, tuple(1 << power for power in (18, 20, 22, 24, 26)), 3, 0.3, 0.02)
# Longest time of a product in a format that a CPU lacks, seconds.
_LONGEST_S = 0.5


def points(device: Device) -> Sequence[Point]:
    """Return all points, the most useful first, bursts before work that heats the device."""
    sizes = GPU if device.kind == "cuda" else CPU
    return [
        *_launches(device),
        *_sums(device, sizes),
        *_products(device, sizes, "burst"),
        *_products(device, sizes, "sustained"),
        *_shallow(device, sizes),
        *_cached_copies(device, sizes),
        *_peers(device),
    ]


def _operator(op: str, dtype: str, **sizes: Any) -> dict[str, Any]:
    return {"kind": "operator", "op": op, **sizes, "dtype": dtype}


def _launches(device: Device) -> Iterator[Point]:
    """Yield the smallest operator, launched by the host and in a graph, and the smallest kernel."""
    smallest = _operator("add", "fp32", b=1, h=1)
    yield replace(point_of(device, smallest), suite=SUITE)
    if device.kind == "cuda":
        yield Point(SUITE, smallest, partial(_repeated, device, partial(_sum, device, 1)), device.replayed)
        if has_compiler():
            for blocks in _STORES:
                yield replace(kernel_point(compiled(one_store(blocks))), suite=SUITE)


def _sums(device: Device, sizes: Sizes) -> Iterator[Point]:
    """Yield sums of two arrays (STREAM's triad) and a copy, from memory."""
    for size in sizes.arrays[sizes.cached :]:
        row = _operator("add", "fp32", b=size // (WIDTH * WORD), h=WIDTH)
        yield Point(SUITE, row, partial(_once, device, partial(_sum, device, size // WORD)), device.replayed)
    copied = _operator("copy", "fp32", b=sizes.arrays[-1] // (WIDTH * WORD), h=WIDTH)
    yield replace(point_of(device, copied), suite=SUITE)


def _products(device: Device, sizes: Sizes, state: str) -> Iterator[Point]:
    """Yield a square product per format, in a burst or sustained."""
    for dtype in device.dtypes:
        side = sizes.smaller.get((state, dtype), sizes.side)
        if _ends(device, dtype, side**3):
            row = _operator("linear", dtype, m=side, n=side, k=side, run_state=state)
            point = replace(point_of(device, row), suite=SUITE)
            after = partial(_rested, point, sizes.rest_s) if state == "burst" else partial(_heated, point, sizes.busy_s)
            yield replace(point, prepare=after)


def _shallow(device: Device, sizes: Sizes) -> Iterator[Point]:
    """Yield sustained products of small depth: compute and memory together draw the most power."""
    for dtype, width in (("bf16", 2), ("fp32", 4)):
        side, depth = sizes.shallow, INTENSITY * width // 2
        if dtype in device.dtypes and _ends(device, dtype, side**2 * depth):
            row = _operator("linear", dtype, m=side, n=side, k=depth, run_state="sustained")
            point = replace(point_of(device, row), suite=SUITE)
            yield replace(point, prepare=partial(_heated, point, sizes.busy_s))


def _ends(device: Device, dtype: str, multiply_adds: float) -> bool:
    """Return True if a product ends in time."""
    return 2.0 * multiply_adds / device.rates.get(dtype, float("inf")) <= _LONGEST_S


def _cached_copies(device: Device, sizes: Sizes) -> Iterator[Point]:
    """Yield repeated copies of arrays that may fit into caches."""
    for size in sizes.arrays[: sizes.cached]:
        row = {"kind": "operator", "op": "memory", "bytes": 2 * size}
        yield Point(SUITE, row, partial(_repeated, device, partial(_copy, device, size)), device.replayed)


def _peers(device: Device) -> Iterator[Point]:
    """Yield copies from the first device to the second, if there are two."""
    if device.kind == "cuda" and torch.cuda.device_count() > 1:
        for size in _MESSAGES:
            row = {"kind": "operator", "op": "send_recv", "message_bytes": size, "devices": 2}
            yield Point(SUITE, row | {"implementation": "custom"}, partial(_sent, size), device.replayed)


def _sum(device: Device, elements: int) -> Callable[[], Any]:
    first, second, total = (torch.rand(elements, device=device.handle) for _ in range(3))
    return lambda: torch.add(first, second, alpha=1.5, out=total)


def _copy(device: Device, size: int) -> Callable[[], Any]:
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device.handle)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _sent(size: int) -> Prepared:
    source = torch.randint(256, (size,), dtype=torch.uint8, device="cuda:0")
    target = torch.empty(size, dtype=torch.uint8, device="cuda:1")
    return Prepared({"": lambda: target.copy_(source)}, kernel={})


def _once(device: Device, make: Callable[[], Callable[[], Any]]) -> Prepared:
    run = make()
    return Prepared({"": replayed(run) if device.kind == "cuda" else run})


def _repeated(device: Device, make: Callable[[], Callable[[], Any]]) -> Prepared:
    """Prepare LAUNCHES consecutive runs with warm caches."""
    run = make()

    def runs() -> None:
        for _ in range(LAUNCHES):
            run()

    every = replayed(runs) if device.kind == "cuda" else runs
    return Prepared({"": every}, cold=False, launches=LAUNCHES)


def _rested(point: Point, seconds: float) -> Prepared:
    return replace(point.prepare(), rest_s=seconds)


def _heated(point: Point, seconds: float) -> Prepared:
    """Prepare a point after `seconds` of the same work, without pauses afterwards."""
    prepared = point.prepare()
    (run,) = prepared.phases.values()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return replace(prepared, cold=False)


Row = Mapping[str, Any]
_S_PER_MS = 1e-3
_TERA, _GIGA, _MEGA, _MICRO = 1e12, 1e9, 1e6, 1e-6


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """Return the measured figures by their names in docs/reference/nomenclature.md, in SI units."""
    measured = [row for row in rows if row["outcome"] == MEASURED]
    measured_figures = {
        "triad_bandwidth_bytes_per_s": _bandwidth(measured, "add", arrays=3),
        "sustained_bandwidth_bytes_per_s": _bandwidth(measured, "copy", arrays=1),  # bytes count once, by definition
        "sustained_compute_flops": max(
            (_rate(row) for row in _measured_products(measured, "fp32", "sustained")), default=None
        ),
        "launch_overhead_s": min((_seconds(row) for row in measured if row.get("name") == "one_store"), default=None),
    }
    return {name: value for name, value in measured_figures.items() if value is not None}


def seen_peaks(measured_figures: Mapping[str, float], device: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of a CPU that its measured figures `measured_figures` prove, SI units."""
    seen = {"memory_bandwidth_bytes_per_s": measured_figures.get("triad_bandwidth_bytes_per_s", 0.0)}
    if "peak_flops" in device:
        faster = measured_figures.get("sustained_compute_flops", 0.0) / device["peak_flops"]["fp32"]
        seen["boost_clock_hz"] = faster * device["boost_clock_hz"]
    return seen


def summary(rows: Sequence[Row], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a summary, none without rows; `facts` as in measure.runner."""
    measured = [row for row in rows if row["outcome"] == MEASURED]
    if not measured:
        return
    known = figures(measured)
    if "triad_bandwidth_bytes_per_s" in known:
        yield f"memory    {known['triad_bandwidth_bytes_per_s'] / _GIGA:10,.0f} GB/s (sum of two arrays)"
    cached = [row["bytes"] / _seconds(row) for row in measured if row.get("op") == "memory"]
    if cached:
        yield f"caches    {max(cached) / _GIGA:10,.0f} GB/s (copies, the best size)"
    for row in _measured_products(measured):
        yield _product_line(row, facts)
    for row in measured:
        if row.get("op") == "add" and row["b"] == row["h"] == 1:
            how = "from the host" if is_eager(row["software"]) else "in a graph"
            yield f"launch    {_seconds(row) / _MICRO:10,.2f} us, the smallest operator {how}"
        if row.get("op") == "send_recv":
            rate = row["message_bytes"] / _seconds(row) / _GIGA
            yield f"peer      {rate:10,.1f} GB/s, {row['message_bytes'] / _MEGA:,.1f} MB"
    if "launch_overhead_s" in known:
        yield f"launch    {known['launch_overhead_s'] / _MICRO:10,.2f} us, the smallest kernel"
    if "graph_events_s" in facts:
        yield f"events    {facts['graph_events_s'] / _MICRO:10,.2f} us, added to a graph and subtracted"
    for way in ("host_to_device", "device_to_host"):
        if rate := facts.get(f"{way}_bytes_per_s"):
            yield f"link      {rate / _GIGA:10,.1f} GB/s, {way.replace('_', ' ')}"


def _product_line(row: Row, facts: Mapping[str, Any]) -> str:
    """Return the line of a product: its rate, and the throttle reason if known."""
    state, sides = row.get("run_state", "sustained"), f"{row['m']} x {row['n']} x {row['k']}"
    line = f"{row['dtype']:<10}{_rate(row) / _TERA:10,.2f} TFLOP/s {state}, {sides}"
    if "clock_hz" in row:
        most = f" of {facts['boost_clock_hz'] / _MEGA:,.0f}" if "boost_clock_hz" in facts else ""
        line += f", {row['clock_hz'] / _MEGA:,.0f}{most} MHz"
    if "power_w" in row:
        most = f" of {facts['power_limit_w']:,.0f}" if "power_limit_w" in facts else ""
        line += f", {row['power_w']:,.0f}{most} W"
    return line + (f", held back by {row['throttle_reason']}" if row.get("throttle_reason") else "")


def _seconds(row: Row) -> float:
    return float(row["latency_ms"]) * _S_PER_MS


def _rate(row: Row) -> float:
    """Return operations per second of a product."""
    return 2.0 * float(row["m"]) * float(row["n"]) * float(row["k"]) / _seconds(row)


def _measured_products(rows: Sequence[Row], dtype: str | None = None, state: str | None = None) -> list[Row]:
    """Return the products of the device suite, the only rows with a run state."""
    mine = [row for row in rows if row.get("op") == "linear" and row.get("run_state")]
    return [row for row in mine if dtype in (None, row["dtype"]) and state in (None, row["run_state"])]


def _bandwidth(rows: Sequence[Row], op: str, *, arrays: int) -> float | None:
    """Return the bytes per second of the largest arrays in FP32."""
    mine = [row for row in rows if row.get("op") == op and row["dtype"] == "fp32" and row.get("phase") != "backward"]
    largest = max(mine, key=lambda row: row["b"] * row["h"], default=None)
    return None if largest is None else arrays * WORD * largest["b"] * largest["h"] / _seconds(largest)
