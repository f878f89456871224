"""ConvNets by torchvision's names, as Workloads with the parameters and shapes of torchvision's models.

A network is built once for one image, then scaled to the batch and the number format. It is a list of blocks in
execution order (seed_data/convnets.json):

    block     kind, by which blocks are numbered (Bottleneck4)
    layers    [name, arguments ..., {options}] each: a method of layers.Net, or one of those of `_path`
    repeats   times that the block runs; one of them is lowered
    times     times that the block is written out, as where channels grow with each
    act       activation of layers that name none; otherwise that of the network, otherwise relu
    training  the block runs in training only
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from app.config import SEED_DATA
from app.networks.batched import Diverged, PerConfiguration, expanded, per_configuration
from app.networks.build import NEEDS_READ, NEEDS_WRITTEN, with_column
from app.networks.convnets.layers import Block, Net, Tensor, TooSmall
from app.networks.run import Run, refuse
from app.ops import OP_CODE
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, WEIGHT_BYTES
from app.tables.workload import Workload

# Name of a layer, then its arguments.
Layer = Sequence[Any]

_TABLES: Mapping[str, Mapping[str, Any]] = json.loads((SEED_DATA / "convnets.json").read_text("utf-8"))
CONVNETS: Mapping[str, Mapping[str, Any]] = dict(chain.from_iterable(f["networks"].items() for f in _TABLES.values()))
# Family of each network: ResNeXt and Wide ResNet are ResNets, and all versions of a network are one family.
FAMILIES: Mapping[str, str] = {name: family for family, table in _TABLES.items() for name in table["networks"]}
DTYPES = ("fp32", "tf32", "fp16", "bf16")
MODES = ("inference", "training")
MOST_PIXELS = 4096

_INDEX_BYTES = 8.0  # per output of a max pooling


def lower(name: str, run: Run) -> Workload:
    """Return the forward pass of the network `name` for `run.device_batch` images of `run.image_size` pixels per side.

    Training adds dropout, stochastic depth and auxiliary classifiers. A name such as `resnet50/Bottleneck4` stands for
    one block. Raises BadInput for an unknown name, an image too small for the network, or an unsupported run.
    """
    network, of, block = name.partition("/")
    if of:
        parts = blocks(network, run)
        if block not in parts:
            refuse(("workload", "name"), f"{network} has no block {block[:80]!r}; there are {', '.join(parts)}")
        return parts[block]
    return scaled(_network(name, run), run.device_batch, run.dtype)


def is_convnet(name: str) -> bool:
    """Return True for the name of a ConvNet, or of a possible block of one."""
    return name.partition("/")[0] in CONVNETS


def blocks(name: str, run: Run) -> dict[str, Workload]:
    """Return each block of the network as a workload, in order: ConvMeter predicts blocks one by one (table 2).

    Blocks are named by kind and number from 1 (`Bottleneck4`); equal blocks share one workload. Raises as `lower` does.
    """
    network = _network(name, run)
    whole = scaled(network, run.device_batch, run.dtype)
    parts: dict[str, Workload] = {}
    for k, block in enumerate(network.blocks):
        workload = part(whole, k)
        parts |= {f"{block.kind}{block.first + i}": workload for i in range(block.repeats)}
    return parts


def _network(name: str, run: Run) -> Walk:
    _check(run)
    if name not in CONVNETS:
        near = get_close_matches(name.lower(), CONVNETS, 3, 0.5)
        names = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(CONVNETS)}"
        refuse(("workload", "name"), f"no ConvNet is called {name[:80]!r}; {names}")
    try:
        return walk(name, run.image_size, run.mode == "training")
    except TooSmall:
        least = _least_side(name, run.mode == "training")
        refuse(("workload", "image_size"), f"{name} needs images of at least {least} pixels a side")


def _check(run: Run) -> None:
    """Raise BadInput for settings that ConvNets do not support."""
    if run.parallelism.tensor > 1:
        refuse(("workload", "parallelism", "tensor"), "ConvNets are not split by tensor parallelism: must be 1")
    if run.mode not in MODES:
        refuse(("workload", "mode"), f"ConvNets run in one of {', '.join(MODES)}")
    if run.dtype not in DTYPES:
        refuse(("workload", "dtype"), f"ConvNets run in one of {', '.join(DTYPES)}")
    if not 1 <= run.image_size <= MOST_PIXELS:
        refuse(("workload", "image_size"), f"must be 1 to {MOST_PIXELS} pixels")


@cache
def _least_side(name: str, training: bool) -> int:
    """Return the smallest image side that a network accepts, in pixels, by bisection."""
    low, high = 0, MOST_PIXELS
    while high - low > 1:
        middle = (low + high) // 2
        try:
            walk(name, middle, training)
        except TooSmall:
            low = middle
        else:
            high = middle
    return high


def build(name: str, net: Net) -> None:
    """Add the blocks of the network `name` to `net`, an empty one."""
    table, kept = CONVNETS[name], dict[str, Tensor]()
    x = net.image
    for block in table["blocks"]:
        if block.get("training") and not net.training:
            continue
        net.activation = block.get("act") or table.get("act", "relu")
        for _ in range(block.get("times", 1)):
            net.begin(block["block"], block.get("repeats", 1))
            x = _path(net, x, block["layers"], kept)


def _path(net: Net, x: Tensor, layers: Sequence[Layer], kept: dict[str, Tensor]) -> Tensor:
    """Add layers in sequence after `x`, and return the last one's output.

    ["branch", name, path]  keeps the output of a path from here under a name; what follows starts here again
    ["from", name]          continues from a kept tensor
    ["sum" or "concat", ...]  joins paths from here, run in this order, and kept tensors by name
    """
    for name, *given in layers:
        options = given.pop() if given and isinstance(given[-1], dict) else {}
        match name:
            case "branch":
                kept[given[0]] = _path(net, x, given[1], kept)
            case "from":
                x = kept[given[0]]
            case "sum" | "concat":
                parts = [kept[part] if isinstance(part, str) else _path(net, x, part, kept) for part in given]
                x = net.add(*parts) if name == "sum" else net.concat(parts)
            case _:
                x = getattr(net, name)(x, *given, **options)
    return x


class Walk(NamedTuple):
    """A network for one image.

    workload  its rows in FP32
    blocks    its blocks
    outputs   float64 [n], elements that each row writes
    saved     float64 [n], those saved for backward; the input image's are counted with row 0
    indices   float64 [n], bytes of saved indices, the same for every dtype
    """

    workload: Workload
    blocks: tuple[Block, ...]
    outputs: Floats
    saved: Floats
    indices: Floats


def walk(name: str, side: int, training: bool) -> Walk:
    """Return the network `name` for one image of `side` pixels per side; raises TooSmall if a window does not fit."""
    if not isinstance(side, PerConfiguration):
        return _remembered(name, side, training)
    sides, of = np.unique(np.asarray(side), return_inverse=True)
    try:
        return _expanded(_of_sides(name, tuple(sides.tolist()), training), of)
    except Diverged as diverged:
        raise Diverged(diverged.mask[of]) from None


def _expanded(walk: Walk, of: Ints) -> Walk:
    """Return a network of several image sides with configuration j at side `of[j]`."""
    figures = {name: getattr(walk, name).T.take(of, axis=1).T for name in ("outputs", "saved", "indices")}
    return walk._replace(workload=expanded(walk.workload, of), **figures)


def _walked(name: str, side: int, training: bool) -> Walk:
    net = Net(side, training=training)
    build(name, net)
    w = net.rows.build()
    outputs = w.output_bytes / OUTPUT_BYTES[w.ops.dtype]
    saved_rows = NEEDS_WRITTEN[w.ops.kind]
    producers, consumers = w.edges
    saved_rows[producers[NEEDS_READ[w.ops.kind[consumers]]]] = True
    saved = np.where(saved_rows, outputs, 0.0)
    saved[..., 0] += net.image.elements  # the first row is a convolution of the image
    indices = np.where(w.ops.kind == OP_CODE["max_pool2d"], _INDEX_BYTES * outputs, 0.0)
    return Walk(w, tuple(net.blocks), outputs, saved, indices)


_remembered = lru_cache(maxsize=128)(_walked)


@lru_cache(maxsize=32)
def _of_sides(name: str, sides: tuple[float, ...], training: bool) -> Walk:
    return _walked(name, per_configuration(sides), training)


def scaled(walk: Walk, batch: int, dtype: str) -> Workload:
    """Return the network for a batch in a number format; weights do not scale with the batch."""
    w = walk.workload
    images = np.asarray(batch, dtype=np.float64)[..., None]  # [1], or [c, 1]
    code = DTYPE_CODE[dtype]
    ops = replace(w.ops, dtype=np.full(len(w), code, dtype=np.intp))
    for column in ("b", "m"):
        ops = with_column(ops, column, images * ops.column(column))
    return replace(
        w,
        ops=ops,
        weight_bytes=w.parameters * WEIGHT_BYTES[code],
        output_bytes=images * walk.outputs * OUTPUT_BYTES[code],
        saved_bytes=images * (walk.saved * DTYPE_BYTES[code] + walk.indices),
    )


def part(w: Workload, block: int) -> Workload:
    """Return one repetition of a block as a workload."""
    rows = np.flatnonzero(w.block == block)
    first, end = rows[0], rows[-1] + 1
    inside = (w.edges >= first).all(axis=0) & (w.edges < end).all(axis=0)
    return Workload(
        ops=w.ops.take(rows),
        names=w.names[first:end],
        phase=w.phase[rows],
        source=w.source[rows] - first,
        block=np.zeros(len(rows), dtype=np.intp),
        repeats=np.ones(1),
        origin=np.zeros(1, dtype=np.intp),
        edges=w.edges[:, inside] - first,
        parameters=w.parameters[..., rows],
        weight_bytes=w.weight_bytes[..., rows],
        output_bytes=w.output_bytes[..., rows],
        saved_bytes=w.saved_bytes[..., rows],
        kv_bytes=w.kv_bytes[..., rows],
        overlapped=w.overlapped[rows],
    )
