"""ConvNet constructors to Workloads: constructed once for one image, then scaled to the batch and number format."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from app.graphs.batched import Diverged, PerConfiguration, expanded, per_configuration
from app.graphs.convnets.net import Block, Constructor, Net
from app.graphs.inserted_rows import with_column
from app.graphs.saved_tensors import NEEDS_READ, NEEDS_WRITTEN
from app.ops import OP_CODE
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES
from app.tables.workload import Workload

CLASSES = 1000

_INDEX_BYTES = 8.0  # per output of a max pooling


class Walk(NamedTuple):
    """A network for one image.

    workload  its rows in FP32
    blocks    its blocks
    outputs   float64 [n], elements that each row writes
    saved     float64 [n], those saved for backward; the input image's are counted with row 0
    indices   float64 [n], bytes of saved indices, the same for every dtype
    """

    workload: Workload
    blocks: tuple[Block, ...]
    outputs: Floats
    saved: Floats
    indices: Floats


def walk(constructor: Constructor, side: int, training: bool) -> Walk:
    """Return the network for one image of `side` pixels per side; raises TooSmall if a window does not fit."""
    if not isinstance(side, PerConfiguration):
        return _remembered(constructor, side, training)
    sides, of = np.unique(np.asarray(side), return_inverse=True)
    try:
        return _expanded(_of_sides(constructor, tuple(sides.tolist()), training), of)
    except Diverged as diverged:
        raise Diverged(diverged.mask[of]) from None


def _expanded(walk: Walk, of: Ints) -> Walk:
    """Return a network of several image sides with configuration j at side `of[j]`."""
    figures = {name: getattr(walk, name).T.take(of, axis=1).T for name in ("outputs", "saved", "indices")}
    return walk._replace(workload=expanded(walk.workload, of), **figures)


def _walked(constructor: Constructor, side: int, training: bool) -> Walk:
    net = Net(side, training=training, classes=CLASSES)
    constructor(net)
    w = net.rows.build()
    outputs = w.output_bytes / OUTPUT_BYTES[w.ops.dtype]
    saved_rows = NEEDS_WRITTEN[w.ops.kind]
    producers, consumers = w.edges
    saved_rows[producers[NEEDS_READ[w.ops.kind[consumers]]]] = True
    saved = np.where(saved_rows, outputs, 0.0)
    saved[..., 0] += net.image.elements  # the first row is a convolution of the image
    indices = np.where(w.ops.kind == OP_CODE["max_pool2d"], _INDEX_BYTES * outputs, 0.0)
    return Walk(w, tuple(net.blocks), outputs, saved, indices)


_remembered = lru_cache(maxsize=128)(_walked)


@lru_cache(maxsize=32)
def _of_sides(constructor: Constructor, sides: tuple[float, ...], training: bool) -> Walk:
    return _walked(constructor, per_configuration(sides), training)


def scaled(walk: Walk, batch: int, dtype: str) -> Workload:
    """Return the network for a batch in a number format; weights do not scale with the batch."""
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
    """Return one repetition of a block as a workload."""
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
