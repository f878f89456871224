"""Clock model: sustained compute rates at the clock that board power allows, and sustained DRAM bandwidth.

A busy pipe takes power e x rate x V^2, with voltage V rising with the clock, so a card of little power runs long
matrix products far under its boost clock (L4, T4). Of the largest clock f up to boost with 0.2 TDP + e c P (f /
f_boost) V(f)^2 <= TDP, V(f) = max(0.6, 0.2 + 0.8 f / f_n), f_n = 1.57 GHz sqrt(7 nm / node), the sustained rate is c
P f / f_boost, c the part of its peak P that a pipe reaches at any clock. Eight constants, as fitted on eighteen
measured ceilings (P4 to B200): about 10 % off leaving each GPU out, which is optimistic, since their form was chosen
with all eighteen in view; the datasheet's peak is 42 % off.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.predictors.roofline import PIPES_OF_DTYPE
from app.tables.arrays import Floats
from app.tables.gpus import COLUMN_INDEX, GpuTable, once_per_table
from app.tables.ops import DTYPES

# Part of a pipe's peak that the best kernels reach: lanes, and tensor units.
LANES_CAP, TENSOR_CAP = 0.962, 0.908
# Energy of an operation at 1 V, J: FP32 on the lanes; BF16 on tensor units takes a sixteenth; fewer bits take less.
LANES_ENERGY_J = 16e-12
TENSOR_SAVING = 15.8
HALVING_SAVING = 1.26
# Further saving of tensor units since Hopper (the 4 nm class).
WARP_GROUP_SAVING, WARP_GROUP_NODE_NM = 1.57, 4.0
# Smaller saving of matrix units that compute in full FP32 (AMD).
FP32_TENSOR_SAVING = 1.33
_BITS = {"fp64": 64, "fp32": 32, "tf32": 19, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "fp4": 4}
IDLE_SHARE = 0.2
# Part of the board power that products draw on top of that: alone what is left, in a network more, since its other rows
# draw less. Chosen on measured networks (docs/explanation/notebook.md); it is what keeps a step at the board power in
# the mean that spends four fifths in products and draws 40 % in the rest.
ALONE_SHARE, NETWORK_SHARE = 1.0 - IDLE_SHARE, 0.95
# Process node if the catalogue has none, that of 2020.
DEFAULT_NODE_NM = 7.0
# Run states: products after products; a card that was idle; products between the other operators of a network.
BUSY, COOL, IN_NETWORK = range(3)
_CLOCKS = np.linspace(0.05, 1.0, 96)[:, None]

# L2 caches whose partitions each keep a copy of what SMs on either side read (Ampere whitepaper, 2020; also Hopper).
_PARTITIONS = {"ampere/hbm": 2, "hopper/hbm": 2}

# Fraction of the datasheet's DRAM bandwidth that streaming kernels reach: HBM, and other memories.
HBM_SHARE, GDDR_SHARE = 0.87, 0.77


def _pipe_energy_j(pipe: str) -> float:
    dtype, _, tensor = pipe.partition("_")
    halvings = np.log2(16.0 / _BITS[dtype])
    if not tensor:
        return float(LANES_ENERGY_J * 2.0 ** np.log2(_BITS[dtype] / 32.0))
    saving = FP32_TENSOR_SAVING if dtype == "fp32" else TENSOR_SAVING * HALVING_SAVING**halvings
    return float(LANES_ENERGY_J / saving)


def _clock_share(gpus: GpuTable, pipe: str, rate: Floats, drawn: float) -> Floats:
    """Return the fraction of the boost clock, [gpus], at which a pipe of `rate` FLOP/s draws `drawn` of the power."""
    node, power = gpus.column("process_node_nm"), gpus.column("board_power_w")
    grouped = pipe.endswith("_tensor") & (node <= WARP_GROUP_NODE_NM)
    energy_j = _pipe_energy_j(pipe) / np.where(grouped, WARP_GROUP_SAVING, 1.0)
    nominal_hz = 1.57e9 * np.sqrt(7.0 / np.where(np.isnan(node), DEFAULT_NODE_NM, node))
    volts = np.maximum(0.6, 0.2 + 0.8 * _CLOCKS * gpus.column("boost_clock_hz") / nominal_hz)
    over = energy_j * rate * _CLOCKS * volts**2 > drawn * power  # False for an unknown power
    share: Floats = np.where(over, _CLOCKS[0], _CLOCKS).max(axis=0)
    return share


@once_per_table
def sustained_clocks(gpus: GpuTable) -> Floats:
    """Return the sustained clock of the fastest pipe per dtype and run state, Hz [3, dtypes, gpus]."""
    boost, best = gpus.column("boost_clock_hz"), compute_rates(gpus)
    clocks = np.full(best.shape, np.nan)
    for code, dtype in enumerate(DTYPES):
        for rate, shares in _pipes(gpus, dtype):
            fastest = rate * shares[BUSY] == best[BUSY, code]
            clocks[:, code] = np.where(fastest, shares * boost, clocks[:, code])
    return clocks


def _pipes(gpus: GpuTable, dtype: str) -> Iterator[tuple[Floats, Floats]]:
    """Yield for each pipe of a dtype its rate at boost, FLOP/s [gpus], and the sustained fraction [3, gpus]."""
    for pipe in PIPES_OF_DTYPE[dtype]:
        tensor = pipe.endswith("tensor")
        rate = (TENSOR_CAP if tensor else LANES_CAP) * gpus.values[COLUMN_INDEX[f"peak_{pipe}_flops"]]
        busy = _clock_share(gpus, pipe, rate, ALONE_SHARE)
        between = busy if tensor else _clock_share(gpus, pipe, rate, NETWORK_SHARE)
        yield rate, np.array([busy, np.ones_like(busy), between])


@once_per_table
def compute_rates(gpus: GpuTable) -> Floats:
    """Return the sustained rate of the fastest pipe per dtype and run state, FLOP/s [3, dtypes, gpus]."""
    rates = np.full((3, len(DTYPES), len(gpus)), np.nan)
    for code, dtype in enumerate(DTYPES):
        for rate, shares in _pipes(gpus, dtype):
            rates[:, code] = np.fmax(rates[:, code], rate * shares)
    return rates


def peak_reductions(gpus: GpuTable) -> Floats:
    """Return the chip's sustained tensor rate over the GPU's, [dtypes, gpus]; 1 unless the GPU's peak is reduced."""
    reductions = np.ones((len(DTYPES), len(gpus)))
    for code, dtype in enumerate(DTYPES):
        for pipe in PIPES_OF_DTYPE[dtype]:
            if pipe.endswith("_tensor"):
                reduction, rate = gpus.column(f"cut_{pipe}"), TENSOR_CAP * gpus.column(f"peak_{pipe}_flops")
                own, slowed = (_clock_share(gpus, pipe, part, ALONE_SHARE) for part in (reduction * rate, rate))
                reductions[code] = np.fmax(reductions[code], reduction * own / slowed)
    return reductions


@once_per_table
def bandwidths(gpus: GpuTable) -> Floats:
    """Return the DRAM bandwidth that streaming kernels reach, B/s [gpus]."""
    share: Floats = np.where(gpus.column("hbm") > 0, HBM_SHARE, GDDR_SHARE)
    return share * gpus.column("memory_bandwidth_bytes_per_s")


@once_per_table
def effective_l2_bytes(gpus: GpuTable) -> Floats:
    """Return the bytes of distinct data that one SM can keep in the L2, [gpus]: half of an L2 with two partitions."""
    architectures = gpus.architectures or ("",) * len(gpus)
    share: Floats = np.array([1.0 / _PARTITIONS.get(architecture, 1) for architecture in architectures])
    return share * gpus.column("l2_bytes")
