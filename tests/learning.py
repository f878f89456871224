"""Made-up measurements to learn from: launches whose time is a plain roofline with an efficiency."""

from __future__ import annotations

from typing import Any

from app.store.measurements import MeasurementRow

# Achieved FLOP/s and B/s, about half of each card's data sheet.
ACHIEVED = {"titan-v": (7.0e12, 3.2e11), "rtx-4070": (1.4e13, 2.5e11), "rtx-2080-ti": (6.7e12, 3.1e11)}
SIZES = (512, 1024, 2048)
KERNELS = {"matmul": (128.0, 0.05), "add": (0.08, 12.0)}  # FLOPs and bytes per element, times the size for matmul


def workload(name: str, size: int) -> dict[str, Any]:
    """A kernel workload in the API's form."""
    per_flop, per_byte = KERNELS[name]
    elements = size * size
    return {
        "kind": "kernel",
        "name": name,
        "flops": per_flop * elements * 16,
        "bytes": max(per_byte * elements, 1e5),
        "threads_per_block": 256,
        "blocks": elements // 256,
        "registers_per_thread": 32,
        "shared_memory_per_block": 0,
        "working_set_bytes": max(per_byte * elements, 1e5),
        "access_pattern": "coalesced",
        "dtype": "fp32",
        "size": {"n": 0, "rows": size, "cols": size, "iterations": 1},
    }


def kernel_rows(source: str = "test", slower: float = 1.0) -> list[MeasurementRow]:
    """Every kernel at every size on every GPU."""
    rows = []
    for gpu, (flops, bandwidth) in ACHIEVED.items():
        for name in KERNELS:
            for size in SIZES:
                work = workload(name, size)
                latency_s = slower * (max(work["flops"] / flops, work["bytes"] / bandwidth) + 5e-6)
                rows.append(
                    MeasurementRow(
                        gpu_id=gpu,
                        software="cuda",
                        kind="kernel",
                        name=name,
                        workload=work,
                        latency_s=latency_s,
                        source=source,
                    )
                )
    return rows
