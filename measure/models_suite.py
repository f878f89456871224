"""The `models` suite: ConvMeter's networks and their blocks, and transformers, each at several batches and sizes.

They run in inference, and in training with forward, backward and update timed separately; on several devices only
training of the ConvNets runs.

Phases of a step run with random weights and inputs. No loss is computed: backward starts from a gradient of ones. In a
data-parallel group backward also exchanges gradients, in PyTorch's buckets as they fill, and forward starts with a
broadcast of batch norm's buffers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, product, zip_longest
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from app.config import SEED_DATA
from app.errors import BadInput
from app.networks.builtin import find_config
from app.networks.convmeter_figures import figures
from app.networks.convnets import is_convnet
from app.networks.convnets import lower as lower_convnet
from app.networks.importers import hf
from app.networks.run import Mode, Run
from measure.device import Device, torch_dtypes
from measure.point import Phases, Point, Prepared
from measure.torch_convnets import convnet
from measure.torch_transformers import transformer

_OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
}


def phases_of(workload: Mapping[str, Any], handle: torch.device) -> Phases:
    """Return the phases of a row of the measurements form on a device, in order."""
    training, dtype = workload["mode"] == "training", torch_dtypes()[workload["dtype"]]
    devices = workload.get("parallelism", {}).get("data", 1)
    with handle:
        network, x = _network(workload, workload["batch"] // devices)
        network = network.to(dtype).train(training)
        x = x if x.dtype == torch.long else x.to(dtype)
    if devices > 1:
        network = DistributedDataParallel(network)
    return _training(network, x, workload["optimizer"]) if training else {"": partial(_inference, network, x)}


def _network(workload: Mapping[str, Any], batch: int) -> tuple[nn.Module, torch.Tensor]:
    """Return the network and its input."""
    name, mode = workload["name"], workload["mode"]
    if is_convnet(name):
        images = convnet(name, workload["image_size"], training=mode == "training")
        channels, side = images.input
        return images, torch.randn(batch, channels, side, side)
    config = find_config(name) or {}
    words = transformer(config, eager=workload["attention"] == "eager", last_only=mode == "prefill")
    return words, torch.randint(config["vocab_size"], (batch, workload["sequence"]))


def _inference(network: nn.Module, x: torch.Tensor) -> None:
    with torch.inference_mode():
        network(x)


def _training(network: nn.Module, x: torch.Tensor, optimizer: str) -> Phases:
    """Return the phases of a training step; forward passes its outputs to backward."""
    rule = _OPTIMIZERS[optimizer](network.parameters())
    outputs: list[torch.Tensor] = []

    def forward() -> None:
        outputs.extend(network(x))

    def backward() -> None:
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
        outputs.clear()

    def update() -> None:
        rule.step()
        rule.zero_grad()

    return {"forward": forward, "backward": backward, "update": update}


SUITE = "models"
_TABLES = json.loads((SEED_DATA / "measured_models.json").read_text("utf-8"))
CONVNETS: tuple[str, ...] = tuple(_TABLES["convnets"])
BLOCKS: tuple[str, ...] = tuple(_TABLES["blocks"])
# Cost of a step in forward passes, and its FP32 bytes per weight: in training also the gradient and AdamW's moments.
_PASSES = {"inference": 1.0, "prefill": 1.0, "training": 3.0}
_BYTES_PER_WEIGHT = {"inference": 4.0, "prefill": 4.0, "training": 16.0}


class _Sizes(msgspec.Struct, frozen=True):
    """Sizes measured on a kind of device; a point has at most `most_flops`, about a second of work."""

    dtypes: tuple[str, ...]
    batches: tuple[int, ...]
    image_sizes: tuple[int, ...]
    transformers: tuple[str, ...]
    sequences: tuple[int, ...]
    most_flops: float


_SIZES = msgspec.convert(_TABLES["sizes"], dict[str, _Sizes])


def points(device: Device) -> Sequence[Point]:
    """Return all points: every network once in each mode, then again, with sizes in a fixed pseudo-random order."""
    sizes = _SIZES[device.kind]
    runs: list[tuple[str, Mode]] = [(name, mode) for name in CONVNETS for mode in ("inference", "training")]
    runs += [(name, "inference") for name in BLOCKS]
    runs += [(name, mode) for name in sizes.transformers for mode in ("inference", "training", "prefill")]
    if device.peers is not None:
        runs = [(name, "training") for name in CONVNETS]
    queues = [_queue(name, mode, sizes, device) for name, mode in runs]
    return [point for point in chain.from_iterable(zip_longest(*queues)) if point is not None]


def point(workload: Mapping[str, Any], device: Device) -> Point:
    """Return a network's workload as a point; transformers have dense layers and a given `attention`."""
    return Point(SUITE, workload, partial(_prepared, workload, device), device.software)


def _queue(name: str, mode: Mode, sizes: _Sizes, device: Device) -> list[Point]:
    """Return all points of a network in a mode that fit the device."""
    images = is_convnet(name)
    network: dict[str, Any] = {"kind": "model", "name": name, "mode": mode}
    if mode == "training":
        network["optimizer"] = "sgd" if images else "adamw"
    devices = 1 if device.peers is None else device.peers.devices
    if devices > 1:
        network["parallelism"] = {"data": devices}
    if not images:
        network["attention"] = "flash" if mode == "prefill" else "eager"
    queue = []
    for extent in sizes.image_sizes if images else sizes.sequences:
        run = Run(mode, image_size=extent) if images else Run(mode, sequence=extent)
        size = {"image_size" if images else "sequence": extent}
        most = _largest_batch(name, run, sizes, device)
        for batch, dtype in product(sizes.batches, sizes.dtypes):
            # Batch norm cannot train on a single element per channel.
            if batch <= most and not (batch == 1 and mode == "training"):
                queue.append(point(network | size | {"batch": batch * devices, "dtype": dtype}, device))
    random.Random(f"{name} {mode}").shuffle(queue)
    return queue


def _largest_batch(name: str, run: Run, sizes: _Sizes, device: Device) -> float:
    """Return the largest batch within a point's work; 0 if the network cannot run so, or does not fit."""
    try:
        rows = lower_convnet(name, run) if is_convnet(name) else hf.lower(find_config(name) or {}, run)
    except BadInput:  # an image that is too small for the network
        return 0.0
    totals = figures(rows)
    if totals.weights * _BYTES_PER_WEIGHT[run.mode] > device.memory_bytes:
        return 0.0
    return sizes.most_flops / (_PASSES[run.mode] * totals.flops)


def _prepared(workload: Mapping[str, Any], device: Device) -> Prepared:
    """Prepare the network with random weights and inputs; runs it once and records its peak memory."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = workload["dtype"] == "tf32"
    before = _restarted(device)
    build = partial(phases_of, workload, device.handle)
    phases = build() if device.peers is None else device.peers.phases(workload, build)
    for run in phases.values():
        run()
    taken = {"peak_memory_bytes": torch.cuda.max_memory_allocated() - before} if device.kind == "cuda" else {}
    return Prepared(phases, facts=taken)


def _restarted(device: Device) -> int:
    """Reset the peak memory counter, and return the bytes in use."""
    if device.kind != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
