"""Measurements made up by simple physics, in the form of POST /measurements."""

from __future__ import annotations

import math
import random
from typing import Any

# GPU -> (FLOP/s, B/s) that a plain kernel reaches there, well under each card's data sheet.
REACHED = {
    "titan-v": (9e12, 5e11),
    "rtx-2080-ti": (8e12, 4.5e11),
    "rtx-4070": (15e12, 3.8e11),
    "tesla-v100-sxm2-16gb": (10e12, 6.5e11),
}
LAUNCH_S = 3e-6
# Kernel -> (FLOPs, bytes, lane operations) per element.
KERNELS = {"made_axpy": (2, 12, 3), "made_poly": (64, 8, 66), "made_stencil": (18, 8, 20), "made_copy": (0, 8, 2)}
SIZES = (2**18, 2**20, 2**22, 2**24)


SAXPY: dict[str, Any] = {
    "kind": "kernel",
    "name": "saxpy",
    "flops": 2e7,
    "bytes": 1.2e8,
    "threads_per_block": 256,
    "blocks": 40_000,
    "registers_per_thread": 12,
    "shared_memory_per_block": 0,
    "working_set_bytes": 1.2e8,
    "access_pattern": "coalesced",
    "dtype": "fp32",
    "size": {"n": 1e7},
}


def made_up(*, seed: int = 0, noise: float = 0.05, source: str = "made up") -> list[dict[str, Any]]:
    """One row per GPU, kernel and size, with log-normal noise; another seed is another set of measurements."""
    draw = random.Random(seed)
    rows = []
    for gpu, (flops_rate, bytes_rate) in REACHED.items():
        for name, (flops, moved, lanes) in KERNELS.items():
            for n in SIZES:
                seconds = LAUNCH_S + max(n * flops / flops_rate, n * moved / bytes_rate)
                rows.append(
                    {
                        "gpu": gpu,
                        "software": "cuda-12.4",
                        "source": source,
                        "latency_ms": 1e3 * seconds * math.exp(abs(draw.gauss(0, noise))),
                        "workload": workload(name, n, flops, moved, lanes),
                    }
                )
    return rows


def workload(name: str, n: int, flops: int, moved: int, lanes: int) -> dict[str, Any]:
    """An element-wise kernel over n elements."""
    return {
        "kind": "kernel",
        "name": name,
        "flops": n * flops,
        "bytes": n * moved,
        "working_set_bytes": n * moved,
        "threads_per_block": 256,
        "blocks": n // 256,
        "registers_per_thread": 24,
        "shared_memory_per_block": 0,
        "access_pattern": "coalesced",
        "dtype": "fp32",
        "size": {"n": n},
        "lane_operations": n * lanes,
    }
