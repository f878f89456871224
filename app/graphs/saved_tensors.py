"""Tensors that PyTorch's autograd saves for backward (derivatives.yaml).

Matrix products, norms, attention, powers, gates and smooth activations save their inputs; softmax, relu, tanh and
attention save their outputs; sums, scales and copies save neither.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

_ATTENTION = {"attention_prefill", "attention_decode", "attention_mla"}
_READ = _ATTENTION | {
    *("linear", "bmm", "conv2d", "layer_norm", "rms_norm", "batch_norm", "max_pool2d", "recurrent", "moe"),
    *("mul", "div", "pow", "pow_scalar", "gelu", "silu"),
}
_WRITTEN = _ATTENTION | {"softmax", "relu", "tanh", "recurrent", "memory"}
NEEDS_READ, NEEDS_WRITTEN = (np.array([op.name in names for op in OPS]) for names in (_READ, _WRITTEN))


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
