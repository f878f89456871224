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

# What can keep a further block off an SM; `Residency.limit` is a code into this tuple. The first four columns of
# _SM hold the SM's total of each.
LIMITS = ("threads", "blocks", "registers", "shared_memory")

LAUNCH_FIELDS = ("threads_per_block", "registers_per_thread", "shared_memory_per_block")
_LAUNCH = np.array([FIELD_INDEX[name] for name in LAUNCH_FIELDS])[:, None]
_SM = np.array(
    [
        COLUMN_INDEX[name]
        for name in (
            "max_threads_per_sm",
            "max_blocks_per_sm",
            "registers_per_sm",
            "shared_memory_per_sm_bytes",
            "warp_size",
            "register_allocation_unit",
            "shared_memory_allocation_unit_bytes",
            "max_threads_per_block",
            "max_registers_per_thread",
            "shared_memory_per_block_bytes",
        )
    ]
)[:, None]
_PAPER_SM = _SM[:5]
# LIMITS of the launch fields, in their order.
_OF_LAUNCH = np.array([LIMITS.index("threads"), LIMITS.index("registers"), LIMITS.index("shared_memory")])


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


def resident_blocks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Residency:
    """Blocks of operator row `i[q]` per SM of GPU row `j[q]`; absent (NaN) figures do not limit."""
    launch = ops.dims[_LAUNCH, i]
    figures = gpus.values[_SM, j]
    warp, register_unit, shared_unit = figures[4:7]
    warps = np.ceil(launch[0] / warp)
    demand = np.ones((len(LIMITS), len(i)))
    demand[0] = warps * warp
    demand[2] = np.ceil(launch[1] * warp / register_unit) * register_unit * warps
    demand[3] = np.ceil(launch[2] / shared_unit) * shared_unit
    # A launch that takes none of a resource may ask for one unit of it: that never binds.
    caps = np.floor(figures[:4] / np.maximum(demand, 1.0))
    caps[_OF_LAUNCH] *= launch <= figures[7:]
    return Residency(caps)


def paper_occupancy(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Floats:
    """Active over possible warps per SM, float64 [n] in (0, 1], by the four floors of section 4.0.2.

    B = min(floor(registers / (registers per thread x threads)), floor(shared / shared per block),
    floor(max threads / threads), max blocks). As in the authors' results, a resource that the launch does
    not use, and a limit that comes out as zero, is ignored.
    """
    threads, registers, shared = ops.dims[_LAUNCH, i]
    figures = gpus.values[_PAPER_SM, j]
    demand = np.ones((len(LIMITS), len(i)))
    demand[0], demand[2], demand[3] = threads, registers * threads, shared
    with np.errstate(divide="ignore", invalid="ignore"):
        caps = np.floor(figures[:4] / demand)
        caps[~(caps > 0)] = np.inf
        warp = figures[4]
        active_warps = caps.min(axis=0) * np.ceil(threads / warp)
        occupancy: Floats = np.minimum(active_warps / np.floor(figures[0] / warp), 1.0)
    return occupancy
