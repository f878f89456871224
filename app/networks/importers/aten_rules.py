"""Nodes of the JSON graph for each ATen call that PyTorch runs in eager mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.networks.importers.tensors import (
    ELEMENT_BYTES,
    Shape,
    Step,
    Window,
    convolution,
    pooling,
    product,
    table,
    transposed_convolution,
)
from app.ops.gemm import LOAD_BYTES


class Value(NamedTuple):
    """A tensor.

    ref      its name in the JSON graph; None for weights
    weights  elements by name of the parameters it consists of
    strided  True if it is not contiguous
    """

    shape: Shape
    dtype: str
    ref: str | None
    weights: Mapping[str, int] = {}
    strided: bool = False


class Call(NamedTuple):
    """One call: its arguments, with Values for tensors, and the shapes and dtypes of its outputs."""

    op: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: Sequence[tuple[Shape, str]]

    @property
    def out(self) -> Shape:
        """Shape of the first output."""
        return self.outputs[0][0]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    def tensor(self, place: int, name: str = "") -> Value:
        """Return a tensor argument; raises ValueError if it is none."""
        value = self.argument(place, name)
        if not isinstance(value, Value):
            raise ValueError(f"argument {place} of {self.op} is not a tensor")
        return value

    def sides(self, place: int, name: str, n: int, default: int) -> list[int]:
        """Return an integer argument per side; a single one applies to all sides, an empty one is the default."""
        value = self.argument(place, name)
        whole = list(map(int, value)) if isinstance(value, list | tuple) else [default if value is None else int(value)]
        return (whole or [default]) * n if len(whole) <= 1 else whole


Rule = Callable[[Call], list[Step]]


def steps(call: Call) -> list[Step] | None:
    """Return the nodes of a call; None if there is no rule for it."""
    rule = _RULES.get(call.op)
    return None if rule is None else rule(call)


def _linear(call: Call) -> list[Step]:
    weight = call.tensor(1, "weight")
    fields = {"n": weight.shape[0], "k": weight.shape[-1]}
    return [Step("linear", call.out, fields, (0,) if weight.ref is None else (0, 1))]


def _product(call: Call) -> list[Step]:
    a, b = call.tensor(0), call.tensor(1)
    return product(a.shape, b.shape, call.out, weights=b.ref is None)


def _added_product(call: Call) -> list[Step]:
    """Return the product of addmm and the like, whose first argument is the bias."""
    a, b = call.tensor(1), call.tensor(2)
    nodes = product(a.shape, b.shape, call.out, weights=b.ref is None)
    return [step._replace(inputs=[place + 1 for place in step.inputs if place is not None]) for step in nodes]


_EQUATION = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)")


def _einsum(call: Call) -> list[Step]:
    """Return the product of two tensors by an equation; other sums only move bytes."""
    equation, tensors = _EQUATION.fullmatch(str(call.args[0]).replace(" ", "")), call.argument(1, "tensors")
    first, second, out = equation.groups() if equation else ("", "", "")
    if not equation or (set(first) ^ set(second)) - set(out):
        return [Step("reduce_sum", call.out, {}, range(len(tensors)))]
    a, b = (value.shape for value in tensors)
    size = {**dict(zip(first, a, strict=True)), **dict(zip(second, b, strict=True))}
    both = set(first) & set(second)
    batch, k = (prod(size[name] for name in both if (name in out) == kept) for kept in (True, False))
    n = prod(size[name] for name in set(second) - both)
    return product((batch, prod(call.out) // (batch * n), k), (batch, k, n), call.out, weights=False)


def _convolution(call: Call) -> list[Step]:
    x, weight = call.tensor(0).shape, call.tensor(1).shape
    n = len(weight) - 2
    general, by_name = call.op in ("convolution", "_convolution"), "transpose" in call.op
    groups = int(call.argument(8 if general else 6, "groups", 1))
    dilation = call.sides(7 if by_name else 5, "dilation", n, 1)
    window = Window(weight[2:], call.sides(3, "stride", n, 1), dilation)
    transposed = by_name or (general and call.argument(6, "transposed"))
    nodes = (transposed_convolution if transposed else convolution)(x, weight, call.out, window, groups)
    aligned = groups == 1 and all(channels * 4 % LOAD_BYTES == 0 for channels in weight[:2])
    return [_rounded(step) if aligned and call.outputs[0][1] == "fp32" else step for step in nodes]


def _rounded(step: Step) -> Step:
    """Return a convolution in FP32 as PyTorch lets cuDNN run it by default: in TF32, on tensor units."""
    return step._replace(attributes={**step.attributes, "dtype": "tf32"}) if step.op == "conv2d" else step


def _pool(call: Call) -> list[Step]:
    x, op = call.tensor(0).shape, "max_pool2d" if "max" in call.op else "avg_pool2d"
    n = len(call.out) - 2
    kernel = call.sides(1, "kernel_size", n, 1)
    stride = call.sides(2, "stride", n, 0)
    stride = kernel if 0 in stride else stride
    dilation = call.sides(4, "dilation", n, 1) if "max" in call.op else [1] * n
    return pooling(op, x, call.out, Window(kernel, stride, dilation))


def _adaptive_pool(call: Call) -> list[Step]:
    x, op = call.tensor(0).shape, "max_pool2d" if "max" in call.op else "avg_pool2d"
    stride = [max(size // out, 1) for size, out in zip(x[2:], call.out[2:], strict=True)]
    kernel = [size - (out - 1) * step for size, out, step in zip(x[2:], call.out[2:], stride, strict=True)]
    return pooling(op, x, call.out, Window(kernel, stride, [1] * len(stride)))


def _batch_norm(call: Call) -> list[Step]:
    """Return a batch norm; forms without a flag have a number, such as the momentum, where others have it."""
    trains = any(value is True for value in (*call.args[3:6], call.kwargs.get("training")))
    return [Step("batch_norm_training" if trains else "batch_norm", call.out)]


def _layer_norm(call: Call) -> list[Step]:
    op = "rms_norm" if "rms" in call.op else "layer_norm"
    return [Step(op, call.out, {"h": prod(int(size) for size in call.argument(1, "normalized_shape"))})]


def _group_norm(call: Call) -> list[Step]:
    """Return a norm of each group of an image's channels: a batch norm in training of as many channels."""
    place, name = (6, "group") if call.op == "native_group_norm" else (1, "num_groups")
    groups = call.out[0] * int(call.argument(place, name) if "group" in call.op else call.out[1])
    return [Step("batch_norm_training", call.out, {"b": prod(call.out) // groups, "h": groups})]


def _softmax(call: Call) -> list[Step]:
    axis = int(call.argument(1, "dim", -1))
    return [Step("softmax", call.out, {"h": call.out[axis] if call.out else 1})]


def _embedding(call: Call) -> list[Step]:
    table = call.tensor(0).shape
    return [Step("embedding", call.out, {"h": table[-1], "vocabulary": table[0]}, (1,))]


# Positions of the mask (or None) and of the causal flag in each form of scaled_dot_product_attention.
_ATTENTION = {
    "scaled_dot_product_attention": (3, 5),
    "_scaled_dot_product_flash_attention": (None, 4),
    "_scaled_dot_product_flash_attention_for_cpu": (None, 4),
    "_scaled_dot_product_efficient_attention": (3, 6),
    "_scaled_dot_product_cudnn_attention": (3, 6),
    "_scaled_dot_product_fused_attention_overrideable": (3, 5),
}


def _attention(call: Call) -> list[Step]:
    """Return an attention node; a mask tensor is taken to mask nothing."""
    q, k = call.tensor(0, "query").shape, call.tensor(1, "key").shape
    mask, flag = _ATTENTION[call.op]
    masked = mask is not None and call.argument(mask, "attn_mask") is not None
    fields = {
        "batch": prod(q[:-3]),
        "heads": q[-3] if len(q) > 2 else 1,
        "kv_heads": k[-3] if len(k) > 2 else 1,
        "query_length": q[-2],
        "context_length": k[-2],
        "head_dim": q[-1],
        "causal": bool(call.argument(flag, "is_causal", False)) and not masked,
    }
    return [Step("attention", call.out, fields, (0, 1))]


_COMPOSITES = table("aten_composites")


def _composite(call: Call) -> list[Step]:
    """Return the kernels of a composite operator: over its first tensor, or what the one before leaves of its rows."""
    whole = call.tensor(0).shape
    shapes = {"elements": whole, "rows": whole[:-1] or (1,), "out": call.out}
    return [Step(op, shapes[over], {}, (0,) if over == "elements" else (None,)) for op, over in _COMPOSITES[call.op]]


def _part(call: Call) -> list[Step]:
    """Return a copy of only the selected part of a tensor."""
    dtype = call.outputs[0][1]
    return [
        Step(
            "memory", call.out, {"bytes": max(2.0 * ELEMENT_BYTES[dtype] * prod(call.out), 1.0)}, range(len(call.args))
        )
    ]


def _recurrent(call: Call) -> list[Step]:
    """Return one node per layer of a recurrent network; each direction is a repetition."""
    x, weights = call.tensor(0).shape, call.argument(2, "params")
    biases, layers = call.argument(3, "has_biases"), int(call.argument(4, "num_layers"))
    directions, batch_first = 2 if call.argument(7, "bidirectional") else 1, call.argument(8, "batch_first")
    batch, length = (x[0], x[1]) if batch_first else (x[1], x[0])
    each, cell, nodes = (4 if biases else 2) * directions, call.op.split("_")[0], list[Step]()
    for layer in range(layers):
        first, second = weights[layer * each].shape, weights[layer * each + 1].shape
        fields = {"batch": batch, "input": first[1], "hidden": second[1], "steps": length, "cell": cell}
        nodes.append(Step("recurrent", call.out, fields, (None,) if layer else (0,), directions))
    return nodes


_RULES: Mapping[str, Rule] = (
    {"linear": _linear, "einsum": _einsum, "mm": _product, "matmul": _product, "bmm": _product, "embedding": _embedding}
    | dict.fromkeys(("addmm", "baddbmm"), _added_product)
    | dict.fromkeys(("convolution", "_convolution", "conv1d", "conv2d", "conv3d"), _convolution)
    | dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution)
    | dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d"), _pool)
    | dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _pool)
    | dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"), _adaptive_pool)
    | dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_avg_pool3d"), _adaptive_pool)
    | dict.fromkeys(("batch_norm", "native_batch_norm", "cudnn_batch_norm", "_batch_norm_no_update"), _batch_norm)
    | dict.fromkeys(("_native_batch_norm_legit", "_native_batch_norm_legit_no_training"), _batch_norm)
    | dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), _layer_norm)
    | dict.fromkeys(("group_norm", "native_group_norm", "instance_norm"), _group_norm)
    | dict.fromkeys(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"), _softmax)
    | dict.fromkeys(_ATTENTION, _attention)
    | dict.fromkeys(_COMPOSITES, _composite)
    | dict.fromkeys(("index_select", "index", "gather", "embedding_bag", "masked_select"), _part)
    | dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent)
)
