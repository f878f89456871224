"""Bottlenecks of a kernel launch, in seconds per unit of cost.

There are five bottlenecks, each with its own scaling across GPUs and sizes. A kernel's measured time determines the
cost of one of them; the same cost on another GPU, or at another size, predicts its time there.

traffic     bytes / (DRAM or L2 bandwidth, by where the working set lives)
latency     lane operations / (SMs x clock x resident threads): Little's law, loads waiting on memory
issue       lane operations / (SMs x clock): instructions, shared-memory and uncoalesced transactions per SM
arithmetic  lane operations / (SMs x clock x lanes): loops of arithmetic
serial      lane operations / clock: atomics on one address
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.kernel import FIELD_INDEX
from app.predictors.launches.occupancy import blocks_allowed
from app.predictors.roofline import memory_limit_s, peaks
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable, once_per_table
from app.tables.ops import OpTable

_FITTED = Coefficients("launches")

BOTTLENECKS = ("traffic", "latency", "issue", "arithmetic", "serial")

# Share of the datasheet's DRAM bandwidth that a streaming kernel achieves, if no triad was measured:
# BabelStream on P100, V100, A100 and GeForce cards achieves 0.85 to 0.93.
STREAMING_SHARE = _FITTED.number("streaming_share")
# Share of the L2 port width that kernels achieve; L2 read micro-benchmarks on Volta to Hopper achieve 0.2 to 0.4.
L2_SHARE = _FITTED.number("l2_share_of_kernels")
# A working set stays in the L2 up to the first multiple of its size; none of it from the second on (LRU thrashes).
L2_STAYS, L2_GONE = _FITTED.each("l2_stays", "l2_gone")
# Traffic time of a launch that moves no bytes, seconds: negligible, but with a logarithm.
NO_TRAFFIC_S = 1e-15

_FLOPS, _BYTES, _WORKING_SET = FIELD_INDEX["flops"], FIELD_INDEX["bytes"], FIELD_INDEX["working_set_bytes"]
_L2 = COLUMN_INDEX["l2_bytes"]
_THREADS, _LANES = FIELD_INDEX["threads_per_block"], FIELD_INDEX["lane_operations"]


@dataclass(frozen=True, slots=True)
class Bottlenecks:
    """Bottlenecks of n launches.

    limit_s  float64 [n], hardware limit, seconds
    unit_s   float64 [5, n], seconds per unit of cost of every bottleneck (for traffic: seconds at cost 1)
    """

    limit_s: Floats
    unit_s: Floats


@once_per_table
def rates(gpus: GpuTable) -> Floats:
    """Return seconds per byte from L2 and DRAM, and per lane operation of the last four bottlenecks, [6, gpus].

    Latency is that of one resident thread.
    """
    triad, peak = gpus.column("triad_bandwidth_bytes_per_s"), gpus.column("memory_bandwidth_bytes_per_s")
    serial = 1.0 / gpus.column("boost_clock_hz")
    issue = serial / gpus.column("sm_count")
    found: Floats = np.stack(
        [
            1.0 / (L2_SHARE * gpus.column("l2_bandwidth_bytes_per_s")),
            1.0 / np.where(np.isnan(triad), STREAMING_SHARE * peak, triad),
            issue,
            issue,
            issue / gpus.column("fp32_lanes_per_sm"),
            serial,
        ]
    )
    return found


class Launches(NamedTuple):
    """n launches: columns of an OpTable, and for each launch its row there, int [n], and its GPU row, int [n]."""

    dims: Floats
    label: Ints
    dtype: Ints
    row: Ints
    gpu: Ints

    @classmethod
    def of(cls, ops: OpTable, i: Ints, j: Ints) -> Launches:
        """Return the launches of operator row `i[q]` on GPU row `j[q]`."""
        return cls(ops.dims, ops.label, ops.dtype, i, j)


class Devices(NamedTuple):
    """A GPU table for compiled code.

    rate     float64 [6, gpus], as `rates`
    peak     float64 [dtypes, gpus], as app.predictors.roofline.peaks
    figures  float64 [columns, gpus]
    floor_s  float64 [gpus], launch floors, seconds; NaN if unknown
    alike    bool [gpus], True where the fitted costs of trained kernels hold
    """

    rate: Floats
    peak: Floats
    figures: Floats
    floor_s: Floats
    alike: Bools


@once_per_table
def devices_of(gpus: GpuTable) -> Devices:
    """Return the arrays of a table for compiled code, with the launch floors of the catalogue."""
    every = np.ones(len(gpus.ids), dtype=np.bool_)
    return Devices(rates(gpus), peaks(gpus), gpus.values, gpus.column("launch_overhead_s"), every)


@compiled
def unit_times(launches: Launches, at: int, devices: Devices, unit: Floats) -> float:
    """Fill `unit` [5] with the bottlenecks' seconds per unit of cost, and return the hardware limit, seconds."""
    dims, rate, figures, row, gpu = launches.dims, devices.rate, devices.figures, launches.row[at], launches.gpu[at]
    moved, working_set = dims[_BYTES, row], dims[_WORKING_SET, row]
    hit = (L2_GONE - working_set / figures[_L2, gpu]) / (L2_GONE - L2_STAYS)
    hit = min(max(hit, 0.0), 1.0)
    unit[0] = max(moved * (hit * rate[0, gpu] + (1.0 - hit) * rate[1, gpu]), NO_TRAFFIC_S)
    for mechanism in range(1, 5):
        unit[mechanism] = rate[1 + mechanism, gpu] * dims[_LANES, row]
    blocks = blocks_allowed(dims, row, figures, gpu, np.empty(4))
    unit[1] /= max(blocks, 1.0) * dims[_THREADS, row]
    limit = memory_limit_s(moved, working_set, figures, gpu)
    compute = dims[_FLOPS, row] / devices.peak[launches.dtype[row], gpu]
    return float(limit if np.isnan(compute) else max(limit, compute))


@compiled
def _fill(launches: Launches, devices: Devices, unit: Floats, limit: Floats) -> None:
    of_launch = np.empty(5)
    for q in range(len(limit)):
        limit[q] = unit_times(launches, q, devices, of_launch)
        unit[:, q] = of_launch


def bottlenecks(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Bottlenecks:
    """Return the bottlenecks of operator row `i[q]` on GPU row `j[q]`."""
    unit, limit = np.empty((len(BOTTLENECKS), len(i))), np.empty(len(i))
    _fill(Launches.of(ops, i, j), devices_of(gpus), unit, limit)
    return Bottlenecks(limit, unit)
