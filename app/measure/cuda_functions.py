"""Kernels of app/measure/cuda, compiled for the local GPU by NVRTC through CuPy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.measure.kernel_definitions import Case, one_store

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
