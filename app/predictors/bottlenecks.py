"""What can hold a kernel launch up, in seconds per unit of cost.

Five bottlenecks, each with its own scaling across GPUs and sizes. A kernel's measured time fixes the cost of
one of them; the same cost on another GPU, or at another size, predicts its time there.

traffic     bytes / (DRAM or L2 bandwidth, by where the working set lives)
latency     lane operations / (SMs x clock x resident threads): Little's law, loads waiting on memory
issue       lane operations / (SMs x clock): instructions, shared-memory and uncoalesced transactions per SM
arithmetic  lane operations / (SMs x clock x lanes): loops of arithmetic
serial      lane operations / clock: atomics on one address
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX
from app.predictors.occupancy import resident_blocks
from app.predictors.roofline import hardware_limit
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

BOTTLENECKS = ("traffic", "latency", "issue", "arithmetic", "serial")

# Share of the datasheet's DRAM bandwidth that a streaming kernel gets where no triad was measured:
# BabelStream on P100, V100, A100 and GeForce cards lies between 0.85 and 0.93.
STREAMING_SHARE = 0.88
# Share of the L2 port width that kernels get; L2 read micro-benchmarks on Volta to Hopper reach 0.2 to 0.4.
L2_SHARE = 0.25
# A working set stays in the L2 up to this multiple of its size, and is gone at the second (LRU thrashes).
L2_STAYS, L2_GONE = 1.1, 1.25
# A lane reads or writes words of four bytes where lane operations are not given.
BYTES_PER_LANE_OPERATION = 4.0

_LAUNCH = np.array([FIELD_INDEX[name] for name in ("threads_per_block", "lane_operations", "atomic_operations")])
_WORK = np.array([FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes")])
_GPU = np.array(
    [
        COLUMN_INDEX[name]
        for name in (
            "sm_count",
            "boost_clock_hz",
            "fp32_lanes_per_sm",
            "l2_bytes",
            "l2_bandwidth_bytes_per_s",
            "memory_bandwidth_bytes_per_s",
            "triad_bandwidth_bytes_per_s",
        )
    ]
)[:, None]


@dataclass(frozen=True, slots=True)
class Bottlenecks:
    """Of n launches.

    limit_s  float64 [n], the hardware limit, seconds
    unit_s   float64 [5, n], seconds per unit of cost of every bottleneck (for traffic: seconds at cost 1)
    """

    limit_s: Floats
    unit_s: Floats


def lane_operations(ops: OpTable, i: Ints) -> Floats:
    """Loads, stores, atomics and loop operations of all lanes [n]; FLOPs and words moved where not given."""
    flops, moved = ops.dims[_WORK[:2, None], i]
    _, lanes, atomics = ops.dims[_LAUNCH[:, None], i]
    counted = np.where(np.isnan(lanes), flops + moved / BYTES_PER_LANE_OPERATION, lanes)
    operations: Floats = np.fmax(np.fmax(counted, atomics), 1.0)
    return operations


def traffic_s(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Floats:
    """Seconds to move the bytes of every launch [n] at streaming bandwidth."""
    _, moved, working_set = ops.dims[_WORK[:, None], i]
    _, _, _, l2, l2_bandwidth, peak, triad = gpus.values[_GPU, j]
    fill = np.where(np.isnan(working_set), moved, working_set) / l2
    hit = np.clip((L2_GONE - fill) / (L2_GONE - L2_STAYS), 0.0, 1.0)
    dram = np.where(np.isnan(triad), STREAMING_SHARE * peak, triad)
    seconds: Floats = moved * (hit / (L2_SHARE * l2_bandwidth) + (1.0 - hit) / dram)
    return seconds


def bottlenecks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Bottlenecks:
    """Bottlenecks of operator row `i[q]` on GPU row `j[q]`."""
    sms, clock, lanes = gpus.values[_GPU[:3], j]
    threads = ops.dims[_LAUNCH[0], i]
    resident = np.maximum(resident_blocks(ops, gpus, i, j).blocks, 1.0) * threads
    serial = lane_operations(ops, i) / clock
    issue = serial / sms
    unit = np.stack([traffic_s(ops, gpus, i, j), issue / resident, issue, issue / lanes, serial])
    return Bottlenecks(hardware_limit(ops, gpus, i, j).latency_s, unit)
