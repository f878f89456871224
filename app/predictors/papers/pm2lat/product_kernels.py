"""Compute-bound kernels of one operator and dtype on one GPU: throughput tables, and which kernel a shape gets.

Matrix products, and by the same rule convolutions (as implicit products), attention and MoE (PM2Lat, section IV.C).
Kernels that do not tell their tile are told apart by shape as well: a regression tree splits them where one table errs,
since one name (a framework's word, an autotuned Triton kernel) stands for many configurations.
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
# Tiles tried for kernels that do not tell theirs.
UNTOLD_TILES = ((128, 128), (64, 64), (128, 256), (64, 512), (16, 512))
# Layouts are compared on this many rows, tables fitted to all.
SEARCH_ROWS, SEARCH_ROUNDS = 2000, 4
# Parts of a kernel that does not tell its tile: at most, and the least share of its rows in each.
MOST_PARTS, LEAST_PART = 32, 0.005
# The fixed cost of a launch lies a little under the shortest time measured.
OVERHEAD_QUANTILE, OVERHEAD_SHARE = 0.002, 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """n rows as kernels see them: the products that they are, and further features of the shape, [n, extra]."""

    products: Products
    extra: Floats

    def take(self, rows: Ints) -> Shapes:
        """The rows given."""
        return Shapes(Products(*(size[rows] for size in self.products)), self.extra[rows])

    def features(self, sms: float) -> Floats:
        """What the chooser sees."""
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
        """From n rows and their kernels (codes into `tiles`, (0, 0) not told); None where none has rows enough."""
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
        """Seconds of n rows, the launch included (equations 1 and 2)."""
        kernel = self.chooser.choose(shapes.features(self.sms))
        at = place(shapes.products, Layout(*self.layout[:, kernel]), self.sms)
        seconds: Floats = self.overhead_s + np.exp(at.log_work) / throughput(self.log_throughput, at, kernel)
        return seconds

    def state(self) -> dict[str, Any]:
        """As a plain container of arrays."""
        return {
            "overhead_s": self.overhead_s,
            "sms": self.sms,
            "layout": self.layout.astype(np.int16),
            "log_throughput": self.log_throughput.astype(np.float32),
            "chooser": self.chooser.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        layout, table = (state[name].astype(np.float64) for name in ("layout", "log_throughput"))
        return cls(state["overhead_s"], state["sms"], layout, table, KernelChooser.from_state(state["chooser"]))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one cell on one GPU while their kernels are fitted."""

    shapes: Shapes
    latency_s: Floats
    overhead_s: float
    sms: float

    def table(self, rows: Ints, layout: Layout) -> Floats:
        """Log throughput of these rows' kernel; rounded as it is kept, so that a state answers alike."""
        at = place(self.shapes.take(rows).products, layout, self.sms)
        fitted = fit_table(at, self.latency_s[rows], self.overhead_s).log_table
        return fitted.astype(np.float32).astype(np.float64)

    def layout(self, rows: Ints, tile: Tile) -> Layout:
        """The layout that explains these rows best."""
        some = rows[:: max(len(rows) // SEARCH_ROWS, 1)]
        products, latency_s = self.shapes.take(some).products, self.latency_s[some]
        # Libraries count in columns, so a name's tile may stand either way.
        tiles = dict.fromkeys([tile, tile[::-1]]) if all(tile) else UNTOLD_TILES
        tried = [Layout(*one, resident) for one in tiles for resident in RESIDENT]
        errors = [
            fit_table(place(products, one, self.sms), latency_s, self.overhead_s, rounds=SEARCH_ROUNDS).error
            for one in tried
        ]
        return tried[int(np.argmin(errors))]

    def parts(self, rows: Ints, tile: Tile) -> list[Ints]:
        """A kernel's rows, split by shape where it does not tell its tile; parts with too few rows are left out."""
        least = max(LEAST_ROWS, int(LEAST_PART * len(rows)))
        if all(tile) or len(rows) < 4 * least:
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
