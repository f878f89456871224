"""Occupancy: blocks of a launch that are resident on one SM.

`resident_blocks` follows the hardware, as CUDA's occupancy calculator does (whole warps, allocation units of registers
and shared memory, a partitioned register file, reserved shared memory); `paper_occupancy` follows the cross-GPU kernels
paper, section 4.0.2, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.ops.kernel import FIELD_INDEX
from app.runtime.compiled import compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import OpTable

# Resources that limit resident blocks; `Residency.limit` is a code into this tuple.
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

# An SM's register file has one part per scheduler; a warp's registers are in one part.
_PARTS = 4.0
# Shared memory that the system reserves per block since compute capability 8.0, at most, bytes: no block can use all of
# an SM's shared memory.
_MOST_RESERVED = 1024.0


@dataclass(frozen=True, slots=True)
class Residency:
    """Resident blocks of n launches on one SM.

    caps  float64 [4, n], blocks that each of LIMITS allows; NaN if it does not limit
    """

    caps: Floats

    @property
    def blocks(self) -> Floats:
        """Blocks per SM, float64 [n], whole numbers; 0 if the launch cannot run."""
        blocks: Floats = np.fmin.reduce(self.caps, axis=0)
        return blocks

    @property
    def limit(self) -> Ints:
        """Code into LIMITS of the resource that binds first, int [n]."""
        limit: Ints = np.nanargmin(self.caps, axis=0)
        return limit


@compiled_per_row
def warps_held(registers: float, file: float, unit: float, warp: float) -> float:
    """Return the warps whose registers fit into a file of `file` registers, allocated in units; NaN if any is NaN."""
    per_warp = max(np.ceil(registers * warp / unit) * unit, 1.0)
    return float(_PARTS * np.floor(file / _PARTS / per_warp))


@compiled_per_row
def blocks_allowed(dims: Floats, row: int, figures: Floats, gpu: int, caps: Floats) -> float:
    """Fill `caps` [4] with the blocks per SM that each of LIMITS allows, and return the least of them."""
    threads, registers, shared = dims[_THREADS, row], dims[_REGISTERS, row], dims[_SHARED, row]
    warp = figures[_WARP, gpu]
    warps = np.ceil(threads / warp)
    shared_unit, most_shared = figures[_SHARED_UNIT, gpu], figures[_SM_SHARED, gpu]
    reserved = most_shared - figures[_BLOCK_SHARED, gpu]
    if reserved <= _MOST_RESERVED:
        shared += reserved
    # A launch that uses none of a resource counts as one unit, which never limits.
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
        if not np.isnan(cap):  # absent figures do not limit
            least = min(least, cap)
    return least


@compiled_per_row
def _fill(dims: Floats, i: Ints, figures: Floats, j: Ints, caps: Floats) -> None:
    for q in range(len(i)):
        blocks_allowed(dims, i[q], figures, j[q], caps[q])


def resident_blocks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Residency:
    """Return the resident blocks of operator row `i[q]` on GPU row `j[q]`; absent (NaN) figures do not limit."""
    caps = np.empty((len(i), len(LIMITS)))
    _fill(ops.dims, i, gpus.values, j, caps)
    return Residency(caps.T)


@compiled_per_row
def paper_occupancy(dims: Floats, row: int, figures: Floats, gpu: int) -> float:
    """Return the active over possible warps per SM of one launch, 0 to 1, by the paper's section 4.0.2.

    Blocks are min(floor(registers / (registers per thread x threads)), floor(shared / shared per block),
    floor(max threads / threads), max blocks). As in the authors' results, unused resources and limits of zero are
    ignored.
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
