"""Attention of ONNX (operator set 23) and of com.microsoft: output shapes and JSON graph nodes.

Queries, keys and values are [batch, heads, length, head_dim] or [batch, length, heads x head_dim]; earlier keys
[batch, kv_heads, length, head_dim] come with them. com.microsoft's Attention projects its input first.
"""

from __future__ import annotations

from typing import NamedTuple

from app.graphs.importers.onnx.call import Call, Shapes
from app.graphs.importers.onnx.values import Shape, ShapeError
from app.graphs.importers.steps import Step


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
