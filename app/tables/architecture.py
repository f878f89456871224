"""Figures of an architecture: limits of one SM, and operations per clock of each pipe.

Rates are dense operations per SM (compute unit, Xe core, CPU core) per clock, a fused multiply-add counting two.
Tensor rates are those with FP32 accumulation (INT32 for INT8), as deep-learning libraries use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KIB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts shared by all devices of one architecture (NVIDIA: one compute capability).

    Counts are per SM; `rates` maps a pipe of PIPES to operations per SM per clock; `geforce_rates` replaces
    those that GeForce cards run slower. `tensor_clock` is the part of the boost clock that data sheets give the rates
    of tensor pipes at, but of FP64. `memory_type` is "HBM" where all of its products have stacked memory.
    `l2_bytes_per_sm` is only typical, for devices that do not state theirs.
    """

    name: str
    vendor: str
    compute_capability: str | None = None
    process_node_nm: float | None = None
    fp32_lanes_per_sm: int
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    shared_memory_per_sm_bytes: float
    shared_memory_per_block_bytes: float
    max_threads_per_sm: int = 2048
    max_threads_per_block: int = 1024
    max_blocks_per_sm: int = 32
    warp_size: int = 32
    register_allocation_unit: int = 256
    shared_memory_allocation_unit_bytes: float = 256.0
    l2_bytes_per_sm: float
    rates: Mapping[str, float] = field(default_factory=dict)
    geforce_rates: Mapping[str, float] = field(default_factory=dict)
    tensor_clock: float = 1.0
    memory_type: str | None = None

    def quoted_clock(self, pipe: str) -> float:
        """Return the clock of a pipe's datasheet rate, as a share of the boost clock."""
        return self.tensor_clock if pipe.endswith("_tensor") and pipe != "fp64_tensor" else 1.0


def simt(fp64: float, fp16: float = 0, bf16: float = 0, int8: float = 0) -> dict[str, float]:
    """Return the rates of the SIMT lanes besides FP32, without unsupported formats."""
    rates = {"fp64": fp64, "fp16": fp16, "bf16": bf16, "int8": int8}
    return {pipe: rate for pipe, rate in rates.items() if rate}


def tensor(fp16: float, **others: float) -> dict[str, float]:
    """Return the rates of the matrix units."""
    return {f"{pipe}_tensor": rate for pipe, rate in {"fp16": fp16, **others}.items()}
