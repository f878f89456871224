"""Which of what forward wrote backward needs, as PyTorch's autograd keeps it (derivatives.yaml).

Products, norms, attention, powers, gates and smooth activations need what they read; softmax, relu, tanh and attention
what they wrote; sums, scales and copies neither.
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


def kept(kind: Ints, block: Ints, edges: Ints, own: Bools) -> Bools:
    """Whether each row's output is kept, bool [n]; rows in `own` need neither what they read nor what they wrote.

    A block's last row is what the next one's norm or product reads.
    """
    needed = NEEDS_WRITTEN[kind] & ~own
    needed[edges[0, (NEEDS_READ[kind] & ~own)[edges[1]]]] = True
    needed[:-1] |= block[1:] != block[:-1]
    needed[-1:] = True
    return needed
