"""Source-target pairs of one launch, and the cross-GPU kernels paper's features of a pair.

A pair is one launch measured on a source GPU, and measured or queried on a target GPU (section 4, "Machine
Learning Model"). Features keep the authors' units (ms, GFLOP/s, GB/s): several of their regressors are not
invariant to scale.
"""

from __future__ import annotations

import numpy as np

from app.ops.kernel import FIELD_INDEX, SIZE_FIELDS
from app.predictors.launches.identity import launch_ids
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import OpTable

MS_PER_S = 1e3
GIGA = 1e9
LAUNCH_FEATURES = ("registers_per_thread", "shared_memory_per_block", "threads_per_block", *SIZE_FIELDS)
# The GPU figures of a pair: column, the column used if it is absent, and the authors' unit. They
# list twelve; both `calibrated_*` ones are absent from their GPU file and zero in all their results.
GPU_FEATURES = (
    ("peak_fp32_flops", "peak_fp32_flops", GIGA),
    ("sustained_compute_flops", "peak_fp32_flops", GIGA),
    ("memory_bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s", GIGA),
    ("sustained_bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s", GIGA),
    ("sm_count", "sm_count", 1.0),
    ("max_threads_per_sm", "max_threads_per_sm", 1.0),
    ("max_blocks_per_sm", "max_blocks_per_sm", 1.0),
    ("registers_per_sm", "registers_per_sm", 1.0),
    ("shared_memory_per_sm_bytes", "shared_memory_per_sm_bytes", 1.0),
    ("warp_size", "warp_size", 1.0),
)

# Columns of a pair.
PAIR_FEATURES = (
    *("flops", "bytes", "flops/bytes"),
    *LAUNCH_FEATURES,
    "source_ms",
    *(f"{side} {name}" for name, _, _ in GPU_FEATURES for side in ("source", "target")),
)

_FIGURE = np.array([COLUMN_INDEX[name] for name, _, _ in GPU_FEATURES])[:, None]
_FALLBACK = np.array([COLUMN_INDEX[name] for _, name, _ in GPU_FEATURES])[:, None]
_UNIT = np.array([unit for *_, unit in GPU_FEATURES])[:, None]
_LAUNCH = np.array([FIELD_INDEX[name] for name in LAUNCH_FEATURES])


def gpu_features(gpus: GpuTable, j: Ints) -> Floats:
    """Return the GPU features of GPU rows `j` in the authors' units, float64 [n, len(GPU_FEATURES)]."""
    figures = gpus.values[_FIGURE, j]
    fallbacks = gpus.values[_FALLBACK, j]
    features: Floats = (np.where(np.isnan(figures), fallbacks, figures) / _UNIT).T
    return features


def pair_features(ops: OpTable, latency_s: Floats, source: Floats, target: Floats) -> Floats:
    """Return the features of n pairs, float64 [n, 11 + 2 k].

    ops             the launch of every pair, n rows
    latency_s       float64 [n], measured on the source, seconds
    source, target  float64 [n, k], GPU features of either side

    Columns: FLOPs, bytes, FLOPs per byte, LAUNCH_FEATURES, source time in ms, then source and target figure
    of each GPU feature in turn. Absent figures are 0, as the authors fill them.
    """
    features = np.empty((len(latency_s), 4 + len(LAUNCH_FEATURES) + 2 * source.shape[1]))
    flops, moved = ops.column("flops"), ops.column("bytes")
    with np.errstate(divide="ignore", invalid="ignore"):
        features[:, 2] = flops / moved
    features[:, 0], features[:, 1] = flops, moved
    features[:, 3:10] = ops.dims[_LAUNCH].T
    features[:, 10] = latency_s * MS_PER_S
    features[:, 11::2], features[:, 12::2] = source, target
    features[~np.isfinite(features)] = 0.0
    return features


def one_row_per_gpu(measurements: Measurements) -> tuple[Measurements, Ints]:
    """Return one row per launch and GPU (the first, with the median time), and the launch of each, int [rows]."""
    ops = measurements.ops
    launch = launch_ids(ops)
    key = np.stack([launch, measurements.gpu])
    _, first, group, count = np.unique(key, axis=1, return_index=True, return_inverse=True, return_counts=True)
    latency = measurements.latency_s[np.lexsort((measurements.latency_s, group.ravel()))]
    start = np.cumsum(count) - count
    median = (latency[start + (count - 1) // 2] + latency[start + count // 2]) / 2
    return Measurements(ops.take(first), measurements.gpu[first], median), launch[first]


def ordered_pairs(launch: Ints) -> tuple[Ints, Ints]:
    """Return all ordered pairs (source, target) of distinct rows of one launch; `launch` int [rows]."""
    order = np.argsort(launch, kind="stable")
    _, start, count = np.unique(launch[order], return_index=True, return_counts=True)
    per_row, begin = np.repeat(count, count), np.repeat(start, count)
    source = np.repeat(np.arange(len(launch)), per_row)
    within = np.arange(len(source)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    target = np.repeat(begin, per_row) + within
    distinct = source != target
    return order[source[distinct]], order[target[distinct]]
