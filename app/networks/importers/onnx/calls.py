"""Calls of ONNX nodes: their inputs, and the operators that stand for others or have rules of their own.

Quantised and fused operators run as the plain ones that do the same work (`plain`); einsum and attention have their
shapes and nodes here. Operators of the domain com.microsoft are those of ONNX Runtime's quantisers and optimisers
(onnxruntime/docs/ContribOperators.md); its Attention projects its input first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.networks.importers.onnx.values import Shape, ShapeError, Value
from app.networks.importers.tensors import Step, table

Attributes = Mapping[str, Any]


class Call(NamedTuple):
    """One node: operator, inputs (None: omitted), attributes, number of outputs, and operator set version."""

    op: str
    inputs: Sequence[Value | None]
    attributes: Attributes
    outputs: int
    opset: int

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of a required input."""
        value = self.value(index)
        if value is None:
            raise ShapeError(index, f"{self.op} needs this input")
        return value.shape

    def value(self, index: int) -> Value | None:
        """Return an input; None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, name: str) -> list[int] | None:
        """Return integers from an input or, in older operator sets, an attribute; None if unknown."""
        value = self.value(index)
        if value is not None:
            return value.integers()
        attribute = self.attributes.get(name)
        return [int(item) for item in attribute] if isinstance(attribute, list) else None

    def number(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        return int(value) if isinstance(value, int | float) else default


Shapes = list[Shape]
Rule = Callable[[Call], Shapes | None]


# JSON graph operators that exist in the formats of quantised products.
_PRODUCTS = ("linear", "bmm", "conv2d", "recurrent", "attention")


class _Plain(NamedTuple):
    """The plain operator, the positions of its inputs, and the format of its products ("": that of its tensors)."""

    op: str
    inputs: Sequence[int]
    dtype: str = ""


_PLAIN: Mapping[str, _Plain] = {name: _Plain(*given) for name, given in table("onnx_plain").items()}
# Operators of com.microsoft whose name ONNX has for another one.
_OWN_NAMES = {"Attention": "PackedAttention"}


def plain(call: Call, domain: str) -> tuple[Call, str]:
    """Return the plain operator of a call, and the format of its products ("": that of its tensors)."""
    if domain == "com.microsoft" and call.op in _OWN_NAMES:
        return call._replace(op=_OWN_NAMES[call.op]), ""
    rule = _PLAIN.get(call.op)
    if rule is not None:
        inputs = [call.value(index) for index in rule.inputs]
        if call.op == "DynamicQuantizeLSTM":  # its weights are [directions, input, gates]
            inputs[1:] = [_turned(value) for value in inputs[1:]]
        return call._replace(op=rule.op, inputs=inputs), rule.dtype
    if call.op == "QLinearConcat":
        return call._replace(op="Concat", inputs=call.inputs[2::3]), ""
    if call.op in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
        return call, _dequantised(call)
    if call.op == "MatMulNBits":
        return call, "int4_wo" if call.number("bits", 4) == 4 else ""
    return call, ""


def in_format(steps: Sequence[Step], dtype: str) -> list[Step]:
    """Return the steps, with products in a format."""
    if not dtype:
        return list(steps)
    return [
        step._replace(attributes={**step.attributes, "dtype": dtype}) if step.op in _PRODUCTS else step
        for step in steps
    ]


def packed_elements(call: Call) -> float:
    """Return the elements of a weight in each element of its tensor: several where bytes hold a few bits each."""
    return 8.0 / min(max(call.number("bits", 4), 1), 8) if call.op == "MatMulNBits" else 1.0


def quantised_format(value: Value) -> str:
    """Return the format of a quantised tensor; "" for any other."""
    return value.quantised or {"uint8": "int8", "int8": "int8", "fp8": "fp8"}.get(value.dtype, "")


def _dequantised(call: Call) -> str:
    """Return the format in which runtimes run a product of dequantised tensors: that of both, or of 4-bit weights."""
    a, b = call.value(0), call.value(1)
    if a is None or b is None:
        return ""
    if b.quantised == "int4_wo":
        return "" if call.op.startswith("Conv") else "int4_wo"
    return a.quantised if a.quantised == b.quantised else ""


def _turned(value: Value | None) -> Value | None:
    return value and value._replace(shape=(*value.shape[:-2], *value.shape[-2:][::-1]))


def einsum_shapes(call: Call) -> Shapes | None:
    """Return the output shape; None for equations with an ellipsis."""
    terms = _terms(call)
    if terms is None:
        return None
    sizes = _extents(call, terms[:-1])
    return [tuple(sizes[letter] for letter in terms[-1])]


def einsum_steps(call: Call, shape: Shape) -> list[Step]:
    """Return a matrix product of two tensors that share a summed index; anything else moves its tensors."""
    terms = _terms(call)
    if terms is None or len(terms) != 3:
        return [Step("memory", shape, {}, range(len(call.inputs)))]
    sizes, (a, b, out) = _extents(call, terms[:-1]), (set(term) for term in terms)
    groups = {"b": a & b & out, "m": (a - b) & out, "n": (b - a) & out, "k": (a & b) - out}
    if not groups["k"]:
        return [Step("mul", shape, {}, range(2))]
    fields = {name: prod(sizes[letter] for letter in letters) for name, letters in groups.items()}
    second = call.value(1)
    if second is not None and second.constant and fields["b"] == 1:
        return [Step("linear", shape, {name: fields[name] for name in "mnk"})]
    return [Step("bmm", shape, fields, ())]


def _terms(call: Call) -> list[str] | None:
    equation = str(call.attributes.get("equation", "")).replace(" ", "")
    given, arrow, out = equation.partition("->")
    terms = given.split(",")
    if "." in equation or len(terms) != len(call.inputs):
        return None
    if not arrow:
        out = "".join(sorted(letter for letter in set(given) - {","} if given.count(letter) == 1))
    return [*terms, out]


def _extents(call: Call, terms: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        shape = call.shape(index)
        if len(term) != len(shape):
            raise ShapeError(index, f"shape {list(shape)} does not have the dimensions {term[:50]!r}")
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return sizes


class _Heads(NamedTuple):
    """Sizes of an attention; `past` keys come before the new ones."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    past: int


def attention_shapes(call: Call) -> Shapes:
    """Return the shapes of the result, and of keys and values for the next call."""
    sizes = _sizes(call)
    first = call.shape()
    flat = (*first[:-1], sizes.heads * sizes.value_dim)
    result = flat if len(first) == 3 else (*first[:-1], sizes.value_dim)
    held = sizes.batch, sizes.kv_heads, sizes.past + sizes.keys
    kept = [(*held, sizes.head_dim), (*held, sizes.value_dim)]
    return [result, *kept]


def attention_steps(call: Call, shape: Shape) -> list[Step]:
    """Return the attention."""
    sizes = _sizes(call)
    causal = bool(call.number("is_causal", call.number("unidirectional", int(call.op == "GroupQueryAttention"))))
    return [Step("attention", shape, _fields(sizes, causal=causal), ())]


def packed_shapes(call: Call) -> Shapes:
    """Return the shape of the result of an attention with projections; input [batch, length, features]."""
    sizes = _packed(call)
    held = 2, sizes.batch, sizes.heads, sizes.past + sizes.keys, sizes.head_dim
    return [(sizes.batch, sizes.queries, sizes.heads * sizes.value_dim), held]


def packed_steps(call: Call, shape: Shape) -> list[Step]:
    """Return the projections to queries, keys and values as one product, and the attention."""
    sizes, weight = _packed(call), call.shape(1)
    rows = sizes.batch, sizes.queries
    product = Step("linear", (*rows, weight[-1]), {"m": rows[0] * rows[1], "n": weight[-1], "k": weight[0]})
    causal = bool(call.number("unidirectional", 0))
    return [product, Step("attention", shape, _fields(sizes, causal=causal), ())]


def _fields(sizes: _Heads, *, causal: bool) -> dict[str, int | bool]:
    fields = {"batch": sizes.batch, "heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    return fields | {"query_length": sizes.queries, "context_length": sizes.past + sizes.keys, "causal": causal}


def _sizes(call: Call) -> _Heads:
    query = call.shape()
    heads = call.number("q_num_heads", call.number("num_heads", 0))
    kv_heads = call.number("kv_num_heads", heads)
    past_at = {"GroupQueryAttention": 3, "MultiHeadAttention": 6}.get(call.op, 4)
    past = _length_of(call, past_at)
    if len(query) == 4:
        key, value = call.shape(1), call.shape(2)
        return _Heads(query[0], query[1], key[1], query[2], key[2], query[3], value[3], past)
    if len(query) != 3 or heads < 1 or kv_heads < 1:
        raise ShapeError(
            0, f"{call.op} takes [batch, heads, length, head_dim], or three dimensions and a number of heads"
        )
    if call.value(1) is None:  # queries, keys and values in one
        width = query[2] // (heads + 2 * kv_heads)
        return _Heads(query[0], heads, kv_heads, query[1], query[1], width, width, past)
    key, value, width = call.shape(1), call.shape(2), query[2] // heads
    if len(key) == 4:  # [batch, heads, length, head_dim] beside flat queries
        return _Heads(query[0], heads, kv_heads, query[1], key[2], width, value[-1], past)
    return _Heads(query[0], heads, kv_heads, query[1], key[1], width, value[-1] // kv_heads, past)


def _packed(call: Call) -> _Heads:
    (batch, length, _), heads = (*call.shape(), 1, 1, 1)[:3], max(call.number("num_heads", 1), 1)
    listed = call.attributes.get("qkv_hidden_sizes")
    widths = listed if isinstance(listed, list) and len(listed) == 3 else [call.shape(1)[-1] // 3] * 3
    past = _length_of(call, 4, axis=3)
    return _Heads(batch, heads, heads, length, length, widths[0] // heads, widths[2] // heads, past)


def _length_of(call: Call, index: int, axis: int = 2) -> int:
    """Return the number of earlier keys."""
    value = call.value(index)
    return value.shape[axis] if value is not None and len(value.shape) > axis else 0
