"""What is bound by memory: element-wise operators, normalisations, pools, look-ups and copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from app.measure.operators.made import Family, Made, Maker, Row
from app.measure.operators.products import pair

_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "dropout": functional.dropout,
    "add_scalar": lambda x: x + 1.5,
    "mul_scalar": lambda x: x * 1.5,
    "div_scalar": lambda x: x / 1.5,
    "pow_scalar": lambda x: x**3.0,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
}
# Images of batch normalisation have at most this side.
_LARGEST_SIDE = 112


def _unary(compute: Callable[[Any], Any]) -> Family:
    def build(make: Maker, row: Row) -> Made:
        x = make.normal(row["b"], row["h"])
        return Made(lambda: compute(x), (x,))

    return build


def _binary(compute: Callable[[Any, Any], Any]) -> Family:
    def build(make: Maker, row: Row) -> Made:
        x, y = make.positive(row["b"], row["h"]), make.positive(row["b"], row["h"])
        return Made(lambda: compute(x, y), (x, y))

    return build


def _add_strided(make: Maker, row: Row) -> Made:
    """Groups of `stride` rows, whose added tensor has these rows innermost."""
    groups, stride, width = row["b"] // row["stride"], row["stride"], row["h"]
    x, y = make.normal(groups, stride, width), make.normal(groups, width, stride)
    return Made(lambda: torch.add(x, y.transpose(1, 2)), (x, y))


def _layer_norm(make: Maker, row: Row) -> Made:
    width = row["h"]
    x, weight, bias = make.normal(row["b"], width), make.normal(width), make.normal(width)
    return Made(lambda: functional.layer_norm(x, (width,), weight, bias), (x, weight, bias))


def _rms_norm(make: Maker, row: Row) -> Made:
    x, weight = make.normal(row["b"], row["h"]), make.normal(row["h"])
    return Made(lambda: functional.rms_norm(x, (row["h"],), weight), (x, weight))


def _batch_norm(make: Maker, row: Row) -> Made:
    """Images as square as `b` allows; forward with the statistics kept, as in inference, backward with the batch's."""
    channels = row["h"]
    side = max(side for side in range(1, min(_LARGEST_SIDE, math.isqrt(row["b"])) + 1) if row["b"] % side**2 == 0)
    x = make.normal(row["b"] // side**2, channels, side, side)
    mean, variance = make.normal(channels), make.positive(channels)
    weight, bias = make.normal(channels), make.normal(channels)
    training = row.get("phase") == "backward"
    return Made(lambda: functional.batch_norm(x, mean, variance, weight, bias, training=training), (x, weight, bias))


def _softmax(make: Maker, row: Row) -> Made:
    x = make.normal(row["b"], row["h"])
    return Made(lambda: torch.softmax(x, -1), (x,))


def _pool(compute: Callable[..., Any]) -> Family:
    def build(make: Maker, row: Row) -> Made:
        x = make.normal(row["b"], row["channels"], *pair(row["input_size"]))
        kernel, padding = pair(row["kernel_size"]), pair(row.get("padding", 0))
        stride = pair(row.get("stride", kernel))
        return Made(lambda: compute(x, kernel, stride, padding), (x,))

    return build


def _embedding(make: Maker, row: Row) -> Made:
    vocabulary = row["vocabulary"]
    table, chosen = make.normal(vocabulary, row["h"]), make.whole(vocabulary, row["b"])
    return Made(lambda: functional.embedding(chosen, table), (table,))


def _copy(make: Maker, row: Row) -> Made:
    x = make.normal(row["b"], row["h"])
    y = torch.empty_like(x)
    return Made(lambda: y.copy_(x), ())


def _memory(make: Maker, row: Row) -> Made:
    """Half of the bytes read, half written."""
    x = torch.randint(256, (row["bytes"] // 2,), dtype=torch.uint8, device=make.device.handle)
    y = torch.empty_like(x)
    return Made(lambda: y.copy_(x), ())


ROWWISE: Mapping[str, Family] = {
    **{name: _unary(compute) for name, compute in _UNARY.items()},
    **{name: _binary(compute) for name, compute in _BINARY.items()},
    "add_strided": _add_strided,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "softmax": _softmax,
    "max_pool2d": _pool(functional.max_pool2d),
    "avg_pool2d": _pool(functional.avg_pool2d),
    "embedding": _embedding,
    "copy": _copy,
    "memory": _memory,
}
