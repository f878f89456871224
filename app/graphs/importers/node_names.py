"""Names of graph operators beyond those of app.ops: views, which cost nothing, and what others cost as.

Element-wise operators are bound by memory (NeuSight, PM2Lat), so one with the same tensors read and written, and about
the same operations per element, stands for those without measurements of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

# The same elements in another shape, no copy.
RESHAPES = frozenset({"reshape", "view", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "identity"})
# Parts and repetitions of a tensor by strides alone, and what inference leaves out; shapes are not compared.
VIEWS = RESHAPES | {"getitem", "slice", "select", "split", "chunk", "expand", "detach", "dropout", "constant", "shape"}

STANDS_FOR: Mapping[str, str] = (
    dict.fromkeys(("sub", "maximum", "minimum", "equal", "less", "greater", "and", "or", "where"), "add")
    | dict.fromkeys(("neg", "abs", "clip", "leaky_relu", "relu6", "not", "cast", "sign", "round", "floor"), "relu")
    | dict.fromkeys(("sigmoid", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "reciprocal", "elu"), "tanh")
    | dict.fromkeys(("hard_swish", "hard_sigmoid", "swish", "mish", "softplus", "selu", "celu", "prelu"), "silu")
    | {"log_softmax": "softmax", "attention": "attention_prefill", "contiguous": "copy", "sub_scalar": "add_scalar"}
    | {"gelu_tanh": "gelu", "square": "pow_scalar", "group_norm": "layer_norm", "instance_norm": "layer_norm"}
    # Bound by what they read and write, and nothing else.
    | dict.fromkeys(("concat", "gather", "pad", "tile", "stack", "resize", "scatter", "roll", "one_hot"), "memory")
    | dict.fromkeys(("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "argmax", "cumsum", "topk"), "memory")
    | dict.fromkeys(("range", "full", "trilu"), "memory")
)
