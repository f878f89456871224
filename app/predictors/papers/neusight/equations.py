"""NeuSight's decomposition of an operator into tiles and waves (equations 1 to 6) and the features of table 3.

With FLOPs_k and mem_k of the kernel, of a tile, and a GPU of `sms` SMs:
(1) K = FLOPs_k / mem_k, roofline = min(K x bandwidth, peak)    (4) latency = tile latency x waves
(2) tiles = product over dimensions of ceil(size / tile)        (5) tile latency = FLOPs_tile / achieved
(3) waves = ceil(tiles / sms)                                   (6) achieved = roofline x utilisation
A tile runs on one SM, so (5) takes an SM's share of the roofline. SI units; the source divides bytes by 2^30 and
bandwidth by 10^9.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.base import Op
from app.ops.figures import Products, Work
from app.predictors.roofline import peaks
from app.tables.arrays import Floats, Ints
from app.tables.gpus import COLUMN_INDEX, GpuTable
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES, OpTable

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
    products, every = op.products(table), np.arange(len(table))
    if products is None:
        ones = np.ones(len(table))
        return [(every, Kernels(np.stack([table.column("b"), table.column("h"), ones, ones]), op.work(table)))]
    backward = table.column("backward") > 0.0
    batch, m, n, k = products
    forms = (~backward, (batch, m, n, k)), (backward, (batch, m, k, n)), (backward, (batch, n, k, m))
    found = []
    for mask, form in forms:
        rows = np.flatnonzero(mask)
        if len(rows):
            sizes = np.stack([size[rows] for size in form])
            found.append((rows, Kernels(sizes, product_work(Products(*sizes), op, dtype))))
    return found


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
