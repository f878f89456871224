"""Matrix products and convolutions (app.ops.gemm, app.ops.conv), recurrent layers (app.ops.recurrent)."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from app.measure.operators.made import Made, Maker, Row


def linear(make: Maker, row: Row) -> Made:
    """y[m, n] = x[m, k] W[n, k]^T, without a bias."""
    x, weight = make.normal(row["m"], row["k"]), make.normal(row["n"], row["k"])
    return Made(lambda: functional.linear(x, weight), (x, weight))


def scaled_linear(make: Maker, row: Row) -> Made:
    """The same in FP8 scaled per tensor: activations arrive in BF16 and are converted first, results are BF16."""
    activations = torch.randn(row["m"], row["k"], dtype=torch.bfloat16, device=make.device.handle)
    weight = torch.randn(row["n"], row["k"], device=make.device.handle).to(make.dtype).t()
    scale = torch.ones((), device=make.device.handle)

    def forward() -> Any:
        return torch._scaled_mm(activations.to(make.dtype), weight, scale, scale, out_dtype=torch.bfloat16)

    return Made(forward, ())


def bmm(make: Maker, row: Row) -> Made:
    """`b` products."""
    first, second = make.normal(row["b"], row["m"], row["k"]), make.normal(row["b"], row["k"], row["n"])
    return Made(lambda: torch.bmm(first, second), (first, second))


def conv2d(make: Maker, row: Row) -> Made:
    """NCHW, without a bias."""
    groups, kernel = row.get("groups", 1), pair(row["kernel_size"])
    x = make.normal(row["b"], row["in_channels"], *pair(row["input_size"]))
    weight = make.normal(row["out_channels"], row["in_channels"] // groups, *kernel)
    stride, padding = pair(row.get("stride", 1)), pair(row.get("padding", 0))
    return Made(lambda: functional.conv2d(x, weight, None, stride, padding, 1, groups), (x, weight))


def recurrent(make: Maker, row: Row) -> Made:
    """One layer of `steps` steps, without biases; forward as in inference, which keeps nothing for backward."""
    layers = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
    kind, where = layers[row.get("cell", "lstm")], {"device": make.device.handle, "dtype": make.dtype}
    layer = kind(row["input"], row["hidden"], bias=False, **where)
    layer.requires_grad_(False).train(row.get("phase") == "backward")
    x = make.normal(row["steps"], row["batch"], row["input"])
    return Made(lambda: layer(x)[0], (x, *layer.parameters()))


def pair(side: Any) -> list[int]:
    """[height, width] of one number or both."""
    return list(side) if isinstance(side, list) else [side, side]
