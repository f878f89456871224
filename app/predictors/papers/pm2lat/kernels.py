"""PM2Lat's kernels of one operator and dtype on one GPU, and which of them a shape gets.

ProductKernels are bound by compute: matrix products, and by the same rule convolutions (as implicit products),
attention and MoE (PM2Lat, section IV.C). Each has a throughput table. Kernels without a tile in their name are also
split by shape: one name (a framework's, or an autotuned Triton kernel's) covers many configurations, and a regression
tree splits them where a single table errs.

MemoryKernels are linear in bytes and instructions: for its utility layers (section III.C) the paper regresses latency
on memory traffic and executed instructions, which it counts with a profiler. Here they follow from the operator's
equations: bytes through the L2, bytes that do not fit into it, arithmetic instructions, and rows (the fixed cost of
each row of a reduction). Coefficients are non-negative, residuals relative; times are at least the launch floor.

PM2Lat queries cublasLtMatmulAlgoGetHeuristic on the device (section III.B); without a device, KernelChooser learns the
measured kernels from their shapes: a small decision tree as flat arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.ops.figures import Products
from app.predictors.flat import FlatTrees
from app.predictors.papers.base import LEAST_ROWS
from app.predictors.papers.pm2lat.throughput_table import Layout, fit_table, place, throughput
from app.tables.arrays import Floats, Ints

# Shapes per leaf at least, as one of so many, between two ends: the upper one was chosen on a validation part of the
# FP32 training rows among 1, 3, 10, 20 and 40; a K sweep has a few depths of each kernel.
LEAF_SHARE, LEAST_LEAF, MOST_LEAF = 40, 2, 10
# Tiles whose waves and fill are features.
_TILES = ((128, 128), (64, 64), (128, 64), (32, 128), (128, 32))
PRODUCT_FEATURES = (
    *("batch", "m", "n", "k", "outputs", "outputs*k", "m/n"),
    *(f"{what} of {rows}x{width}" for rows, width in _TILES for what in ("log2(waves)", "fullness", "fill")),
)


def product_features(products: Products, sms: Floats | float) -> Floats:
    """Return the features of the choice, float64 [n, 22]: log sizes, aspect, and waves and fill at common tiles."""
    batch, m, n, k = (np.maximum(size, 1e-9) for size in products)
    outputs = batch * m * n
    columns = [*np.log2([batch, m, n, k, outputs, outputs * k, m / n])]
    for rows, width in _TILES:
        blocks = batch * np.ceil(m / rows) * np.ceil(n / width)
        waves = blocks / sms
        columns += [np.log2(waves), waves / np.ceil(waves), outputs / (blocks * rows * width)]
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class KernelChooser:
    """Maps features float64 [n, columns] to kernel codes int [n]; `tree` is None if there is only one kernel."""

    tree: FlatTrees | None

    @classmethod
    def fitted(cls, features: Floats, kernel: Ints) -> Self:
        """Return a chooser fitted to shapes and their kernels, codes from 0."""
        from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415  (serving never fits)

        if len(np.unique(kernel)) < 2:
            return cls(None)
        least = int(np.clip(len(kernel) // LEAF_SHARE, LEAST_LEAF, MOST_LEAF))
        grown = DecisionTreeClassifier(min_samples_leaf=least, random_state=0).fit(features, kernel)
        return cls(FlatTrees.from_sklearn([_Winner(grown)], scale=1.0))

    def choose(self, features: Floats) -> Ints:
        """Return the kernel of every shape."""
        if self.tree is None:
            return np.zeros(len(features), dtype=np.intp)
        return self.tree.predict(features).astype(np.intp)

    def state(self) -> Any:
        """Return a plain container of arrays."""
        if self.tree is None:
            return None
        state = self.tree.state()
        return state | {"value": state["value"].astype(np.int16)}

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Return the object of a `state`."""
        if state is None:
            return cls(None)
        return cls(FlatTrees.from_state(state | {"value": state["value"].astype(np.float64)}))


class _Winner:
    """A fitted classifier as a regressor whose leaves hold the code of their most frequent class."""

    def __init__(self, classifier: Any) -> None:
        self.tree_ = _WinnerTree(classifier.tree_, classifier.classes_)


class _WinnerTree:
    def __init__(self, tree: Any, classes: Ints) -> None:
        self.children_left, self.feature, self.threshold = tree.children_left, tree.feature, tree.threshold
        self.children_right, self.max_depth = tree.children_right, tree.max_depth
        self.value = classes[tree.value[:, 0].argmax(axis=1)][:, None, None].astype(np.float64)


Tile = tuple[int, int]

RESIDENT = (0, 1, 2, 3, 4)
# Tiles tried for kernels with unknown tiles.
GUESSED_TILES = ((128, 128), (64, 64), (128, 256), (64, 512), (16, 512))
# Layouts are compared on this many rows, tables fitted to all.
SEARCH_ROWS, SEARCH_ROUNDS = 2000, 4
# Least rows of a kernel whose tile is known: throughput at two depths.
LEAST_OF_TILE = 2
# Most parts of a kernel with unknown tile, and the least share of its rows in each.
MOST_PARTS, LEAST_PART = 32, 0.005
# The launch overhead is this share of this quantile of measured times.
OVERHEAD_QUANTILE, OVERHEAD_SHARE = 0.002, 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """n rows as products, with further shape features, [n, extra]."""

    products: Products
    extra: Floats

    def take(self, rows: Ints) -> Shapes:
        """Return the given rows."""
        return Shapes(Products(*(size[rows] for size in self.products)), self.extra[rows])

    def features(self, sms: float) -> Floats:
        """Return the chooser's features."""
        return np.concatenate([product_features(self.products, sms), self.extra], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class ProductKernels:
    """Kernels of one cell on one GPU.

    overhead_s      seconds of a launch of no work
    sms             SMs of the GPU
    layout          float64 [3, kernels], rows, columns and resident blocks, as `Layout`
    log_throughput  float64 [kernels, KNOTS]
    chooser         from shapes to kernels
    """

    overhead_s: float
    sms: float
    layout: Floats
    log_throughput: Floats
    chooser: KernelChooser

    @classmethod
    def fitted(cls, shapes: Shapes, latency_s: Floats, kernel: Ints, tiles: Sequence[Tile], sms: float) -> Self | None:
        """From n rows and their kernels (codes into `tiles`, (0, 0) unknown); None if none has enough rows."""
        overhead_s = OVERHEAD_SHARE * float(np.quantile(latency_s, OVERHEAD_QUANTILE))
        rows = _Rows(shapes, latency_s, overhead_s, sms)
        layouts, tables, members = [], [], []
        for code in np.unique(kernel):
            for part in rows.parts(np.flatnonzero(kernel == code), tiles[code]):
                layout = rows.layout(part, tiles[code])
                layouts.append(layout)
                tables.append(rows.table(part, layout))
                members.append(part)
        if not members:
            return None
        used = np.concatenate(members)
        label = np.repeat(np.arange(len(members)), [len(part) for part in members])
        chooser = KernelChooser.fitted(shapes.take(used).features(sms), label)
        return cls(overhead_s, sms, np.array(layouts, dtype=np.float64).T, np.array(tables), chooser)

    def predict(self, shapes: Shapes) -> Floats:
        """Return the seconds of n rows, including the launch (equations 1 and 2)."""
        kernel = self.chooser.choose(shapes.features(self.sms))
        at = place(shapes.products, Layout(*self.layout[:, kernel]), self.sms)
        seconds: Floats = self.overhead_s + np.exp(at.log_work) / throughput(self.log_throughput, at, kernel)
        return seconds

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {
            "overhead_s": self.overhead_s,
            "sms": self.sms,
            "layout": self.layout.astype(np.int16),
            "log_throughput": self.log_throughput.astype(np.float32),
            "chooser": self.chooser.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        layout, table = (state[name].astype(np.float64) for name in ("layout", "log_throughput"))
        return cls(state["overhead_s"], state["sms"], layout, table, KernelChooser.from_state(state["chooser"]))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one cell on one GPU, for the fit of its kernels."""

    shapes: Shapes
    latency_s: Floats
    overhead_s: float
    sms: float

    def table(self, rows: Ints, layout: Layout) -> Floats:
        """Return the log throughput of these rows' kernel, rounded as in a state."""
        at = place(self.shapes.take(rows).products, layout, self.sms)
        fitted = fit_table(at, self.latency_s[rows], self.overhead_s).log_table
        return fitted.astype(np.float32).astype(np.float64)

    def layout(self, rows: Ints, tile: Tile) -> Layout:
        """Return the layout with the least error on these rows."""
        some = rows[:: max(len(rows) // SEARCH_ROWS, 1)]
        products, latency_s = self.shapes.take(some).products, self.latency_s[some]
        # Libraries may be column-major, so a name's tile may be transposed.
        tiles = dict.fromkeys([tile, tile[::-1]]) if all(tile) else GUESSED_TILES
        tried = [Layout(*one, resident) for one in tiles for resident in RESIDENT]
        errors = [
            fit_table(place(products, one, self.sms), latency_s, self.overhead_s, rounds=SEARCH_ROUNDS).error
            for one in tried
        ]
        return tried[int(np.argmin(errors))]

    def parts(self, rows: Ints, tile: Tile) -> list[Ints]:
        """Return a kernel's rows, split by shape if its tile is unknown, without parts of too few rows."""
        if all(tile):
            return [rows] if len(rows) >= LEAST_OF_TILE else []
        least = max(LEAST_ROWS, int(LEAST_PART * len(rows)))
        if len(rows) < 4 * least:
            return [rows] if len(rows) >= LEAST_ROWS else []
        from sklearn.tree import DecisionTreeRegressor  # noqa: PLC0415  (serving never fits)

        layout = self.layout(rows, tile)
        shapes = self.shapes.take(rows)
        at = place(shapes.products, layout, self.sms)
        predicted = self.overhead_s + np.exp(at.log_work) / throughput(self.table(rows, layout)[None], at)
        features = shapes.features(self.sms)
        tree = DecisionTreeRegressor(max_leaf_nodes=MOST_PARTS, min_samples_leaf=least, random_state=0)
        leaf = tree.fit(features, np.log(self.latency_s[rows] / predicted)).apply(features)
        return [rows[leaf == one] for one in np.unique(leaf)]


# Quantile of times taken as the launch floor; rows within the factor of it are not used for the slope.
FLOOR_QUANTILE, FLOOR_FACTOR = 0.01, 1.1
# Rounds of reweighting towards the least absolute error, and the residual below which weights are equal.
ROUNDS, LEAST_RESIDUAL = 6, 0.01
# Of a row, by which a line is fitted.
METRICS = ("bytes", "bytes beyond L2", "instructions", "rows")


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Metrics of n rows for memory-bound kernels.

    metrics  float64 [4, n], bytes, bytes beyond the L2, arithmetic instructions, rows
    shape    float64 [n, dimensions], log2 of the dimensions, by which kernels are chosen
    """

    metrics: Floats
    shape: Floats

    def take(self, rows: Ints) -> Counts:
        """Return the given rows."""
        return Counts(self.metrics[:, rows], self.shape[rows])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryKernels:
    """Kernels of one cell on one GPU.

    overhead_s    launch floor, seconds
    l2_bytes      of the GPU
    coefficients  float64 [kernels, 5], seconds, then seconds per unit of each metric
    """

    overhead_s: float
    l2_bytes: float
    coefficients: Floats
    chooser: KernelChooser

    @classmethod
    def fitted(cls, counts: Counts, latency_s: Floats, kernel: Ints, l2_bytes: float) -> Self | None:
        """Return kernels fitted to n rows and their kernel codes; None if no kernel has enough rows."""
        floor_s = float(np.quantile(latency_s, FLOOR_QUANTILE))
        members = [rows for code in np.unique(kernel) if len(rows := np.flatnonzero(kernel == code)) >= LEAST_ROWS]
        if not members:
            return None
        lines = [fit_line(counts.metrics[:, rows], latency_s[rows], floor_s) for rows in members]
        label = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
        chooser = KernelChooser.fitted(counts.shape[np.concatenate(members)], label)
        return cls(floor_s, l2_bytes, np.array(lines), chooser)

    def predict(self, counts: Counts) -> Floats:
        """Return the seconds of n rows, including the launch."""
        line = self.coefficients[self.chooser.choose(counts.shape)].T
        seconds: Floats = np.maximum(line[0] + (line[1:] * counts.metrics).sum(axis=0), self.overhead_s)
        return seconds

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {
            "overhead_s": self.overhead_s,
            "l2_bytes": self.l2_bytes,
            "coefficients": self.coefficients,
            "chooser": self.chooser.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        chooser = KernelChooser.from_state(state["chooser"])
        return cls(state["overhead_s"], state["l2_bytes"], state["coefficients"], chooser)


def fit_line(metrics: Floats, latency_s: Floats, floor_s: float) -> Floats:
    """Return seconds, and seconds per unit of each of `metrics` [4, n], non-negative, float64 [5]."""
    from scipy.optimize import nnls  # noqa: PLC0415  (serving never fits)

    clear = latency_s > FLOOR_FACTOR * floor_s
    if clear.sum() < LEAST_ROWS:
        clear = np.ones(len(latency_s), dtype=bool)
    columns = np.concatenate([np.ones((1, len(latency_s))), metrics])[:, clear]
    scale = np.maximum(columns.max(axis=1), 1e-300)
    scaled, time = (columns / scale[:, None]).T, latency_s[clear]
    weight, line = 1.0 / time, np.zeros(len(scale))
    for _ in range(ROUNDS):
        line = nnls(scaled * weight[:, None], time * weight)[0]
        weight = 1.0 / time / np.sqrt(np.maximum(np.abs(scaled @ line / time - 1.0), LEAST_RESIDUAL))
    coefficients: Floats = line / scale
    return coefficients
