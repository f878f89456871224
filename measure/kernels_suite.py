"""The kernels suite: the cross-GPU kernels paper's 16 CUDA kernels at 79 sizes, timed as the paper does.

Kernels of measure/cuda are compiled for the local GPU by NVRTC through CuPy. Launches are consecutive in a CUDA
graph, independent of the host, with warm caches. Every kernel is checked against NumPy, at sizes that no block divides,
before it is timed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure.device import Device
from measure.kernel_definitions import CHECKS, Case, cases, one_store
from measure.point import Point, Prepared
from measure.timing import replayed

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "cuda"
OPTIONS = ("-std=c++17",)


@cache
def has_compiler() -> bool:
    """Return True if CuPy is installed and compiles; else log the reason."""
    try:
        compiled(one_store())
    except Exception as error:  # any part of CuPy, the compiler or the driver may be missing
        log.warning("no CUDA kernels are measured, as CuPy (pip install cupy-cuda13x) does not compile: %s", error)
        return False
    return True


def toolkit() -> str:
    """Return the toolkit's software label, such as `cuda-13.0`."""
    major, minor = import_module("cupy").cuda.nvrtc.getVersion()
    return f"cuda-{major}.{minor}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A compiled case.

    registers      per thread
    shared_bytes   per block
    blocks_per_sm  resident blocks per SM by the driver; 0 if the launch cannot run
    """

    case: Case
    function: Any
    registers: int
    shared_bytes: int
    blocks_per_sm: int

    def __call__(self, arguments: Sequence[Any]) -> None:
        """Launch on PyTorch's current stream; arguments are PyTorch's arrays on the GPU, and NumPy's numbers."""
        cupy = import_module("cupy")
        passed = [np.uint64(item.data_ptr()) if isinstance(item, torch.Tensor) else item for item in arguments]
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            self.function(self.case.grid, self.case.block, tuple(passed))


def compiled(case: Case) -> Launch:
    """Return the compiled case; each file is compiled once."""
    function = _module(case.source).get_function(case.kernel)
    driver = import_module("cupy").cuda.driver
    blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, prod(case.block), 0)
    return Launch(case, function, function.num_regs, function.shared_size_bytes, blocks)


@cache
def _module(source: str) -> Any:
    code = (SOURCES / f"{source}.cu").read_text("utf-8")
    return import_module("cupy").RawModule(code=code, options=OPTIONS)


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
