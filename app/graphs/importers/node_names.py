"""Graph operators beyond those of app.ops: views, which cost nothing, and operators predicted as others.

Element-wise operators are memory-bound (NeuSight, PM2Lat), so an unmeasured one is predicted as a measured one that
reads and writes the same tensors with about as many operations per element.
"""

from __future__ import annotations

from collections.abc import Mapping

# The same elements in another shape, no copy.
RESHAPES = frozenset({"reshape", "view", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "identity"})
# Strided views of a tensor, and operators that inference omits; shapes are not checked.
VIEWS = RESHAPES | {"getitem", "slice", "select", "split", "chunk", "expand", "detach", "dropout", "constant", "shape"}

STANDS_FOR: Mapping[str, str] = (
    dict.fromkeys(("sub", "maximum", "minimum", "equal", "less", "greater", "and", "or", "where"), "add")
    | dict.fromkeys(("neg", "abs", "clip", "leaky_relu", "relu6", "not", "cast", "sign", "round", "floor"), "relu")
    | dict.fromkeys(("sigmoid", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos", "reciprocal", "elu"), "tanh")
    | dict.fromkeys(("hard_swish", "hard_sigmoid", "swish", "mish", "softplus", "selu", "celu", "prelu"), "silu")
    | {"log_softmax": "softmax", "attention": "attention_prefill", "contiguous": "copy", "sub_scalar": "add_scalar"}
    | {"gelu_tanh": "gelu", "square": "pow_scalar", "group_norm": "layer_norm", "instance_norm": "layer_norm"}
    # Bound by reads and writes only.
    | dict.fromkeys(("concat", "gather", "pad", "tile", "stack", "resize", "scatter", "roll", "one_hot"), "memory")
    | dict.fromkeys(("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "argmax", "cumsum", "topk"), "memory")
    | dict.fromkeys(("range", "full", "trilu"), "memory")
)
