"""How many blocks of a launch are resident on one SM.

`resident_blocks` follows the hardware, as CUDA's occupancy calculator does (whole warps, register and shared-memory
units, a register file in parts, shared memory that the system keeps);
`paper_occupancy` follows the cross-GPU kernels paper, section 4.0.2, to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX
from app.runtime.compiled import compiled
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# What can keep a further block off an SM; `Residency.limit` is a code into this tuple.
LIMITS = ("threads", "blocks", "registers", "shared_memory")

LAUNCH_FIELDS = ("threads_per_block", "registers_per_thread", "shared_memory_per_block")
_THREADS, _REGISTERS, _SHARED = (FIELD_INDEX[name] for name in LAUNCH_FIELDS)
_SM_THREADS = COLUMN_INDEX["max_threads_per_sm"]
_SM_BLOCKS = COLUMN_INDEX["max_blocks_per_sm"]
_SM_REGISTERS = COLUMN_INDEX["registers_per_sm"]
_SM_SHARED = COLUMN_INDEX["shared_memory_per_sm_bytes"]
_WARP = COLUMN_INDEX["warp_size"]
_REGISTER_UNIT = COLUMN_INDEX["register_allocation_unit"]
_SHARED_UNIT = COLUMN_INDEX["shared_memory_allocation_unit_bytes"]
_BLOCK_THREADS = COLUMN_INDEX["max_threads_per_block"]
_THREAD_REGISTERS = COLUMN_INDEX["max_registers_per_thread"]
_BLOCK_SHARED = COLUMN_INDEX["shared_memory_per_block_bytes"]

# An SM's registers lie in as many parts as it has schedulers, and a warp's in one of them.
_PARTS = 4.0
# Since compute capability 8.0 the system keeps this much of the shared memory of each block, which is why no block can
# have all of an SM's.
_MOST_RESERVED = 1024.0


@dataclass(frozen=True, slots=True)
class Residency:
    """Blocks of n launches on one SM.

    caps  float64 [4, n], blocks that each of LIMITS allows, NaN where it does not bind
    """

    caps: Floats

    @property
    def blocks(self) -> Floats:
        """Blocks per SM, float64 [n], whole numbers; 0 where the launch cannot run at all."""
        blocks: Floats = np.fmin.reduce(self.caps, axis=0)
        return blocks

    @property
    def limit(self) -> Ints:
        """Code into LIMITS of the resource that binds first, int [n]."""
        limit: Ints = np.nanargmin(self.caps, axis=0)
        return limit


@compiled
def warps_held(registers: float, file: float, unit: float, warp: float) -> float:
    """Warps whose registers an SM's file of `file` registers holds, allotted in steps of `unit`; NaN if one is."""
    per_warp = max(np.ceil(registers * warp / unit) * unit, 1.0)
    return float(_PARTS * np.floor(file / _PARTS / per_warp))


@compiled
def blocks_allowed(dims: Floats, row: int, figures: Floats, gpu: int, caps: Floats) -> float:
    """Fill `caps` [4] with the blocks that each of LIMITS allows on one SM, and return the least of them."""
    threads, registers, shared = dims[_THREADS, row], dims[_REGISTERS, row], dims[_SHARED, row]
    warp = figures[_WARP, gpu]
    warps = np.ceil(threads / warp)
    shared_unit, most_shared = figures[_SHARED_UNIT, gpu], figures[_SM_SHARED, gpu]
    reserved = most_shared - figures[_BLOCK_SHARED, gpu]
    if reserved <= _MOST_RESERVED:
        shared += reserved
    # A launch that takes none of a resource may ask for one unit of it: that never binds.
    caps[0] = np.floor(figures[_SM_THREADS, gpu] / (warps * warp))
    caps[1] = figures[_SM_BLOCKS, gpu]
    file, unit = figures[_SM_REGISTERS, gpu], figures[_REGISTER_UNIT, gpu]
    caps[2] = np.floor(warps_held(registers, file, unit, warp) / warps)
    caps[3] = np.floor(most_shared / max(np.ceil(shared / shared_unit) * shared_unit, 1.0))
    if threads > figures[_BLOCK_THREADS, gpu]:
        caps[0] = 0.0
    if registers > figures[_THREAD_REGISTERS, gpu]:
        caps[2] = 0.0
    if dims[_SHARED, row] > figures[_BLOCK_SHARED, gpu]:
        caps[3] = 0.0
    least = np.inf
    for cap in caps:
        if not np.isnan(cap):  # an absent figure does not limit
            least = min(least, cap)
    return least


@compiled
def _fill(dims: Floats, i: Ints, figures: Floats, j: Ints, caps: Floats) -> None:
    for q in range(len(i)):
        blocks_allowed(dims, i[q], figures, j[q], caps[q])


def resident_blocks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Residency:
    """Blocks of operator row `i[q]` per SM of GPU row `j[q]`; absent (NaN) figures do not limit."""
    caps = np.empty((len(i), len(LIMITS)))
    _fill(ops.dims, i, gpus.values, j, caps)
    return Residency(caps.T)


@compiled
def paper_occupancy(dims: Floats, row: int, figures: Floats, gpu: int) -> float:
    """Active over possible warps per SM of one launch, 0 to 1, by the four floors of section 4.0.2.

    B = min(floor(registers / (registers per thread x threads)), floor(shared / shared per block),
    floor(max threads / threads), max blocks). As in the authors' results, a resource that the launch does
    not use, and a limit that comes out as zero, is ignored.
    """
    threads, warp, sm_threads = dims[_THREADS, row], figures[_WARP, gpu], figures[_SM_THREADS, gpu]
    blocks = np.inf
    for cap in (
        figures[_SM_REGISTERS, gpu] / (dims[_REGISTERS, row] * threads),
        figures[_SM_SHARED, gpu] / dims[_SHARED, row],
        sm_threads / threads,
        figures[_SM_BLOCKS, gpu],
    ):
        if 1.0 <= cap < blocks:  # false for NaN
            blocks = np.floor(cap)
    return float(min(blocks * np.ceil(threads / warp) / np.floor(sm_threads / warp), 1.0))
