"""Phases of a step of a network of the suite `models`, in PyTorch with random weights and inputs.

No loss is computed: backward starts from a gradient of ones. In a data-parallel group backward also exchanges
gradients, in PyTorch's buckets as they fill, and forward starts with a broadcast of batch norm's buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from app.graphs.builtin import find_config
from app.graphs.convnets import is_convnet
from app.measure.device import torch_dtypes
from app.measure.point import Phases
from app.measure.torch_convnets import convnet
from app.measure.torch_transformers import transformer

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
