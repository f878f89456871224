"""The sizes over which each operator is measured: its axes, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.ops.elementwise import FLAT_OPS

Sizes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """A whole number from `low` to `high`, evenly over its logarithm, always a multiple of `step`."""

    low: int
    high: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Pick:
    """One of some values, each as often."""

    options: tuple[Any, ...]


Axis = Log | Pick


@dataclass(frozen=True, slots=True)
class Space:
    """An operator's part of the suite.

    axes     of its fields, or of what `finish` makes fields of
    dtypes   formats that PyTorch has it in
    finish   the fields from the axes; None where they contradict one another
    back     whether backward is measured too
    share    how many of its points a round has
    every    in which of the rounds: every one, every second one, ...
    """

    axes: Mapping[str, Axis]
    dtypes: tuple[str, ...]
    finish: Callable[[Sizes], Sizes | None] = dict
    back: bool = True
    share: int = 1
    every: int = 1


PLAIN = ("fp32", "bf16", "fp16", "fp64")
PRODUCTS = ("fp32", "bf16", "fp16", "tf32", "fp64")
_NARROW = ("bf16", "fp16", "fp32")
_ROWS, _WIDTH = Log(1, 1 << 20), Log(8, 1 << 16)
_HEADS, _WIDTHS = Pick((8, 12, 16, 20, 32, 40, 64, 128)), Pick((64, 128, 80, 96, 256))
_CONTEXT = Log(16, 1 << 17)


def _conv(sizes: Sizes) -> Sizes | None:
    """Depthwise where `depthwise`: as many groups and channels out as channels in."""
    groups = sizes["in_channels"] if sizes.pop("depthwise") else 1
    out = groups if groups > 1 else sizes["out_channels"]
    kernel = sizes["kernel_size"]
    return sizes | {"out_channels": out, "groups": groups, "padding": kernel // 2}


def _pool(sizes: Sizes) -> Sizes | None:
    return sizes if sizes["kernel_size"] <= sizes["input_size"] else None


def _images(sizes: Sizes) -> Sizes | None:
    """Rows of batch_norm: images times their area."""
    return {"b": sizes["images"] * sizes["side"] ** 2, "h": sizes["channels"]}


def _interleaved(sizes: Sizes) -> Sizes:
    """Groups of as many rows as lie interleaved."""
    return {"b": sizes.pop("groups") * sizes["stride"], **sizes}


def _shared(sizes: Sizes) -> Sizes:
    """KV heads from heads and how many of them share one."""
    sharing = sizes.pop("sharing")
    kv_heads = sizes["heads"] // sharing if sizes["heads"] % sharing == 0 else sizes["heads"]
    return sizes | {"kv_heads": kv_heads}


def _chunk(sizes: Sizes) -> Sizes | None:
    """New queries: the share of the context that `new` says."""
    queries = max(2, sizes["context_length"] // sizes.pop("new"))
    return sizes | {"query_length": min(queries, sizes["context_length"])}


def _prefill(sizes: Sizes) -> Sizes | None:
    return _chunk(_shared(sizes))


def _mla(sizes: Sizes) -> Sizes | None:
    """Decode where `new` is 0."""
    if sizes["new"] == 0:
        del sizes["new"]
        return sizes | {"query_length": 1}
    return _chunk(sizes)


def _experts(sizes: Sizes) -> Sizes | None:
    """An expert's part stays a multiple of 16 elements, as grouped products want it."""
    return sizes if sizes["intermediate"] % (16 * sizes["tensor_parallel"]) == 0 else None


_GEMM = {"m": Log(1, 1 << 16), "n": Log(8, 1 << 16), "k": Log(8, 1 << 15)}
_NORM = Space({"b": _ROWS, "h": _WIDTH}, PLAIN)
_POOL = Space(
    {
        "b": Log(1, 256),
        "channels": Log(1, 2048),
        "kernel_size": Pick((2, 3, 7)),
        "input_size": Log(7, 256),
        "stride": Pick((1, 2)),
    },
    PLAIN,
    _pool,
)
_ATTENTION: Mapping[str, Axis] = {
    "batch": Log(1, 128),
    "heads": _HEADS,
    "sharing": Pick((1, 4, 8)),
    "head_dim": _WIDTHS,
}

SPACES: Mapping[str, Space] = {
    "linear": Space(_GEMM, (*PRODUCTS, "fp8"), share=4),
    "bmm": Space({"b": Log(1, 1024), **{name: Log(8, 8192) for name in "mnk"}}, PRODUCTS, share=2),
    "conv2d": Space(
        {
            "b": Log(1, 256),
            "in_channels": Log(3, 2048),
            "out_channels": Log(8, 2048),
            "kernel_size": Pick((1, 3, 5, 7)),
            "input_size": Log(7, 256),
            "stride": Pick((1, 1, 2)),
            "depthwise": Pick((False, False, False, True)),
        },
        PRODUCTS,
        _conv,
        share=2,
    ),
    "attention_prefill": Space(
        {**_ATTENTION, "context_length": _CONTEXT, "new": Pick((1, 1, 4))},
        _NARROW,
        _prefill,
        share=2,
    ),
    "attention_decode": Space({**_ATTENTION, "context_length": _CONTEXT}, _NARROW, _shared, back=False, share=2),
    "attention_mla": Space(
        {
            "batch": Log(1, 128),
            "heads": Pick((16, 32, 64, 128)),
            "head_dim": Pick((128,)),
            "context_length": _CONTEXT,
            "new": Pick((0, 1, 4)),
        },
        _NARROW,
        _mla,
        back=False,
    ),
    "moe": Space(
        {
            "tokens": Log(1, 1 << 15),
            "hidden": Log(256, 8192, step=64),
            "intermediate": Log(256, 16384, step=64),
            "experts": Pick((8, 16, 32, 64, 128, 256)),
            "top_k": Pick((1, 2, 4, 8)),
            "tensor_parallel": Pick((1, 1, 2, 4)),
            "distribution": Pick(("balanced", "power_law_1.01", "power_law_1.2")),
        },
        ("bf16",),
        _experts,
    ),
    "layer_norm": _NORM,
    "rms_norm": _NORM,
    "batch_norm": Space({"images": Log(1, 256), "side": Log(1, 112), "channels": Log(8, 2048)}, PLAIN, _images),
    "softmax": _NORM,
    "max_pool2d": _POOL,
    "avg_pool2d": _POOL,
    "embedding": Space({"b": _ROWS, "h": Log(32, 8192), "vocabulary": Log(512, 1 << 18)}, PLAIN),
    "recurrent": Space(
        {
            "batch": Log(1, 512),
            "input": Log(16, 4096),
            "hidden": Log(16, 4096),
            "steps": Log(1, 512),
            "cell": Pick(("lstm", "gru", "rnn")),
        },
        ("fp32", "bf16", "fp16"),
    ),
    "add_strided": Space(
        {"groups": Log(1, 32), "h": Log(64, 1 << 20), "stride": Pick((8, 16, 32))}, PLAIN, _interleaved
    ),
    "copy": Space({"b": _ROWS, "h": _WIDTH}, PLAIN, back=False),
    "memory": Space({"bytes": Log(1 << 10, 1 << 33, step=2)}, ("fp32",), back=False),
    **dict.fromkeys((*(op.name for op in FLAT_OPS), "dropout"), Space({"b": _ROWS, "h": _WIDTH}, PLAIN, every=3)),
}
