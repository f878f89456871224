"""Launches of kernels: measured ones as evidence for others, and how many blocks of one are resident on an SM.

`resident_blocks` follows the hardware, as CUDA's occupancy calculator does (whole warps, allocation units of registers
and shared memory, a partitioned register file, reserved shared memory); `paper_occupancy` follows the cross-GPU kernels
paper, section 4.0.2, exactly. `all_runnable` and `none_below_limit` are fast checks before detailed errors are built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.bands.groups import EXACT, NO_EVIDENCE, OTHER_GPU, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU, SUPPORT_OF_GROUP
from app.ops.kernel import FIELD_INDEX, IDENTITY_FIELDS
from app.predictors.roofline import GpuArrays, boosted_arrays, gpu_arrays, memory_limit_s
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable

_IDENTITY = np.array([FIELD_INDEX[name] for name in IDENTITY_FIELDS])


def launch_ids(ops: OpTable) -> Ints:
    """Return a number per row, int [rows], equal for rows of the same launch; an absent figure counts as 0."""
    codes = [np.unique(column, return_inverse=True)[1] for column in (ops.label, ops.kind, ops.dtype)]
    key = np.vstack([codes, np.nan_to_num(ops.dims[_IDENTITY])])
    numbers: Ints = np.unique(key, axis=1, return_inverse=True)[1].ravel()
    return numbers


_LAUNCH = FIELD_INDEX["launch"]
# Relation by the attributes that a row shares with its query: 4 for the kernel, 2 for the launch, 1 for the GPU.
RELATION = np.array([RELATED] * 4 + [OTHER_GPU_AND_SIZE, SAME_GPU, OTHER_GPU, EXACT])


def relations(ops: OpTable, i: Ints, j: Ints, evidence: Evidence) -> Ints:
    """Return the relation of each evidence row to its query, int [m], code into GROUPS.

    Query q is operator row `i[q]` of `ops` on GPU row `j[q]`.
    """
    rows, query = evidence.rows, i[evidence.query]
    kernel = rows.ops.label == ops.label[query]
    launch = rows.ops.dims[_LAUNCH] == ops.dims[_LAUNCH, query]
    relation: Ints = RELATION[4 * kernel + 2 * launch + (rows.gpu == j[evidence.query])]
    return relation


def best_group(relation: Ints, query: Ints, n: int) -> Ints:
    """Return the strongest relation of every query, int [n]; NO_EVIDENCE for a query without rows."""
    if len(query) == n == 1:
        return relation
    group = np.full(n, NO_EVIDENCE)
    np.minimum.at(group, query, relation)
    return group


@dataclass(frozen=True, slots=True)
class Sources:
    """The strongest evidence of n queries, as m pairs of evidence and query.

    pair   int [m], evidence rows of their query's best relation
    query  int [m], their queries
    group  int [n], best relation of each query, code into GROUPS
    """

    pair: Ints
    query: Ints
    group: Ints

    @classmethod
    def strongest(cls, ops: OpTable, i: Ints, j: Ints, evidence: Evidence, *, weakest: int) -> Sources:
        """Return the evidence of each query's best relation; relations weaker than `weakest` are ignored."""
        relation = relations(ops, i, j, evidence)
        group = best_group(relation, evidence.query, len(i))
        group[group > weakest] = NO_EVIDENCE
        pair = np.flatnonzero(relation == group[evidence.query])
        return cls(pair, evidence.query[pair], group)

    def support(self) -> Ints:
        """Return the support of every query, int [n], code into SUPPORTS."""
        support: Ints = SUPPORT_OF_GROUP[self.group]
        return support

    def mean(self, latency_s: Floats) -> Floats:
        """Return the geometric mean of the pairs' times `latency_s` [m] per query, float64 [n].

        Invalid times (NaN, zero, negative) are ignored; a query without a valid one is NaN.
        """
        usable = np.isfinite(latency_s) & (latency_s > 0)
        query, n = self.query[usable], len(self.group)
        with np.errstate(invalid="ignore"):
            total = np.bincount(query, np.log(latency_s[usable]), n) / np.bincount(query, minlength=n)
        mean: Floats = np.exp(total)
        return mean


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


_FLOPS, _BYTES, _WORKING_SET = (FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes"))
_CAPS = len(LIMITS)


class _Measured(NamedTuple):
    """Measured kernels: `dims` float64 [fields, n] and `dtype` int [n] of their launches; seconds and GPU rows, [n]."""

    dims: Floats
    dtype: Ints
    latency_s: Floats
    gpu: Ints


def all_runnable(ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> bool:
    """Return True if every kernel row `i[q]` fits on an SM of GPU row `j[q]`, and that GPU supports its dtype."""
    return bool(_all_runnable(ops.dims, ops.dtype, i, j, gpu_arrays(gpus)))


def none_below_limit(kernels: Measurements, gpus: GpuTable, tolerance: float) -> bool:
    """Return True if no kernel was measured at less than (1 - `tolerance`) times its hardware limit."""
    measured = _Measured(kernels.ops.dims, kernels.ops.dtype, kernels.latency_s, kernels.gpu)
    return bool(_none_below_limit(measured, boosted_arrays(gpus), 1.0 - tolerance))


@compiled
def _all_runnable(dims: Floats, dtype: Ints, i: Ints, j: Ints, gpus: GpuArrays) -> bool:
    caps = np.empty(_CAPS)
    for q in range(len(i)):
        row, gpu = i[q], j[q]
        if blocks_allowed(dims, row, gpus.figures, gpu, caps) < 1.0:
            return False
        if dims[_FLOPS, row] > 0.0 and np.isnan(gpus.peak[dtype[row], gpu]):
            return False
    return True


@compiled_per_row
def _none_below_limit(measured: _Measured, gpus: GpuArrays, share: float) -> bool:
    dims, latency_s = measured.dims, measured.latency_s
    for row in range(len(latency_s)):
        gpu = measured.gpu[row]
        compute_s = dims[_FLOPS, row] / gpus.peak[measured.dtype[row], gpu]
        memory_s = memory_limit_s(dims[_BYTES, row], dims[_WORKING_SET, row], gpus.figures, gpu)
        if latency_s[row] < share * compute_s or latency_s[row] < share * memory_s:
            return False
    return True
