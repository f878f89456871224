"""Analytic time of deep-learning operators, one documented constant per family: `auto` before it is trained.

time = overhead + (compute^p + memory^p)^(1/p), never under the hardware limit; compute = FLOPs / (sustained rate x
tile efficiency x the family's share, less of which is lost if the tensor peak is reduced) + clocks of blocks and
synchronisation / (SMs x clock), memory = bytes that miss the L2 / (sustained bandwidth x share), at least all bytes /
L2 bandwidth. Overhead is the host's per operator if PyTorch launches each (eager), else the device's per launch. No
measurement of the row or its GPU is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.figures import LibraryCosts
from app.ops.gemm import CANDIDATES, wave_efficiency
from app.predictors.physics.clock_model import (
    BUSY,
    COOL,
    IN_NETWORK,
    bandwidths,
    compute_rates,
    effective_l2_bytes,
    peak_reductions,
)
from app.predictors.physics.operator_features import SPACES, OperatorFeatures, speed_of
from app.predictors.priors import (
    BEFORE_AMPERE,
    BY_KIND,
    CHUNKS,
    FAST_LINK_BYTES_PER_S,
    FAST_SHARE,
    GONE_FROM,
    HOP_S,
    HOST_SHARE,
    IN_TURN_SHARE,
    IS_COLLECTIVE,
    IS_EAGER,
    IS_LINEAR,
    KEPT_SHARE,
    KEPT_TO,
    L2_SHARE,
    LAUNCH_CLOCK_HZ,
    LOST_FROM,
    QUANTISED_BYTES,
    QUANTISING,
    REACHED,
    SINCE_AMPERE,
    SINCE_AMPERE_IN_PLACE,
    SINCE_HOPPER,
    SLOW_SHARE,
    STAYS_TO,
    TILES_OF_KIND,
)
from app.predictors.roofline import memory_limit_s, peaks
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable, once_per_table
from app.tables.predictions import COMMUNICATION, COMPUTE, LAUNCH, MEMORY

_BLOCKS, _CLOCKS, _SHARED_BYTES, HANDED_BYTES, _FLOPS = range(len(LibraryCosts._fields))
_TILE_SPEED = speed_of(CANDIDATES) / speed_of(CANDIDATES).max()
# Spaces in which products are computed. Libraries have kernels for the first only before Ampere, for the third since
# Ampere, for the second only with tensor units, for the fourth only without; the last is the plain product. It is the
# only one since Hopper, by the names of cuDNN 9's kernels.
_OLD, _FUSED, _NEW, _GROUPED, _PLAIN = range(SPACES)
_HOPPER = float(GENERATIONS.index("hopper"))
_SMS, _CLOCK = COLUMN_INDEX["sm_count"], COLUMN_INDEX["boost_clock_hz"]
_GENERATION, _SHARED_MEMORY = COLUMN_INDEX["generation"], COLUMN_INDEX["shared_memory_per_sm_bytes"]
_L2, _L2_BANDWIDTH = COLUMN_INDEX["l2_bytes"], COLUMN_INDEX["l2_bandwidth_bytes_per_s"]
_BF16 = COLUMN_INDEX["peak_bf16_tensor_flops"]  # present since Ampere
_TENSOR = COLUMN_INDEX["peak_fp16_tensor_flops"]
_LINK, _HOST_LAUNCHED = COLUMN_INDEX["link_bandwidth_bytes_per_s"], COLUMN_INDEX["host_launched"]


# Rows of `terms`, seconds each: launch overhead, shortest possible time, work by bottleneck (0 if the row has none),
# hardware limit, total time, and the work of all bottlenecks combined.
OVERHEAD, LEAST, COMPUTE_S, DRAM_S, L2_S, LINK_S, LIMIT, TIME, WORK_S = range(9)
TERMS = 9


# Tile of a GPU whose kernels use any of the default tiles; otherwise a row of CANDIDATES, the only tile they use.
ANY_TILE = -1


class Devices(NamedTuple):
    """The GPU table as arrays for compiled code.

    rates           float64 [3, dtypes, gpus], sustained FLOP/s by run state
    peak_reduction  float64 [dtypes, gpus], the chip's sustained tensor rate over the GPU's; 1 unless reduced
    bandwidth       float64 [gpus], sustained DRAM B/s
    effective_l2    float64 [gpus], bytes of distinct data that one SM can keep in the L2
    peak            float64 [dtypes, gpus], peak FLOP/s
    figures         float64 [columns, gpus], values of the GPU table
    """

    rates: Floats
    peak_reduction: Floats
    bandwidth: Floats
    effective_l2: Floats
    peak: Floats
    figures: Floats


_waves = compiled_per_row(wave_efficiency)


@compiled_per_row
def is_eager(op_features: OperatorFeatures, row: int) -> bool:
    """Return whether the host launches the operator: as given, else the default of its dtype."""
    return bool(IS_EAGER[op_features.dtype[row]] if np.isnan(op_features.eager[row]) else op_features.eager[row] > 0.0)


@compiled_per_row
def run_state(op_features: OperatorFeatures, row: int) -> int:
    """Return the run state, a row of the sustained rates.

    COOL in bursts, IN_NETWORK for PyTorch's own dtypes if not launched eagerly, else BUSY.
    """
    state = IN_NETWORK if IS_EAGER[op_features.dtype[row]] and not is_eager(op_features, row) else BUSY
    return COOL if op_features.burst[row] > 0.0 else state


@compiled
def run_states(op_features: OperatorFeatures, n: int) -> Ints:
    """Return the run states of the first n rows, int [n]."""
    states = np.empty(n, dtype=np.intp)
    for row in range(n):
        states[row] = run_state(op_features, row)
    return states


@compiled_per_row
def best_tile(op_features: OperatorFeatures, row: int, devices: Devices, gpu: int, only: int) -> tuple[int, float]:
    """Return the candidate tile with the largest share of the peak, and that share; -1 and 1 for a row without tiles.

    `only`: the only candidate to consider, or ANY_TILE for all default ones.
    """
    best, best_share, sms = -1, 0.0, devices.figures[_SMS, gpu]
    usual = min(op_features.blocks.shape[0], TILES_OF_KIND[op_features.kind[row]])
    first, stop = (only, only + 1) if only >= 0 else (0, usual)
    for tile in range(first, stop):
        share = op_features.fill[tile, row] * _TILE_SPEED[tile]
        if share > best_share:
            # Inline: most rows have no such products, and even the call would cost time.
            if tile < op_features.transformed.shape[0] and op_features.transformed[_FUSED, row] > 0.0:
                share = _share_in_space(op_features, row, devices, gpu, tile)
            else:
                share *= _waves(op_features.blocks[tile, row], op_features.splits[row], sms, only >= 0)
            if share > best_share:
                best, best_share = tile, share
    return best, best_share if best >= 0 else 1.0


@compiled_per_row
def _compute_share(op_features: OperatorFeatures, row: int, devices: Devices, gpu: int) -> float:
    """Return the share of the sustained rate that the operator's kernels attain on full tiles."""
    kind, on_tensor_units = op_features.kind[row], devices.figures[_TENSOR, gpu] > 0.0
    if devices.figures[_GENERATION, gpu] >= _HOPPER:
        era = SINCE_HOPPER
    elif devices.figures[_BF16, gpu] > 0.0:
        era = SINCE_AMPERE if op_features.relaid[row] > 0.0 else SINCE_AMPERE_IN_PLACE
    else:
        era = BEFORE_AMPERE
    reached = REACHED[era, kind, op_features.dtype[row]] if on_tensor_units else 1.0
    return float(BY_KIND[kind, 0] * reached)


@compiled_per_row
def _share_in_space(op_features: OperatorFeatures, row: int, devices: Devices, gpu: int, space: int) -> float:
    """Return the share of the peak that products in a space reach, including the transforms; 0 without such kernels.

    A partial last wave takes as long as a full one, or less if the clock may rise because board power limited it.
    """
    if space != _PLAIN and devices.figures[_GENERATION, gpu] >= _HOPPER:
        return 0.0
    if space == (_OLD if devices.figures[_BF16, gpu] > 0.0 else _NEW):
        return 0.0
    if space == (_GROUPED if devices.figures[_TENSOR, gpu] > 0.0 else _FUSED):
        return 0.0
    if space == _PLAIN:
        full = op_features.fill[space, row] * _TILE_SPEED[space]
        return float(full * _waves(op_features.blocks[space, row], 1.0, devices.figures[_SMS, gpu], True))
    dtype, memory = op_features.dtype[row], BY_KIND[op_features.kind[row], 1]
    compute = _compute_share(op_features, row, devices, gpu)
    rate, boost = devices.rates[run_state(op_features, row), dtype, gpu], devices.rates[COOL, dtype, gpu]
    full, waves = (
        op_features.fill[space, row] * _TILE_SPEED[space],
        op_features.blocks[space, row] / devices.figures[_SMS, gpu],
    )
    last = waves - np.floor(waves)
    taken = np.floor(waves) + (max(last, rate / boost) if last > 0.0 else 0.0)
    moved_s = op_features.transformed[space, row] / (memory * devices.bandwidth[gpu])
    return float(1.0 / (taken / (waves * full) + moved_s * compute * rate / op_features.flops[row]))


@compiled_per_row
def _overhead_s(
    op_features: OperatorFeatures, row: int, devices: Devices, gpu: int, eager: bool
) -> tuple[float, float, float]:
    """Return the overhead (s), the shortest time (s), and the bytes moved to quantise activations.

    What a kernel takes without work is in part cycles (its barriers, the latency of caches), in part not (its launch,
    the latency of DRAM), so it falls with the square root of the clock.
    """
    kind, dtype = op_features.kind[row], op_features.dtype[row]
    host, device = BY_KIND[kind, 2], BY_KIND[kind, 3] * op_features.launches[row]
    if not IS_COLLECTIVE[kind]:
        device *= np.sqrt(LAUNCH_CLOCK_HZ / devices.figures[_CLOCK, gpu])
    if eager:
        return HOST_SHARE * host, max(host, device), 0.0
    if not IS_LINEAR[kind] or QUANTISING[dtype, 0] == 0.0:
        return device, device, 0.0
    return device + QUANTISING[dtype, 0], QUANTISING[dtype, 1], QUANTISED_BYTES * op_features.activations[row]


@compiled_per_row
def _reduced_peak_share(reduction: float, used: float) -> float:
    """Return the time of products at a reduced tensor peak, relative to the compute term at that peak.

    The peak is `reduction` times below the chip's. Other work (operands, exponentials, permutations) keeps the chip's
    speed and overlaps with the tensor units as memory does with compute; at the full peak, the units are busy for
    `used` of the time.
    """
    part = 1.0 / (reduction * reduction)
    return blend(1.0 / reduction, used * np.sqrt(np.sqrt(1.0 - part * part)))


@compiled_per_row
def library_cost(op_features: OperatorFeatures, cost: int, row: int, devices: Devices, gpu: int) -> float:
    """Return a cost of `LibraryCosts`, by its position, of the library that the GPU's generation runs; 0 without."""
    costs = op_features.library_costs
    return float(costs[cost, int(devices.figures[_GENERATION, gpu]), row]) if costs.shape[1] > 0 else 0.0


@compiled_per_row
def _block_clocks(op_features: OperatorFeatures, row: int, devices: Devices, gpu: int) -> float:
    """Return the SM clocks of a library's blocks, one after the other on all SMs; at least those of one."""
    blocks = library_cost(op_features, _BLOCKS, row, devices, gpu)
    shared = library_cost(op_features, _SHARED_BYTES, row, devices, gpu)
    at_once = max(np.floor(devices.figures[_SHARED_MEMORY, gpu] / shared), 1.0) if shared > 0.0 else 1.0
    turns = max(blocks / (at_once * devices.figures[_SMS, gpu]), 1.0)
    return float(library_cost(op_features, _CLOCKS, row, devices, gpu) * turns)


@compiled_per_row
def compute_s(op_features: OperatorFeatures, row: int, devices: Devices, gpu: int, only: int, slower: float) -> float:
    """Return the compute seconds: FLOPs (0 in a dtype without a known rate), synchronisation clocks, changes of layout.

    Layouts change before Ampere and since Hopper; libraries have kernels for either on GPUs between.

    `slower`: time of kernels at the full tensor peak over the prior's, which lowers the time the tensor units are busy.
    """
    dtype = op_features.dtype[row]
    sms, clock = devices.figures[_SMS, gpu], devices.figures[_CLOCK, gpu]
    shared = max(op_features.clocks[row] / sms, op_features.longest[row])
    meeting = float((shared + _block_clocks(op_features, row, devices, gpu)) / clock)
    rate, most = (
        devices.rates[run_state(op_features, row), dtype, gpu],
        library_cost(op_features, _FLOPS, row, devices, gpu),
    )
    if most > 0.0:
        rate = min(rate, most * sms * clock)
    rate *= _compute_share(op_features, row, devices, gpu)
    tile, share = best_tile(op_features, row, devices, gpu, only)
    products = float(op_features.flops[row] / (rate * share))
    used = BY_KIND[op_features.kind[row], 0] * (_TILE_SPEED[tile] if tile >= 0 else 1.0)
    products *= _reduced_peak_share(devices.peak_reduction[dtype, gpu], min(used / slower, 1.0))
    relaid_s = 0.0
    takes_either = devices.figures[_BF16, gpu] > 0.0 and devices.figures[_GENERATION, gpu] < _HOPPER
    if devices.figures[_TENSOR, gpu] > 0.0 and not takes_either:
        relaid_s = op_features.relaid[row] / (BY_KIND[op_features.kind[row], 1] * devices.bandwidth[gpu])
    return meeting + relaid_s + (0.0 if np.isnan(rate) else products)


@compiled_per_row
def _evicted(passing: float, l2: float) -> float:
    """Return the fraction evicted from an L2 of `l2` bytes after `passing` bytes."""
    return float(min(max((passing / l2 - STAYS_TO) / (GONE_FROM - STAYS_TO), 0.0), 1.0))


@compiled_per_row
def _memory_s(
    op_features: OperatorFeatures, row: int, quantised: float, devices: Devices, gpu: int
) -> tuple[float, float]:
    """Return the memory seconds: of L2 misses from DRAM, and of all bytes through the L2."""
    moved = op_features.moved[row] + quantised
    effective_l2 = devices.effective_l2[gpu]
    # The total traffic is exact, not estimated: it stays in the L2 as long as it fits.
    full = (op_features.in_flight[row] * devices.figures[_SMS, gpu] + KEPT_TO * op_features.passed[row]) / effective_l2
    missed = op_features.reread[row] * min(max((full - KEPT_TO) / (LOST_FROM - KEPT_TO), 0.0), 1.0)
    distinct = op_features.distinct[row] + quantised
    handed, l2 = library_cost(op_features, HANDED_BYTES, row, devices, gpu), devices.figures[_L2, gpu]
    evicted = _evicted(distinct + op_features.between[row], l2)
    lost = max(_evicted(handed, l2) - evicted, 0.0) * handed
    from_dram = min(moved, distinct) + missed + op_features.later[row] + handed
    if op_features.eager[row] < 0.0:  # the L2 still holds what the previous operator wrote, up to its size
        from_dram -= min(op_features.handed[row], effective_l2)
    share = IN_TURN_SHARE if op_features.between[row] > 0.0 else BY_KIND[op_features.kind[row], 1]
    dram_s = (evicted * from_dram + lost) / (share * devices.bandwidth[gpu])
    return dram_s, moved / (L2_SHARE * devices.figures[_L2_BANDWIDTH, gpu])


@compiled_per_row
def _limit_s(op_features: OperatorFeatures, row: int, devices: Devices, gpu: int) -> float:
    """Return the hardware limit in seconds (app.predictors.roofline); a dtype or link the GPU lacks sets no limit."""
    limit = memory_limit_s(op_features.moved[row], op_features.distinct[row], devices.figures, gpu)
    compute = op_features.least_flops[row] / devices.peak[op_features.dtype[row], gpu]
    link = op_features.sent[row] / devices.figures[_LINK, gpu]
    limit = limit if np.isnan(compute) else max(limit, compute)
    return float(limit if np.isnan(link) else max(limit, link))


@compiled_per_row
def composed(terms: Floats, q: int, work: float) -> float:
    """Return the seconds of query `q` if its work takes `work` seconds; at least the hardware limit."""
    return float(max(terms[OVERHEAD, q] + work, terms[LEAST, q], terms[LIMIT, q]))


@compiled_per_row
def blend(compute_s: float, memory_s: float) -> float:
    """Return the seconds of overlapping compute and memory, their p-norm; p = 4, which is quick to compute."""
    compute, memory = compute_s * compute_s, memory_s * memory_s
    return float(np.sqrt(np.sqrt(compute * compute + memory * memory)))


@compiled_per_row
def work_s(terms: Floats, q: int) -> float:
    """Return the seconds of work without overhead: blended compute and memory, or the link if slower."""
    return float(max(blend(terms[COMPUTE_S, q], max(terms[DRAM_S, q], terms[L2_S, q])), terms[LINK_S, q]))


@compiled_per_row
def _link_s(op_features: OperatorFeatures, row: int, link: float, waits: float) -> float:
    """Return the transfer seconds over a link, besides the latency `waits` of the messages."""
    if link <= FAST_LINK_BYTES_PER_S:  # False for NaN
        return float(op_features.sent[row] * np.sqrt(0.5 * max(op_features.devices[row], 2.0)) / (SLOW_SHARE * link))
    bytes_s = (op_features.sent[row] + KEPT_SHARE * op_features.kept[row]) / (FAST_SHARE * link)
    return float(bytes_s + CHUNKS * np.sqrt(bytes_s * waits))


@compiled_per_row
def fill_terms(
    op_features: OperatorFeatures, devices: Devices, queries: tuple[Ints, Ints], only: Ints, terms: Floats
) -> None:
    """Fill `terms` float64 [TERMS, n] for operator row `i[q]` on GPU row `j[q]` with tile `only[q]`.

    `queries`: (i, j), int [n] each.
    """
    i, j = queries
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        launched = is_eager(op_features, row) or devices.figures[_HOST_LAUNCHED, gpu] > 0.0
        adds, least, quantised = _overhead_s(op_features, row, devices, gpu, launched)
        terms[COMPUTE_S, q] = compute_s(op_features, row, devices, gpu, only[q], 1.0)
        terms[DRAM_S, q], terms[L2_S, q] = _memory_s(op_features, row, quantised, devices, gpu)
        terms[LINK_S, q] = 0.0
        if op_features.sent[row] > 0.0:
            waits = HOP_S * op_features.hops[row]
            adds += waits
            link_s = _link_s(op_features, row, devices.figures[_LINK, gpu], BY_KIND[op_features.kind[row], 3] + waits)
            terms[LINK_S, q] = 0.0 if np.isnan(link_s) else link_s
        terms[OVERHEAD, q], terms[LEAST, q] = adds, least
        terms[LIMIT, q] = _limit_s(op_features, row, devices, gpu)
        terms[WORK_S, q] = work_s(terms, q)
        terms[TIME, q] = composed(terms, q, terms[WORK_S, q])


@compiled_per_row
def bound_of(terms: Floats, q: int) -> int:
    """Return the bottleneck of query `q`, a code into BOUNDS."""
    work = terms[WORK_S, q]
    if work < 0.5 * max(terms[OVERHEAD, q] + work, terms[LEAST, q]):
        return LAUNCH
    if terms[LINK_S, q] >= work > 0.0:
        return COMMUNICATION
    return COMPUTE if terms[COMPUTE_S, q] > max(terms[DRAM_S, q], terms[L2_S, q]) else MEMORY


@once_per_table
def devices_of(gpus: GpuTable) -> Devices:
    """Return the GPU table as arrays for compiled code."""
    return Devices(
        compute_rates(gpus), peak_reductions(gpus), bandwidths(gpus), effective_l2_bytes(gpus), peaks(gpus), gpus.values
    )
