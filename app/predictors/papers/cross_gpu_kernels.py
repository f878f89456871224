"""The cross-GPU kernels paper: efficiency transfer, and seven regressors (table 6) over pairs of GPUs.

`efficiency` is algorithm 1 (section 4.0.5):

    eta = P_measured / (O_src Roof_src)        T_tgt = work / (eta O_tgt Roof_tgt)

with occupancy O and Roof = min(C, AI BW) for FLOPs > 0, BW for FLOPs = 0. Both cases are one formula: work / Roof
is the roof time max(FLOPs / C, bytes / BW), so T_tgt = T_src (roof time / O)_tgt / (roof time / O)_src. The paper
has the same work on both sides; here each side has its own, so a kernel's efficiency also transfers to another size,
as the paper's text says but its code does not do.

A pair is one launch measured on a source GPU, and measured or queried on a target GPU (section 4, "Machine Learning
Model"). Features keep the authors' units (ms, GFLOP/s, GB/s), the target is raw milliseconds and nothing is scaled, as
in their code: several of the regressors are not invariant to scale. scikit-learn fits, flat arrays serve. An eighth is
a fitting function, its line in FITTERS and a class that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from app.bands.groups import OTHER_GPU_AND_SIZE, RELATED
from app.errors import NotTrained
from app.ops.kernel import FIELD_INDEX, SIZE_FIELDS
from app.predictors.base import Capabilities
from app.predictors.flat import FlatModel, flat_model
from app.predictors.launches import Sources, launch_ids, paper_occupancy
from app.predictors.roofline import GpuArrays, gpu_arrays, hardware_limit
from app.predictors.schema import Layout
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import DTYPE_CODE, OpTable, concatenate
from app.tables.predictions import COMPUTE, MEMORY, Estimate

_FP32 = DTYPE_CODE["fp32"]
_FLOPS, _BYTES = FIELD_INDEX["flops"], FIELD_INDEX["bytes"]
_BANDWIDTH = COLUMN_INDEX["memory_bandwidth_bytes_per_s"]
_SUSTAINED_COMPUTE = COLUMN_INDEX["sustained_compute_flops"]
_SUSTAINED_BANDWIDTH = COLUMN_INDEX["sustained_bandwidth_bytes_per_s"]


class _Pairs(NamedTuple):
    """n pairs of a measured launch and the launch to predict, rows as in `transfer`.

    dims       float64 [fields, 2 n]
    dtype      int [2 n]
    gpu        int [2 n]
    latency_s  float64 [n]
    """

    dims: Floats
    dtype: Ints
    gpu: Ints
    latency_s: Floats


@compiled
def _fill(pairs: _Pairs, gpus: GpuArrays, predicted: Floats, bound: Ints) -> None:
    """Fill `predicted` [n], seconds, and `bound` [n], codes into BOUNDS, for every pair."""
    dims, dtype, gpu, figures, n = pairs.dims, pairs.dtype, pairs.gpu, gpus.figures, len(pairs.latency_s)
    for pair in range(n):
        source, target = gpu[pair], gpu[n + pair]
        known = figures[_SUSTAINED_COMPUTE, source] + figures[_SUSTAINED_COMPUTE, target]
        known += figures[_SUSTAINED_BANDWIDTH, source] + figures[_SUSTAINED_BANDWIDTH, target]
        sustained = not np.isnan(known) and dtype[n + pair] == _FP32  # NaN if any of the four is
        ideal_s = np.empty(2)
        for side in range(2):
            row = side * n + pair
            compute, bandwidth = gpus.peak[dtype[row], gpu[row]], figures[_BANDWIDTH, gpu[row]]
            if sustained:
                compute, bandwidth = figures[_SUSTAINED_COMPUTE, gpu[row]], figures[_SUSTAINED_BANDWIDTH, gpu[row]]
            compute_s, memory_s = dims[_FLOPS, row] / compute, dims[_BYTES, row] / bandwidth
            bound[pair] = COMPUTE if compute_s > memory_s else MEMORY
            roof_s = compute_s if compute_s > memory_s else memory_s
            ideal_s[side] = roof_s / paper_occupancy(dims, row, figures, gpu[row])
        predicted[pair] = pairs.latency_s[pair] * ideal_s[1] / ideal_s[0]


def transfer(launches: OpTable, latency_s: Floats, gpus: GpuTable, gpu: Ints) -> tuple[Floats, Ints]:
    """Return the seconds on the target GPU, and the code into BOUNDS of its roof, for n pairs.

    launches   2 n rows: every pair's measured launch, then every pair's launch to predict
    latency_s  float64 [n], measured seconds on the source GPU
    gpu        int [2 n], rows of `gpus`: every pair's source, then every pair's target

    Roofs are measured sustained figures (FP32) if both GPUs of a pair have them, else datasheet peaks on both.
    """
    predicted, bound = np.empty(len(latency_s)), np.empty(len(latency_s), dtype=np.intp)
    _fill(_Pairs(launches.dims, launches.dtype, gpu, latency_s), gpu_arrays(gpus), predicted, bound)
    return predicted, bound


class Efficiency:
    """The paper's analytical model; needs a measurement of the kernel on some GPU, at this size or another."""

    name: ClassVar[str] = "efficiency"
    can: ClassVar[Capabilities] = Capabilities(("launches",))

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the transfer from each query's strongest evidence of its kernel; the geometric mean of several."""
        sources = Sources.strongest(ops, i, j, evidence, weakest=OTHER_GPU_AND_SIZE)
        rows, query = evidence.rows.take(sources.pair), sources.query
        launches = concatenate([rows.ops, ops.take(i[query])])
        gpu = np.concatenate([rows.gpu, j[query]])
        latency, pair_bound = transfer(launches, rows.latency_s, gpus, gpu)
        bound = np.full(len(i), MEMORY)
        bound[query] = pair_bound
        return Estimate(sources.mean(latency), bound, sources.support(), sources.group)


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


# Most pairs to train on; of more, a seeded sample: artefacts stay under some 25 MB, and the support vector machine,
# whose cost grows with the square, fits in seconds.
MAX_PAIRS = 5000


class PairRegressor:
    """One regressor as a predictor: every pair of evidence and query has a prediction."""

    name: ClassVar[str]
    can: ClassVar[Capabilities] = Capabilities(("launches",), ("launches",), needs_training=True)
    model_: FlatModel

    def fit(self, measurements: Measurements, gpus: GpuTable, *, target_gpu: str | None = None) -> Self:
        """Return the regressor fitted to all ordered pairs of a launch on two GPUs; with `target_gpu`, those to it."""
        from app.predictors.papers.cross_gpu_kernels_fit import FITTERS  # noqa: PLC0415  (seconds and 80 MB that serving never needs)

        rows, launch = one_row_per_gpu(measurements)
        source, target = ordered_pairs(launch)
        if target_gpu is not None:
            to_it = np.array([gpus.ids[gpu] == target_gpu for gpu in rows.gpu[target]], dtype=bool)
            source, target = source[to_it], target[to_it]
        if len(source) == 0:
            where = "two or more GPUs" if target_gpu is None else f"{target_gpu} and on another GPU"
            raise NotTrained(f"'{self.name}' learns from launches measured on {where}; there is none yet.")
        if len(source) > MAX_PAIRS:
            kept = np.sort(np.random.default_rng(0).choice(len(source), MAX_PAIRS, replace=False))
            source, target = source[kept], target[kept]
        features = pair_features(
            rows.ops.take(target),
            rows.latency_s[source],
            gpu_features(gpus, rows.gpu[source]),
            gpu_features(gpus, rows.gpu[target]),
        )
        self.model_ = FITTERS[self.name](features, rows.latency_s[target] * MS_PER_S)
        return self

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return each query's prediction from its strongest evidence; of several, the geometric mean."""
        sources = Sources.strongest(ops, i, j, evidence, weakest=RELATED)
        rows, query = evidence.rows.take(sources.pair), sources.query
        features = pair_features(
            ops.take(i[query]), rows.latency_s, gpu_features(gpus, rows.gpu), gpu_features(gpus, j[query])
        )
        latency = sources.mean(self.model_.predict(features) / MS_PER_S)
        return Estimate(latency, hardware_limit(ops, gpus, i, j).bound, sources.support(), sources.group)

    @staticmethod
    def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
        """No operators: launches only."""
        return []

    @staticmethod
    def layout(operators: Collection[str]) -> Layout:
        """Of a fitted model."""
        return Layout({"features of pairs": PAIR_FEATURES})

    def state(self) -> dict[str, Any]:
        """The fitted model as flat arrays."""
        return {"model": self.model_.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Ready to serve, without scikit-learn."""
        regressor = cls()
        regressor.model_ = flat_model(state["model"])
        return regressor


class Forest(PairRegressor):
    """The paper's "ML model"."""

    name = "forest"


class Linear(PairRegressor):
    """Ordinary least squares."""

    name = "linear"


class RidgeRegression(PairRegressor):
    """Ridge regression."""

    name = "ridge"


class LassoRegression(PairRegressor):
    """Lasso."""

    name = "lasso"


class SupportVectors(PairRegressor):
    """Support vector regression."""

    name = "svr"


class Boosting(PairRegressor):
    """Gradient boosting."""

    name = "boosting"


class NearestNeighbours(PairRegressor):
    """k nearest neighbours."""

    name = "knn"


REGRESSORS: tuple[type[PairRegressor], ...] = (
    Forest,
    Linear,
    RidgeRegression,
    LassoRegression,
    SupportVectors,
    Boosting,
    NearestNeighbours,
)
