"""From a constructor to a Workload: walked once for one image, then scaled to the batch and the number format."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.graphs.convnets.net import Block, Constructor, Net
from app.graphs.many import Figures, Parting, figures, repeated
from app.graphs.rows import with_column
from app.ops import OP_CODE
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES
from app.tables.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
CLASSES = 1000

# What PyTorch's autograd keeps (rectifiers work in place): these read their inputs again, and these their results.
_KEEP_INPUTS = ("conv2d", "linear", "batch_norm", "max_pool2d", "silu", "mul")
_KEEP_OUTPUTS = ("relu", "tanh")
_INDEX_BYTES = 8.0  # of a maximum, per output


class Walk(NamedTuple):
    """A network for one image.

    workload  its rows in FP32
    blocks    what its blocks are
    outputs   elements that each row writes, float64 [n]
    saved     of them, and of the input image, those kept for backward, float64 [n]
    indices   bytes kept beside, whatever the dtype, float64 [n]
    """

    workload: Workload
    blocks: tuple[Block, ...]
    outputs: Floats
    saved: Floats
    indices: Floats


def walk(constructor: Constructor, side: int, training: bool) -> Walk:
    """The network for one image of `side` pixels a side; TooSmall where a window does not fit."""
    if not isinstance(side, Figures):
        return _remembered(constructor, side, training)
    sides, of = np.unique(np.asarray(side), return_inverse=True)
    try:
        return _repeated(_of_sides(constructor, tuple(sides.tolist()), training), of)
    except Parting as parting:
        raise Parting(parting.these[of]) from None


def _repeated(walk: Walk, of: Ints) -> Walk:
    """A walk for several sides, as one for images each of which has one of them."""
    figures = {name: getattr(walk, name).T.take(of, axis=1).T for name in ("outputs", "saved", "indices")}
    return walk._replace(workload=repeated(walk.workload, of), **figures)


def _walked(constructor: Constructor, side: int, training: bool) -> Walk:
    net = Net(side, training=training, classes=CLASSES)
    constructor(net)
    w = net.rows.build()
    outputs = w.output_bytes / OUTPUT_BYTES[w.ops.dtype]
    kept = np.isin(w.ops.kind, [OP_CODE[op] for op in _KEEP_OUTPUTS])
    producers, consumers = w.edges
    kept[producers[np.isin(w.ops.kind[consumers], [OP_CODE[op] for op in _KEEP_INPUTS])]] = True
    saved = np.where(kept, outputs, 0.0)
    saved[..., 0] += net.image.elements  # the first row is a convolution of the image
    indices = np.where(w.ops.kind == OP_CODE["max_pool2d"], _INDEX_BYTES * outputs, 0.0)
    return Walk(w, tuple(net.blocks), outputs, saved, indices)


_remembered = lru_cache(maxsize=128)(_walked)


@lru_cache(maxsize=32)
def _of_sides(constructor: Constructor, sides: tuple[float, ...], training: bool) -> Walk:
    return _walked(constructor, figures(sides), training)


def scaled(walk: Walk, batch: int, dtype: str) -> Workload:
    """The network for a batch in a number format: rows of images grow with the batch, weights do not."""
    w = walk.workload
    images = np.asarray(batch, dtype=np.float64)[..., None]  # [1], or [c, 1]
    code = DTYPE_CODE[dtype]
    ops = replace(w.ops, dtype=np.full(len(w), code, dtype=np.intp))
    for column in ("b", "m"):
        ops = with_column(ops, column, images * ops.column(column))
    return replace(
        w,
        ops=ops,
        weight_bytes=w.parameters * WEIGHT_BYTES[code],
        output_bytes=images * walk.outputs * OUTPUT_BYTES[code],
        saved_bytes=images * (walk.saved * DTYPE_BYTES[code] + walk.indices),
    )


def part(w: Workload, block: int) -> Workload:
    """One run of a block, as a network of its own."""
    rows = np.flatnonzero(w.block == block)
    first, end = rows[0], rows[-1] + 1
    inside = (w.edges >= first).all(axis=0) & (w.edges < end).all(axis=0)
    return Workload(
        ops=w.ops.take(rows),
        names=w.names[first:end],
        phase=w.phase[rows],
        source=w.source[rows] - first,
        block=np.zeros(len(rows), dtype=np.intp),
        repeats=np.ones(1),
        origin=np.zeros(1, dtype=np.intp),
        edges=w.edges[:, inside] - first,
        parameters=w.parameters[..., rows],
        weight_bytes=w.weight_bytes[..., rows],
        output_bytes=w.output_bytes[..., rows],
        saved_bytes=w.saved_bytes[..., rows],
        kv_bytes=w.kv_bytes[..., rows],
        overlapped=w.overlapped[rows],
    )
