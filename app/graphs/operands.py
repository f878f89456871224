"""What rows of a block are fed with: by rows of the block, or by what ran before it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.graphs.many import alike
from app.ops import OP_CODE
from app.ops.elementwise import FLAT_OPS
from app.tables.workload import FORWARD, Bools, Ints, Workload

# Rows without a producer in their block that read something else than its input: tables, masks, buffers.
_OWN_INPUT = [OP_CODE[name] for name in ("embedding", "memory", "copy")]
_FLAT = [OP_CODE[op.name] for op in FLAT_OPS]


class Operands(NamedTuple):
    """Of every row, [n].

    producers, consumers  rows of its block that feed it, and that it feeds
    from_outside          whether it reads the block's input
    learning              whether its output has a gradient: it holds weights, or what it reads has one
    fed                   whether what it reads has a gradient
    """

    producers: Ints
    consumers: Ints
    from_outside: Bools
    learning: Bools
    fed: Bools


def operands(w: Workload) -> Operands:
    """Who reads what, by the edges.

    A block's input has no edge within it: rows that have no producer there read it, and so does an addition that has
    one (the residual), unless a softmax follows, at once or behind another element-wise row: then it adds a mask.
    """
    return Operands(*fed_by(w), *_gradients(w))


def fed_by(w: Workload) -> tuple[Ints, Ints, Bools]:
    """The first three of `operands`."""
    n = len(w)
    edges = w.edges[:, w.block[w.edges[0]] == w.block[w.edges[1]]]
    producers, consumers = np.bincount(edges[1], minlength=n), np.bincount(edges[0], minlength=n)
    masks = np.zeros(n, dtype=np.bool_)
    masks[edges[0, w.ops.kind[edges[1]] == OP_CODE["softmax"]]] = True
    masks[edges[0, (masks & np.isin(w.ops.kind, _FLAT))[edges[1]]]] = True
    first = (producers == 0) & ~np.isin(w.ops.kind, _OWN_INPUT)
    residual = (producers == 1) & (w.ops.kind == OP_CODE["add"]) & ~masks
    return producers, consumers, (first | residual) & (w.phase == FORWARD)


def _gradients(w: Workload) -> tuple[Bools, Bools]:
    """`learning` and `fed`: what enters later blocks has a gradient; a row that gives nothing on has none."""
    fed = (w.block > 0) & alike(w.output_bytes > 0)
    # Tables may be tied, and held elsewhere.
    learning = fed | alike(w.parameters > 0) | (w.ops.kind == OP_CODE["embedding"])
    for producer, consumer in w.edges[:, np.argsort(w.edges[1], kind="stable")].T.tolist():
        if learning[producer]:
            fed[consumer] = learning[consumer] = True
    return learning, fed
