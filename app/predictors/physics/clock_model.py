"""Clock model: sustained compute rates at the clock that board power allows, and sustained DRAM bandwidth.

A busy pipe takes power e x rate x V^2, with voltage V rising with the clock, so a card of little power runs long
matrix products far under its boost clock (L4, T4). Of the largest clock f up to boost with w + 0.2 TDP + e c P (f /
f_boost) V(f)^2 <= TDP, V(f) = max(0.6, 0.2 + 0.8 f / f_n), the sustained rate is c P f / f_boost, c the part of its
peak P that a pipe reaches at any clock. For tensor units w = 0 and f_n = 1.57 GHz sqrt(7 nm / node); for lanes f_n is
at least f_boost, and e grows with the node. The constants of tensor units were fitted on eighteen measured ceilings,
those of lanes on ten (P4 to A100, RTX 4090), 6 % off; their form was chosen with all of them in view. Since Hopper,
lanes draw less and reach less: an H200 ran FP32 products at its boost clock (docs/reference/results.md, "Clocks").
Tensor units of Blackwell Ultra draw less again (`tensor_saving`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.coefficients import Coefficients
from app.predictors.roofline import PIPES_OF_DTYPE, rate_share
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Floats
from app.tables.gpus import COLUMN_INDEX, GpuTable, once_per_table
from app.tables.ops import DTYPES

_FITTED = Coefficients("physics")

# Part of a pipe's peak that the best kernels reach: lanes; lanes since Hopper, whose kernels are those of the A100 with
# half as many per SM (products of our H200 and H100 at their boost clock); and tensor units.
LANES_CAP, HOPPER_LANES_CAP, TENSOR_CAP = _FITTED.each("lanes_cap", "hopper_lanes_cap", "tensor_cap")
# The same of AMD's matrix cores, and the rate of FP8 by blocks over that by rows there, by the start of their key.
MATRIX_CORE_CAP, MATRIX_CORE_BLOCK_SHARE = _FITTED.each("matrix_core_cap", "matrix_core_block_share")
_MATRIX_CORES = ("cdna 3", "cdna 4")
# Energy at 1 V of a BF16 operation on tensor units, J; fewer bits take less, by this factor each time they are halved.
TENSOR_ENERGY_J, HALVING_SAVING = _FITTED.each("tensor_energy_j", "halving_saving")
# Saving of tensor units since Hopper (the 4 nm class), and of lanes, which ran at the boost clock on our H200 and draw
# as much at most by it; and energy of matrix units that compute in full FP32 (AMD), J.
WARP_GROUP_SAVING, WARP_GROUP_NODE_NM = _FITTED.number("warp_group_saving"), 4.0
FP32_TENSOR_ENERGY_J = _FITTED.number("fp32_tensor_energy_j")
# Energy at 1 V of an FP32 operation on lanes of the default node, J; it grows with the node to this exponent.
LANES_ENERGY_J, NODE_EXPONENT = _FITTED.each("lanes_energy_j", "node_exponent")
_BITS = {"fp64": 64, "fp32": 32, "tf32": 19, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "fp4": 4}
IDLE_SHARE = _FITTED.number("idle_share")
# Part of the board power that products draw on top of that: alone what is left, in a network more, since its other
# rows draw less.
ALONE_SHARE, NETWORK_SHARE = 1.0 - IDLE_SHARE, _FITTED.number("network_share")
# Power of a board besides those shares when products on its lanes run alone, W: it matters on small cards.
FIXED_W = _FITTED.number("fixed_w")
# Process node if the catalogue has none, that of 2020, the clock of nominal voltage there, and the lowest voltage.
DEFAULT_NODE_NM, NOMINAL_HZ, LEAST_VOLTS = 7.0, _FITTED.number("nominal_hz"), _FITTED.number("least_volts")
# Run states: products after products; a card that was idle; products between the other operators of a network.
BUSY, COOL, IN_NETWORK = range(3)
# Pipes in which FP16 operands are computed once converted.
_CONVERTED = ("fp32",)
_HOPPER = float(GENERATIONS.index("hopper"))
_CLOCKS = np.linspace(0.05, 1.0, 96)[:, None]

# L2 caches whose partitions each keep a copy of what SMs on either side read (Ampere whitepaper, 2020; also Hopper).
_PARTITIONS = {"ampere/hbm": 2, "hopper/hbm": 2}


def _energy_j(pipe: str, node_nm: Floats) -> Floats:
    """Return the energy of an operation of a pipe at 1 V, J [gpus]."""
    dtype, _, tensor = pipe.partition("_")
    saving = np.where(node_nm <= WARP_GROUP_NODE_NM, WARP_GROUP_SAVING, 1.0)
    if not tensor:
        energy = LANES_ENERGY_J * (_BITS[dtype] / 32.0) * (node_nm / DEFAULT_NODE_NM) ** NODE_EXPONENT
        return np.asarray(energy / saving, dtype=np.float64)
    if dtype == "fp32":
        return np.full(len(node_nm), FP32_TENSOR_ENERGY_J)
    of_format = TENSOR_ENERGY_J / HALVING_SAVING ** float(np.log2(16.0 / _BITS[dtype]))
    return np.asarray(of_format / saving, dtype=np.float64)


def _clock_share(gpus: GpuTable, pipe: str, rate: Floats, drawn: float) -> Floats:
    """Return the fraction of the boost clock, [gpus], at which a pipe of `rate` FLOP/s draws `drawn` of the power."""
    node, boost_hz = gpus.column("process_node_nm"), gpus.column("boost_clock_hz")
    node = np.where(np.isnan(node), DEFAULT_NODE_NM, node)
    nominal_hz, left_w = NOMINAL_HZ * np.sqrt(DEFAULT_NODE_NM / node), drawn * gpus.column("board_power_w")
    if not pipe.endswith("_tensor"):
        nominal_hz, left_w = np.maximum(nominal_hz, boost_hz), left_w - FIXED_W * drawn / ALONE_SHARE
    volts = np.maximum(LEAST_VOLTS, 0.2 + 0.8 * _CLOCKS * boost_hz / nominal_hz)
    saving = gpus.column("tensor_saving") if pipe.endswith("_tensor") else 1.0
    over = _energy_j(pipe, node) / saving * rate * _CLOCKS * volts**2 > left_w  # False for an unknown power
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


def _tensor_cap(gpus: GpuTable, dtype: str) -> Floats:
    """Return the part of the peak of tensor units that the best kernels of a dtype reach at any clock, [gpus]."""
    amd = np.array([key.startswith(_MATRIX_CORES) for key in gpus.architectures or ("",) * len(gpus)])
    blocks = MATRIX_CORE_BLOCK_SHARE if dtype == "fp8_block" else 1.0
    return np.where(amd, MATRIX_CORE_CAP * blocks, TENSOR_CAP)


def _pipes(gpus: GpuTable, dtype: str) -> Iterator[tuple[Floats, Floats]]:
    """Yield for each pipe of a dtype its rate at boost, FLOP/s [gpus], and the sustained fraction [3, gpus]."""
    lanes_cap = np.where(gpus.column("generation") >= _HOPPER, HOPPER_LANES_CAP, LANES_CAP)
    # If the FP16 pipe is slower than FP32 (compute capability 6.1), kernels convert and compute in FP32.
    converts = "fp16" in PIPES_OF_DTYPE[dtype]
    for pipe in (*PIPES_OF_DTYPE[dtype], *(_CONVERTED if converts else ())):
        tensor = pipe.endswith("tensor")
        rate = (_tensor_cap(gpus, dtype) if tensor else lanes_cap) * gpus.values[COLUMN_INDEX[f"peak_{pipe}_flops"]]
        rate = rate * rate_share(gpus, dtype)
        if pipe in _CONVERTED and converts:
            rate = np.where(np.isnan(gpus.column("peak_fp16_flops")), np.nan, rate)
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
    streamed: Floats = gpus.column("streamed_share") * gpus.column("memory_bandwidth_bytes_per_s")
    return streamed


@once_per_table
def effective_l2_bytes(gpus: GpuTable) -> Floats:
    """Return the bytes of distinct data that one SM can keep in the L2, [gpus]: half of an L2 with two partitions."""
    architectures = gpus.architectures or ("",) * len(gpus)
    share: Floats = np.array([1.0 / _PARTITIONS.get(architecture, 1) for architecture in architectures])
    return share * gpus.column("l2_bytes")
