"""Importer of ATen calls (written by torch.export) to the project's JSON graph, without PyTorch.

Each node of the exported program is a Record (names, plain arguments, shapes), made from PyTorch's own graph in
`gpucast trace` and from an archive's JSON in POST /graphs. Nodes are those that PyTorch runs in eager mode: a view
costs nothing; a `reshape` of a non-contiguous tensor copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.networks.importers.tensors import (
    ELEMENT_BYTES,
    INDEX_BYTES,
    TENSOR_DTYPES,
    Shape,
    Step,
    Window,
    by_name,
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
    return [Step("batch_norm_training" if call.argument(5, "training", False) else "batch_norm", call.out)]


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


INPUT, PARAMETER, BUFFER, GETITEM = "input", "parameter", "buffer", "getitem"

# PyTorch's dtype names that differ from ours.
_DTYPES = {
    "float32": "fp32",
    "float64": "fp64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
_OUT_OF_ORDER = frozenset(table("aten_strided_views"))
_VIEWS = _OUT_OF_ORDER | frozenset(table("aten_views"))
# The nodes of a call that have its weights.
_PRODUCTS = ("bmm", "linear", "conv2d")
_COPYING_VIEWS = ("reshape", "flatten", "_reshape_copy")
_NAMES = by_name("aten")


class Ref(NamedTuple):
    """An argument: the first tensor that another record writes."""

    name: str


class Record(NamedTuple):
    """One node of an exported program.

    target   an overload's name (`aten.linear.default`), GETITEM, or INPUT, PARAMETER or BUFFER for graph inputs
    args     numbers, strings, Refs, None and lists of these; `kwargs` likewise
    outputs  shapes and dtypes (`float32`); an empty tensor, which PyTorch writes for unused outputs, counts as a scalar
    """

    name: str
    target: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: Sequence[tuple[Sequence[int], str]]


def graph(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return the JSON graph of a program; raises ValueError that names an invalid record."""
    walk = _Walk()
    for record in records:
        try:
            walk.take(record)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{record.name} ({record.target}): {error}") from error
    floats = (given["dtype"] for given in walk.inputs if given["dtype"] not in INDEX_BYTES)
    return {"name": name[:200], "dtype": walk.dtype or next(floats, "fp32"), "inputs": walk.inputs, "nodes": walk.nodes}


class _Walk:
    """State of a walk over a program: the values of each record so far, and the nodes written."""

    def __init__(self) -> None:
        self.dtype = ""
        self.inputs: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self._values: dict[str, list[Value]] = {}
        self._counted: set[str] = set()

    def take(self, record: Record) -> None:
        """Register a record's outputs, and write its nodes."""
        outputs = [(tuple(int(size) or 1 for size in shape), _dtype(dtype)) for shape, dtype in record.outputs]
        if record.target == GETITEM:
            source, index = record.args[0].name, int(record.args[1])
            self._values[record.name] = [self._values[source][index]]
        elif record.target == INPUT:
            self._values[record.name] = [self._input(record.name, *output) for output in outputs]
        elif record.target in (PARAMETER, BUFFER):
            self._values[record.name] = [self._held(record, *output) for output in outputs]
        elif outputs:
            self._call(record.name, Call(_base(record.target), self._resolved(record.args), {
                key: self._resolved(value) for key, value in record.kwargs.items()
            }, outputs))  # fmt: skip

    def _input(self, name: str, shape: Shape, dtype: str) -> Value:
        self.inputs.append({"name": name, "shape": list(shape), "dtype": dtype})
        return Value(shape, dtype, name)

    def _held(self, record: Record, shape: Shape, dtype: str) -> Value:
        """Return the value of a parameter or buffer; only parameters count as weights."""
        learned = record.target == PARAMETER
        if learned and not self.dtype and dtype not in INDEX_BYTES:
            self.dtype = dtype
        return Value(shape, dtype, None, {record.name: prod(shape)} if learned else {})

    def _resolved(self, argument: Any) -> Any:
        """Return an argument with Values in place of Refs."""
        if isinstance(argument, Ref):
            return self._values[argument.name][0] if argument.name in self._values else None
        if isinstance(argument, list | tuple):
            return [self._resolved(item) for item in argument]
        return argument

    def _call(self, name: str, call: Call) -> None:
        given = _tensors([*call.args, *call.kwargs.values()])
        if not given and prod(call.out) == 1:  # a scalar, or nothing
            self._values[name] = [Value(shape, dtype, None) for shape, dtype in call.outputs]
            return
        if call.op in _VIEWS and given and not (call.op in _COPYING_VIEWS and given[0].strided):
            self._values[name] = self._view(name, call, given[0])
            return
        if given and all(value.ref is None for value in given) and not any(value.weights for value in given):
            self._values[name] = [
                Value(shape, dtype, None) for shape, dtype in call.outputs
            ]  # computed from buffers only
            return
        if not self.dtype:
            self.dtype = next((dtype for _, dtype in call.outputs if dtype not in INDEX_BYTES), "")
        parts = steps(call) if call.op not in _COPYING_VIEWS else [Step("copy", call.out)]
        places: Sequence[Value | None] = given  # tensors in a list, as of einsum
        if parts and any(isinstance(value, Value) for value in call.args):
            places = [value if isinstance(value, Value) else None for value in call.args]
        parts = parts or [Step(_NAMES.get(call.op, call.op), call.out, {}, range(len(given)))]
        self._write(name, call, parts, places)
        refs = (f"{name}:{k}" if k else name for k in range(len(call.outputs)))
        self._values[name] = [Value(*output, ref) for output, ref in zip(call.outputs, refs, strict=False)]
        weighty = next((node for node in self.nodes[-len(parts) :] if node["op"] in _PRODUCTS), self.nodes[-1])
        weighty["parameters"] = self._parameters(given)

    def _view(self, name: str, call: Call, given: Value) -> list[Value]:
        """Return the values of a view: of weights they are weights, of tensors they come from nodes without cost."""
        strided = call.op in _OUT_OF_ORDER or given.strided
        if given.ref is None:
            return [Value(shape, dtype, None, given.weights, strided) for shape, dtype in call.outputs]
        self.nodes.append(self._form(name, "slice", [given.ref], call.outputs, {}, 1))
        refs = (f"{name}:{k}" if k else name for k in range(len(call.outputs)))
        return [Value(*output, ref, {}, strided) for output, ref in zip(call.outputs, refs, strict=False)]

    def _write(self, name: str, call: Call, parts: Sequence[Step], places: Sequence[Value | None]) -> None:
        before = name
        for j, step in enumerate(parts):
            last = j == len(parts) - 1
            read = [places[k] for k in step.inputs if k is not None and k < len(places)]
            inputs = [value.ref for value in read if value is not None and value.ref is not None]
            outputs = call.outputs if last else [(step.shape, call.outputs[0][1])]
            title = name if last else f"{name} ({j + 1})"
            names = [before] if None in step.inputs else inputs
            self.nodes.append(self._form(title, step.op, names, outputs, step.attributes, step.repeats))
            before = title

    def _form(
        self, name: str, op: str, inputs: Sequence[str], outputs: Any, attributes: Mapping[str, Any], repeats: int
    ) -> dict[str, Any]:
        tensors = [{"shape": list(shape), "dtype": dtype} for shape, dtype in outputs]
        form = {"name": name, "op": op, "inputs": list(inputs), "outputs": tensors, "attributes": dict(attributes)}
        return form | {"repeats": repeats, "parameters": 0}

    def _parameters(self, given: Sequence[Value]) -> int:
        """Return the elements of weights that no earlier call has read."""
        fresh = {name: size for value in given for name, size in value.weights.items() if name not in self._counted}
        self._counted |= fresh.keys()
        return sum(fresh.values())


def _tensors(arguments: Sequence[Any]) -> list[Value]:
    """Return all tensors among arguments, including nested lists."""
    tensors: list[Value] = []
    for item in arguments:
        if isinstance(item, Value):
            tensors.append(item)
        elif isinstance(item, list):
            tensors += _tensors(item)
    return tensors


def _base(target: str) -> str:
    """Return an operator's name without namespace, overload and the in-place suffix."""
    parts = target.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _dtype(name: str) -> str:
    known = _DTYPES.get(name, name)
    return known if known in TENSOR_DTYPES else "uint8" if "8" in name else "fp32"
