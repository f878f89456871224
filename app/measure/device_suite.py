"""The device suite: characterises an unknown device in about a minute.

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

from app.measure.cuda_functions import compiled, has_compiler
from app.measure.device import Device
from app.measure.kernel_definitions import one_store
from app.measure.kernels_suite import point_of as kernel_point
from app.measure.operators_suite import point_of
from app.measure.point import Point, Prepared
from app.measure.timing import replayed

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
