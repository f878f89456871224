"""Bottlenecks of a kernel launch, in seconds per unit of cost, and the transfer of measured launches by them.

There are five bottlenecks, each with its own scaling across GPUs and sizes. A kernel's measured time determines the
cost of one of them; the same cost on another GPU, at another size or of another kernel, predicts its time there.

traffic     bytes / (DRAM or L2 bandwidth, by where the working set lives)
latency     lane operations / (SMs x clock x resident threads): Little's law, loads waiting on memory; registers
            beyond those that full residency leaves a thread count as further threads
issue       lane operations / (SMs x clock): instructions, shared-memory and uncoalesced transactions per SM
arithmetic  lane operations / (SMs x clock x lanes): loops of arithmetic
serial      lane operations / clock: atomics on one address

Which of them limits a kernel is a hypothesis. Its weight is a prior from the launch's description, times the agreement
of the sources under it, times its likelihood on training rows of the same kernel. The prediction is the weighted
geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.kernel import FIELD_INDEX, MECHANISMS
from app.predictors.launches import blocks_allowed
from app.predictors.roofline import memory_limit_s, peaks
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.architectures import by_name
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
# Board power from which cards without stacked memory run at the clock of their architecture, W.
FREE_CLOCK_W = _FITTED.number("free_clock_w")
# Traffic time of a launch that moves no bytes, seconds: negligible, but with a logarithm.
NO_TRAFFIC_S = 1e-15

_FLOPS, _BYTES, _WORKING_SET = FIELD_INDEX["flops"], FIELD_INDEX["bytes"], FIELD_INDEX["working_set_bytes"]
_L2 = COLUMN_INDEX["l2_bytes"]
_THREADS, _LANES = FIELD_INDEX["threads_per_block"], FIELD_INDEX["lane_operations"]
_REGISTERS, _SHARED = FIELD_INDEX["registers_per_thread"], FIELD_INDEX["shared_memory_per_block"]
_SM_THREADS, _SM_REGISTERS = COLUMN_INDEX["max_threads_per_sm"], COLUMN_INDEX["registers_per_sm"]


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
    per_unit: Floats = np.stack(
        [
            1.0 / (L2_SHARE * gpus.column("l2_bandwidth_bytes_per_s")),
            1.0 / np.where(np.isnan(triad), STREAMING_SHARE * peak, triad),
            issue,
            issue,
            issue / gpus.column("fp32_lanes_per_sm"),
            serial,
        ]
    )
    return per_unit


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
    architecture, vendor  int [gpus], equal where they are the same; vendor 0 is NVIDIA
    quoted_hz  float64 [gpus], boost clock of cards that run at their architecture's, whatever they quote; else 1
    """

    rate: Floats
    peak: Floats
    figures: Floats
    floor_s: Floats
    alike: Bools
    architecture: Ints
    vendor: Ints
    quoted_hz: Floats


@once_per_table
def devices_of(gpus: GpuTable) -> Devices:
    """Return the arrays of a table for compiled code, with the launch floors of the catalogue."""
    every = np.ones(len(gpus.ids), dtype=np.bool_)
    names = np.array(gpus.architectures or gpus.ids)
    vendors = np.array([next((each.vendor for each in by_name(name.partition("/")[0])), "") for name in names.tolist()])
    architecture, vendor = (np.unique(of, return_inverse=True)[1] for of in (names, vendors))
    nvidia, floor_s = vendors == "NVIDIA", gpus.column("launch_overhead_s")
    free = nvidia & ~np.char.endswith(names, "/hbm") & (gpus.column("board_power_w") >= FREE_CLOCK_W)
    quoted_hz, vendor = np.where(free, gpus.column("boost_clock_hz"), 1.0), np.where(nvidia, 0, 1 + vendor)
    return Devices(rates(gpus), peaks(gpus), gpus.values, floor_s, every, architecture, vendor, quoted_hz)


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
    # Threads that hold more registers than a full SM has for each wait less: they have other instructions at hand.
    resident, most = max(blocks, 1.0) * dims[_THREADS, row], figures[_SM_THREADS, gpu]
    held = resident * dims[_REGISTERS, row] * most / figures[_SM_REGISTERS, gpu]
    unit[1] /= max(resident, min(held, most))
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


# Registers of a thread beside its outputs, and per output; per clock of an SM, lanes issued, and words loaded from
# shared memory and through L1; instructions of a loop; clocks of a load; time over that of all these.
_BESIDE, _PER_OUTPUT, _ISSUED, _SHARED_WORDS, _L1_WORDS, _LOOP, _LOAD_CLOCKS, _SLACK = _FITTED.numbers("tile_costs")


@compiled_per_row
def tiled_s(launches: Launches, at: int, unit: Floats) -> float:
    """Return the seconds of multiply-adds whose operands nobody counted, from the registers of a thread.

    A thread that holds n outputs, in a square, loads 2 / sqrt(n) operands per multiply-add, or two lane operations.
    """
    dims, row = launches.dims, launches.row[at]
    outputs = max((dims[_REGISTERS, row] - _BESIDE) / _PER_OUTPUT, 1.0)
    loads, words = 2.0 / np.sqrt(outputs), _SHARED_WORDS if dims[_SHARED, row] > 0.0 else _L1_WORDS
    issue = unit[2] * ((1.0 + loads + _LOOP / outputs) / _ISSUED + loads / words)
    return float(0.5 * _SLACK * np.sqrt(issue**2 + (unit[1] * _LOAD_CLOCKS / outputs) ** 2 + unit[3] ** 2))


# Launch floor of an unmeasured GPU, seconds: empty kernels take 2 to 5 us on NVIDIA GPUs since 2015.
FLOOR_S = _FITTED.number("floor_s")
# Longest launch floor; some drivers and systems take twice as long.
LONGEST_FLOOR_S = _FITTED.number("longest_floor_s")
# Traffic becomes the bottleneck around `Shares.traffic` of the measured work, over this logistic width.
TRAFFIC_WIDTH = _FITTED.number("traffic_width")
# Prior of (latency, issue, arithmetic, serial) where traffic is not the bottleneck, by mechanism.
MECHANISM_PRIOR = np.array(_FITTED.rows("mechanism_prior"))
assert len(MECHANISM_PRIOR) == len(MECHANISMS)
LEAST_PRIOR = 1e-4
# Least share of the measured time that counts as work, whatever the launch floor.
LEAST_WORK = _FITTED.number("least_work")
# Log-space standard deviation of one kernel's cost across GPUs under its true bottleneck.
AGREEMENT_SPREAD = _FITTED.number("agreement_spread")


@dataclass(frozen=True, slots=True)
class Shares:
    """Two parameters chosen by holding each GPU out.

    floor    part of the launch floor that adds to the work; the rest overlaps with it
    traffic  traffic over measured work at which traffic becomes the likely bottleneck
    """

    floor: float = 0.8
    traffic: float = 0.65


@compiled_per_row
def work_s(latency_s: float, floor_s: float, limit_s: float, floor_share: float) -> float:
    """Return the work in a measured time: without the launch floor, at least the hardware limit and 2 % of the time."""
    least = min(max(limit_s, LEAST_WORK * latency_s), latency_s)
    return float(max(latency_s - floor_share * floor_s, least))


@compiled_per_row
def time_s(work: float, floor_s: float, floor_share: float) -> float:
    """Return the time of work and launch floor: the inverse of `work_s`."""
    return float(max(floor_s, floor_share * floor_s + work))


@compiled_per_row
def carried(work: float, source: Floats, target: Floats, limit_s: float, log_work: Floats) -> None:
    """Fill `log_work` [5] with the target's log work under each hypothesis, from a source's work.

    source, target  float64 [5], unit times
    limit_s         the target's hardware limit, seconds

    Work scales with the bottleneck's unit time. It is at least the hardware limit and, under hypotheses other than
    traffic, at least the traffic's time.
    """
    for h in range(5):
        least = limit_s if h == 0 else max(target[0], limit_s)
        log_work[h] = np.log(max(work * target[h] / source[h], least))


@compiled_per_row
def traffic_probability(traffic_s: float, work: float, threshold: float) -> float:
    """Return the probability that traffic is the bottleneck, from its share of the work."""
    return float(1.0 / (1.0 + np.exp((threshold - traffic_s / work) / TRAFFIC_WIDTH)))


@compiled_per_row
def log_prior(mechanism: int, traffic: float, log_weight: Floats) -> None:
    """Fill `log_weight` [5] with the hypotheses' log prior, from the mechanism and the probability of traffic."""
    log_weight[0] = np.log(traffic + LEAST_PRIOR)
    for h in range(4):
        log_weight[1 + h] = np.log(MECHANISM_PRIOR[mechanism, h] * (1.0 - traffic) + LEAST_PRIOR)


@compiled
def normalise(log_weight: Floats, weight: Floats) -> None:
    """Fill `weight` with normalised exponentials of `log_weight`."""
    top = log_weight.max()
    total = 0.0
    for h in range(len(weight)):
        weight[h] = np.exp(log_weight[h] - top)
        total += weight[h]
    for h in range(len(weight)):
        weight[h] /= total


@compiled
def works_s(latency_s: Floats, floor_s: Floats, limit_s: Floats, floor_share: float) -> Floats:
    """Return `work_s` of m rows, float64 [m]."""
    work = np.empty(len(latency_s))
    for k in range(len(work)):
        work[k] = work_s(latency_s[k], floor_s[k], limit_s[k], floor_share)
    return work


@compiled
def all_carried(work: Floats, source: Floats, target: Floats, limit_s: Floats) -> Floats:
    """Return `carried` of m pairs, float64 [5, m]; `source` and `target` are unit times [5, m]."""
    log_work = np.empty((len(work), 5))
    for k in range(len(work)):
        carried(work[k], source[:, k], target[:, k], limit_s[k], log_work[k])
    return log_work.T
