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
from app.tables.gpus import GpuTable
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
# Traffic of a launch that moves no bytes, seconds: too short to matter, and its logarithm exists.
_NO_TRAFFIC_S = 1e-15

_BYTES, _WORKING_SET = FIELD_INDEX["bytes"], FIELD_INDEX["working_set_bytes"]
_THREADS, _LANES = FIELD_INDEX["threads_per_block"], FIELD_INDEX["lane_operations"]


@dataclass(frozen=True, slots=True)
class Bottlenecks:
    """Of n launches.

    limit_s  float64 [n], the hardware limit, seconds
    unit_s   float64 [5, n], seconds per unit of cost of every bottleneck (for traffic: seconds at cost 1)
    """

    limit_s: Floats
    unit_s: Floats

    def take(self, rows: Ints) -> Bottlenecks:
        """The launches given, repeats allowed."""
        return Bottlenecks(self.limit_s[rows], self.unit_s[:, rows])


def _rates(gpus: GpuTable) -> Floats:
    """Figures derived once per table, float64 [7, gpus].

    Seconds per byte from L2 and DRAM, fill of the L2 per byte, and seconds per lane operation of the last four
    bottlenecks (latency: with one resident thread).
    """
    if "bottlenecks" not in gpus.memo:
        triad, peak = gpus.column("triad_bandwidth_bytes_per_s"), gpus.column("memory_bandwidth_bytes_per_s")
        serial = 1.0 / gpus.column("boost_clock_hz")
        issue = serial / gpus.column("sm_count")
        gpus.memo["bottlenecks"] = np.stack(
            [
                1.0 / (L2_SHARE * gpus.column("l2_bandwidth_bytes_per_s")),
                1.0 / np.where(np.isnan(triad), STREAMING_SHARE * peak, triad),
                1.0 / gpus.column("l2_bytes"),
                issue,
                issue,
                issue / gpus.column("fp32_lanes_per_sm"),
                serial,
            ]
        )
    return gpus.memo["bottlenecks"]


def bottlenecks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Bottlenecks:
    """Bottlenecks of operator row `i[q]` on GPU row `j[q]`."""
    rates, dims = _rates(gpus)[:, j], ops.dims[:, i]
    unit = np.empty((len(BOTTLENECKS), len(i)))
    hit = np.minimum(np.maximum((L2_GONE - dims[_WORKING_SET] * rates[2]) * (1 / (L2_GONE - L2_STAYS)), 0.0), 1.0)
    unit[0] = np.maximum(dims[_BYTES] * (rates[1] + hit * (rates[0] - rates[1])), _NO_TRAFFIC_S)
    unit[1:] = rates[3:] * dims[_LANES]
    unit[1] /= np.maximum(resident_blocks(ops, gpus, i, j).blocks, 1.0) * dims[_THREADS]
    return Bottlenecks(hardware_limit(ops, gpus, i, j).latency_s, unit)
