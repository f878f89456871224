"""How many blocks of a launch are resident on one SM.

`resident_blocks` follows the hardware (allocation in whole warps, register and shared-memory units);
`paper_occupancy` follows the cross-GPU kernels paper, section 4.0.2, to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# What can keep a further block off an SM; `Residency.limit` is a code into this tuple.
LIMITS = ("threads", "blocks", "registers", "shared_memory")

LAUNCH_FIELDS = ("threads_per_block", "registers_per_thread", "shared_memory_per_block")
_LAUNCH = np.array([FIELD_INDEX[name] for name in LAUNCH_FIELDS])[:, None]
_SM = np.array(
    [
        COLUMN_INDEX[name]
        for name in (
            "max_threads_per_sm",
            "max_threads_per_block",
            "max_blocks_per_sm",
            "warp_size",
            "registers_per_sm",
            "max_registers_per_thread",
            "register_allocation_unit",
            "shared_memory_per_sm_bytes",
            "shared_memory_per_block_bytes",
            "shared_memory_allocation_unit_bytes",
        )
    ]
)[:, None]
_PAPER_SM = np.array(
    [
        COLUMN_INDEX[name]
        for name in (
            "max_threads_per_sm",
            "max_blocks_per_sm",
            "warp_size",
            "registers_per_sm",
            "shared_memory_per_sm_bytes",
        )
    ]
)[:, None]


@dataclass(frozen=True, slots=True)
class Residency:
    """Blocks of n launches on one SM.

    blocks  float64 [n], whole numbers; 0 where the launch cannot run at all
    limit   int [n], code into LIMITS of the resource that binds first
    """

    blocks: Floats
    limit: Ints


def resident_blocks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Residency:
    """Blocks of operator row `i[q]` per SM of GPU row `j[q]`; absent (NaN) figures do not limit."""
    threads, registers, shared = ops.dims[_LAUNCH, i]
    sm_threads, block_threads, blocks, warp, file, thread_registers, unit, sm_shared, block_shared, shared_unit = (
        gpus.values[_SM, j]
    )
    warps = np.ceil(threads / warp)
    file_per_block = np.ceil(registers * warp / unit) * unit * warps
    shared_per_block = np.ceil(shared / shared_unit) * shared_unit
    with np.errstate(divide="ignore", invalid="ignore"):
        caps = np.stack(
            [
                np.where(threads > block_threads, 0.0, sm_threads // (warps * warp)),
                blocks,
                np.where(registers > thread_registers, 0.0, np.floor(file / file_per_block)),
                np.where(shared > block_shared, 0.0, np.floor(sm_shared / shared_per_block)),
            ]
        )
    caps[np.isnan(caps)] = np.inf
    return Residency(caps.min(axis=0), caps.argmin(axis=0))


def paper_occupancy(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Floats:
    """Active over possible warps per SM, float64 [n] in (0, 1], by the four floors of section 4.0.2.

    B = min(floor(registers / (registers per thread x threads)), floor(shared / shared per block),
    floor(max threads / threads), max blocks). As in the authors' results, a resource that the launch does
    not use, and a limit that comes out as zero, is ignored.
    """
    threads, registers, shared = ops.dims[_LAUNCH, i]
    sm_threads, blocks, warp, file, sm_shared = gpus.values[_PAPER_SM, j]
    with np.errstate(divide="ignore", invalid="ignore"):
        caps = np.stack(
            [
                np.floor(file / (registers * threads)),
                np.floor(sm_shared / shared),
                np.floor(sm_threads / threads),
                blocks,
            ]
        )
        active = np.where(caps > 0, caps, np.inf).min(axis=0)
        occupancy: Floats = np.minimum(active * np.ceil(threads / warp) / np.floor(sm_threads / warp), 1.0)
    return occupancy
