"""NeuSight's decomposition of an operator into tiles and waves (equations 1 to 6) and the features of table 3.

With FLOPs_k and mem_k of the kernel, of a tile, and a GPU of `sms` SMs:
(1) K = FLOPs_k / mem_k, roofline = min(K x bandwidth, peak)    (4) latency = tile latency x waves
(2) tiles = product over dimensions of ceil(size / tile)        (5) tile latency = FLOPs_tile / achieved
(3) waves = ceil(tiles / sms)                                   (6) achieved = roofline x utilisation
A tile runs on one SM, so (5) takes an SM's share of the roofline. SI units; the source divides bytes by 2^30 and
bandwidth by 10^9.

A measured kernel's tile is in its name (`ampere_sgemm_128x64_tn`, `Cijk_..._MT128x96x32_...`: columns of the output by
rows, as BLAS counts them) or follows from its grid. NeuSight gives an operator the tile of the nearest measured one, by
its dimensions and the GPU's figures at once. Here the GPU comes first: the same GPU where the operator was measured on
it, else the one nearest in table 3's figures; then the nearest dimensions, in log2, since sizes span five decades.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.ops.base import Op
from app.ops.figures import Products, Work
from app.predictors.flat import nearest, nearest_of
from app.predictors.roofline import peaks
from app.predictors.schema import check_below, check_shape
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

# Most measured shapes per operator, dtype and GPU, before redundant ones are dropped.
MOST_SHAPES = 4000
_SIZES = re.compile(r"(\d+)x(\d+)")
# Smaller pairs of numbers in a name are vector widths or parts of a block.
_LEAST_EDGE = 8


def tile_of_kernel(name: str) -> tuple[float, float]:
    """Return rows and columns of the output tile in a matrix kernel's name; NaN if it has none."""
    for match in _SIZES.finditer(name):
        columns, rows = int(match[1]), int(match[2])
        if min(columns, rows) >= _LEAST_EDGE:
            return float(rows), float(columns)
    return np.nan, np.nan


def tiles_of_kernels(kernel: Ints, names: Sequence[str]) -> Floats:
    """Return the tiles of rows from their kernel codes (-1 unknown), rows and columns, float64 [2, n]."""
    known = np.array([*(tile_of_kernel(name) for name in names), (np.nan, np.nan)])
    tiles: Floats = np.ascontiguousarray(known[kernel].T)
    return tiles


def tiles_of_grids(elements: Floats, grid: Floats) -> Floats:
    """Elements of a block's share of `elements` [n], cut up by `grid` [3, n] blocks: the next power of two, [2, n].

    An element-wise kernel's blocks take whole vectors, so only the last one's share is less than that.
    """
    return np.stack([np.ones(len(elements)), 2.0 ** np.ceil(np.log2(elements / grid.prod(axis=0)))])


@compiled
def _condense(point: NDArray[np.float32], tile: NDArray[np.uint16], kept: Ints) -> int:
    """Fill `kept` with a subset of points that preserves every point's tile, and return its size (Hart 1968)."""
    stored = np.empty_like(point)
    used = np.zeros(len(point), dtype=np.bool_)
    count, missed = 0, True
    while missed:
        missed = False
        for k in range(len(point)):
            if used[k]:
                continue
            like = nearest(stored, point[k], 0, count)
            if like < 0 or (tile[kept[like]] != tile[k]).any():
                stored[count], kept[count], used[k] = point[k], k, True
                count += 1
                missed = True
    return count


def log_sizes(sizes: Floats) -> NDArray[np.float32]:
    """Return log2 of dimensions [4, n] as stored points, float32 [n, 4]."""
    return np.ascontiguousarray(np.log2(sizes).T.astype(np.float32))


@dataclass(frozen=True, slots=True)
class Tiles:
    """Measured tiles of one operator in one dtype, by GPU.

    gpus     GPU ids, g of them
    figures  float64 [figures, g], natural logs of what GPUs are compared by
    first    int [g + 1], where each GPU's points start
    point    float32 [points, 4], log2 of dimensions
    tile     uint16 [points, 2], rows and columns of the output tile
    """

    gpus: tuple[str, ...]
    figures: Floats
    first: Ints
    point: NDArray[np.float32]
    tile: NDArray[np.uint16]

    @classmethod
    def measured(cls, sizes: Floats, tiles: Floats, gpu: Ints, ids: Sequence[str], figures: Floats) -> Self:
        """From rows of dimensions [4, n] and tiles [2, n] on GPUs; `figures` [figures, gpus] of every GPU of `ids`.

        Rows without a tile are ignored. Of more than MOST_SHAPES rows per GPU, an even sample ordered by dimensions is
        used.
        """
        known = np.isfinite(tiles).all(axis=0)
        on, points, kept = [], [], []
        for code in np.unique(gpu[known]).tolist():
            rows = np.flatnonzero(known & (gpu == code))
            rows = rows[np.lexsort(sizes[:, rows])]
            rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_SHAPES)).astype(np.intp)]
            # Neighbours in that order are alike, and condensing starts better from points far apart.
            rows = rows[np.random.default_rng(0).permutation(len(rows))]
            point, tile = log_sizes(sizes[:, rows]), tiles[:, rows].T.astype(np.uint16)
            enough = np.empty(len(rows), dtype=np.intp)
            enough = enough[: _condense(point, tile, enough)]
            on.append(code)
            points.append(point[enough])
            kept.append(tile[enough])
        first = np.concatenate([[0], np.cumsum([len(part) for part in points], dtype=np.intp)]).astype(np.intp)
        empty = np.empty((0, 4), dtype=np.float32), np.empty((0, 2), dtype=np.uint16)
        return cls(
            tuple(ids[code] for code in on),
            figures[:, on],
            first,
            np.concatenate([empty[0], *points]),
            np.concatenate([empty[1], *kept]),
        )

    def over(self, old: Tiles) -> Tiles:
        """Return these tiles, and those of `old` on other GPUs."""
        kept = [k for k, gpu in enumerate(old.gpus) if gpu not in self.gpus]
        spans = [slice(old.first[k], old.first[k + 1]) for k in kept]
        counts = np.concatenate([np.diff(self.first), np.diff(old.first)[kept]])
        return Tiles(
            (*self.gpus, *(old.gpus[k] for k in kept)),
            np.concatenate([self.figures, old.figures[:, kept]], axis=1),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.intp),
            np.concatenate([self.point, *(old.point[span] for span in spans)]),
            np.concatenate([self.tile, *(old.tile[span] for span in spans)]),
        )

    def nearest_gpus(self, ids: Sequence[str], figures: Floats) -> Ints:
        """Return the GPU whose tiles each GPU uses, positions in `gpus`, int [len(ids)]; figures [figures, len(ids)].

        A GPU uses its own if it has any, else those of the nearest GPU in log figures.
        """
        distance = ((figures[:, :, None] - self.figures[:, None, :]) ** 2).sum(axis=0)
        position = {gpu: k for k, gpu in enumerate(self.gpus)}
        return np.array([position.get(gpu, int(distance[k].argmin())) for k, gpu in enumerate(ids)], dtype=np.intp)

    def choose(self, sizes: Floats, gpu: Ints) -> Floats:
        """Return tiles for dimensions [4, n] from those of `gpus[gpu[q]]`, rows and columns, float64 [2, n]."""
        row = np.empty(sizes.shape[1], dtype=np.intp)
        nearest_of(self.point, log_sizes(sizes), self.first[gpu], self.first[gpu + 1], row)
        return np.ascontiguousarray(self.tile[row].T.astype(np.float64))

    def state(self) -> dict[str, Any]:
        """Return a plain container of arrays."""
        return {name: getattr(self, name) for name in ("gpus", "figures", "first", "point", "tile")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object of a `state`."""
        point, first = state["point"], state["first"]
        check_shape("points of tiles", point, None, 4)
        check_shape("tiles", state["tile"], len(point), 2)
        check_shape("starts of GPUs", first, len(state["gpus"]) + 1)
        check_below("starts of GPUs", first, len(point) + 1)
        return cls(tuple(state["gpus"]), state["figures"], first, point, state["tile"])


FAMILIES = ("bmm", "linear", "elementwise", "softmax", "layer_norm")
PRODUCTS, ELEMENTWISE = ("bmm", "linear"), "elementwise"
_FIGURES = ("sm_count", "memory_bandwidth_bytes_per_s", "memory_bytes", "l2_bytes")


def family_of(op: Op) -> str | None:
    """Which of the five networks an operator has; None is unknown to the paper."""
    name = op.group if op.group == ELEMENTWISE else op.name
    return name if name in FAMILIES else None


# Dimensions of a kernel, and table 3's features of one.
SIZES = ("batch", "rows", "columns", "depth")
INPUTS = ("compute", "memory", "resident/L2", "resident/memory", "compute/memory")


class Kernels(NamedTuple):
    """Launches of one family in one dtype, n of them, float64.

    sizes  [4, n]: matrices, rows, columns and depth of products; rows, their length, 1 and 1 of the others
    work   FLOPs and bytes of the whole kernel, [n] each
    """

    sizes: Floats
    work: Work


class Devices(NamedTuple):
    """Figures of GPUs as a family's dtype sees them, float64 [n] each: a row per kernel, or per GPU."""

    sms: Floats
    peak: Floats
    bandwidth: Floats
    memory: Floats
    l2: Floats

    def take(self, rows: Ints) -> Devices:
        """The rows given, repeats allowed."""
        return Devices(*(figure[rows] for figure in self))


class Decomposed(NamedTuple):
    """A kernel in waves, float64: waves [n], latency at full utilisation [n] (seconds), table 3's features [n, 5]."""

    waves: Floats
    ideal_s: Floats
    inputs: Floats


def devices_of(gpus: GpuTable, op: Op, dtype: int) -> Devices:
    """Figures of every GPU: products run on the fastest pipe of the dtype, the rest on the lanes.

    Lanes without a rate of their own in a dtype compute in FP32.
    """
    sms, bandwidth, memory, l2 = (gpus.values[COLUMN_INDEX[name]] for name in _FIGURES)
    if family_of(op) in PRODUCTS:
        peak = peaks(gpus)[dtype]
    else:
        peak = gpus.column("peak_fp64_flops" if dtype == DTYPE_CODE["fp64"] else "peak_fp32_flops")
    return Devices(sms, peak, bandwidth, memory, l2)


def product_work(products: Products, op: Op, dtype: int) -> Work:
    """Of one product a row: FLOPs = 2 b m n k; each operand moved once."""
    batch, m, n, k = products
    second = WEIGHT_BYTES[dtype] if op.name == "linear" else DTYPE_BYTES[dtype]
    moved = batch * (m * k * DTYPE_BYTES[dtype] + k * n * second + m * n * OUTPUT_BYTES[dtype])
    return Work(2.0 * batch * m * n * k, moved, moved)


def kernels_of(op: Op, table: OpTable, dtype: int) -> list[tuple[Ints, Kernels]]:
    """The launches that rows of one operator and dtype are, each with the rows it belongs to.

    Backward of a product is two products: dX = dY W, which is [m, k] summed over n, and dW = dY^T X, [n, k] over m.
    """
    every = np.arange(len(table))
    if op.products is None:
        ones = np.ones(len(table))
        return [(every, Kernels(np.stack([table.column("b"), table.column("h"), ones, ones]), op.work(table)))]
    backward = table.column("backward") > 0.0
    batch, m, n, k = op.products(table)
    forms = (~backward, (batch, m, n, k)), (backward, (batch, m, k, n)), (backward, (batch, n, k, m))
    launches = []
    for mask, form in forms:
        rows = np.flatnonzero(mask)
        if len(rows):
            sizes = np.stack([size[rows] for size in form])
            launches.append((rows, Kernels(sizes, product_work(Products(*sizes), op, dtype))))
    return launches


def decompose(kernels: Kernels, tile: Floats, devices: Devices, op: Op, dtype: int) -> Decomposed:
    """Kernels in tiles [2, n] on their GPUs: of products rows and columns; of element-wise ones 1 and elements.

    Softmax and layer norm have a row as their tile, whatever `tile` says.
    """
    tiles, part = _tiled(kernels, tile, op, dtype)
    waves = np.ceil(tiles / devices.sms)
    intensity = kernels.work.flops / kernels.work.bytes
    roofline = np.minimum(intensity * devices.bandwidth, devices.peak)
    ideal_s = waves * devices.sms * part.flops / roofline
    compute, memory = part.flops * devices.sms / devices.peak, part.bytes * devices.sms / devices.bandwidth
    resident = waves * part.bytes * devices.sms
    inputs = np.log2(np.stack([compute, memory, resident / devices.l2, resident / devices.memory, compute / memory]))
    return Decomposed(waves, ideal_s, np.ascontiguousarray(inputs.T))


def _tiled(kernels: Kernels, tile: Floats, op: Op, dtype: int) -> tuple[Floats, Work]:
    """Tiles of each kernel, [n], and the work of one."""
    batch, rows, columns, depth = kernels.sizes
    if family_of(op) in PRODUCTS:
        tiles = batch * np.ceil(rows / tile[0]) * np.ceil(columns / tile[1])
        return tiles, product_work(Products(np.ones(len(batch)), tile[0], tile[1], depth), op, dtype)
    elements = batch * rows  # here: rows and their length
    of_tile = tile[0] * tile[1] if family_of(op) == ELEMENTWISE else rows
    part = of_tile / elements
    return np.ceil(elements / of_tile), Work(*(part * figure for figure in kernels.work))
