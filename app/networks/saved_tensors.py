"""Tensors that PyTorch's autograd saves for backward, by what each operator says of itself (`Op.saves`)."""

from __future__ import annotations

import numpy as np

from app.ops import OPS
from app.tables.arrays import Bools, Ints

NEEDS_READ, NEEDS_WRITTEN = (np.array([what in op.saves for op in OPS]) for what in ("input", "output"))


def is_saved(kind: Ints, block: Ints, edges: Ints, own: Bools) -> Bools:
    """Return True for rows whose output is saved for backward, bool [n].

    kind, block  int [n], operator code and block of each row
    edges        int [2, e], producer and consumer rows
    own          bool [n], rows that state their saved bytes themselves, to which the rules do not apply

    A block's last row is always saved: the next block's norm or product reads it.
    """
    needed = NEEDS_WRITTEN[kind] & ~own
    needed[edges[0, (NEEDS_READ[kind] & ~own)[edges[1]]]] = True
    needed[:-1] |= block[1:] != block[:-1]
    needed[-1:] = True
    return needed
