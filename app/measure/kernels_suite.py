"""The kernels suite: the cross-GPU kernels paper's 16 CUDA kernels at 79 sizes, timed as the paper does.

Launches are consecutive in a CUDA graph, independent of the host, with warm caches. Every kernel is checked against
NumPy, at sizes that no block divides, before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import torch

from app.measure.cuda_functions import Launch, compiled, has_compiler, toolkit
from app.measure.device import Device
from app.measure.kernel_cases import CHECKS, cases
from app.measure.point import Point, Prepared
from app.measure.timing import replayed

SUITE = "kernels"
# Launches per graph, fewer if they take longer than the limit, seconds.
LAUNCHES, LONGEST_S = 50, 0.05
# Rounding tolerance of sums of some thousand FP32 numbers.
_TOLERANCE = 1e-4


def points(device: Device) -> Sequence[Point]:
    """Return all cases; none on a CPU, or if CuPy does not compile."""
    if device.kind != "cuda" or not has_compiler():
        return []
    return [point_of(compiled(case)) for case in cases()]


def point_of(launch: Launch) -> Point:
    """Return a compiled launch as a point."""
    return Point(SUITE, workload(launch), partial(_prepared, launch), toolkit())


def workload(launch: Launch) -> dict[str, Any]:
    """Return a kernel workload with the compiler's figures."""
    case = launch.case
    return {
        "kind": "kernel",
        "name": case.kernel,
        **case.counts,
        "threads_per_block": prod(case.block),
        "blocks": prod(case.grid),
        "registers_per_thread": launch.registers,
        "shared_memory_per_block": launch.shared_bytes,
    }


def _prepared(launch: Launch) -> Prepared:
    """Prepare a graph of launches; raises RuntimeError if the kernel cannot run or is wrong."""
    case = launch.case
    if launch.blocks_per_sm == 0:
        raise RuntimeError(f"{case.kernel}: no block fits an SM")
    _check(case.kernel)
    arguments = on_gpu(case.draw(np.random.default_rng(0)))
    count = max(1, min(LAUNCHES, int(LONGEST_S / _seconds(partial(launch, arguments)))))

    def launches() -> None:
        for _ in range(count):
            launch(arguments)

    grid, block = (f"{x}x{y}x1" for x, y in (case.grid, case.block))
    kernel = {"name": case.kernel, "grid": grid, "block": block}
    facts = {"blocks_per_sm": launch.blocks_per_sm}
    return Prepared({"": replayed(launches)}, kernel, facts, cold=False, launches=count)


def _seconds(run: Callable[[], None]) -> float:
    """Return the seconds of the second of two runs."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    began.record()
    run()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) * 1e-3


def on_gpu(arguments: Sequence[Any]) -> list[Any]:
    """Return arrays copied to the GPU, and numbers unchanged."""
    return [torch.from_numpy(item).to("cuda") if isinstance(item, np.ndarray) else item for item in arguments]


@cache
def _check(kernel: str) -> None:
    """Raise RuntimeError if the kernel's result differs from NumPy's."""
    case = CHECKS[kernel]
    drawn = case.draw(np.random.default_rng(0))
    arguments = on_gpu(drawn)
    compiled(case)(arguments)
    computed = arguments[case.result].cpu().numpy()
    if not np.allclose(computed, case.expected(*drawn), rtol=_TOLERANCE, atol=_TOLERANCE):
        raise RuntimeError(f"{kernel} computes a wrong result")
