"""Compute-bound kernels of one operator and dtype on one GPU: throughput tables, and which kernel a shape gets.

Matrix products, and by the same rule convolutions (as implicit products), attention and MoE (PM2Lat, section IV.C).
Kernels without a tile in their name are also split by shape: one name (a framework's, or an autotuned Triton kernel's)
covers many configurations, and a regression tree splits them where a single table errs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from app.ops.figures import Products
from app.predictors.papers.pm2lat.kernel_chooser import KernelChooser, product_features
from app.predictors.papers.pm2lat.throughput_table import Layout, fit_table, place, throughput
from app.predictors.papers.queries import LEAST_ROWS
from app.tables.arrays import Floats, Ints

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
