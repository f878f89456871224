"""How a network is run: what importers, passes, schedule and memory are told about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MODES = ("inference", "training", "prefill", "decode")
Mode = Literal["inference", "training", "prefill", "decode"]
Attention = Literal["eager", "fused", "flash"]
Optimizer = Literal["none", "sgd", "adam", "adamw"]
PipelineSchedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes by which a network is split; devices = data x tensor x pipeline (experts are spread over data x tensor).

    `microbatches` counts those of a step per data-parallel replica; `zero` is the stage of ZeRO (0: none);
    `network_bytes_per_s` is what a device can send to other nodes, one way (the default: 200 Gb/s, a NIC per device).
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    microbatches: int = 1
    nodes: int = 1
    sequence: bool = False
    zero: int = 0
    schedule: PipelineSchedule = "1f1b"
    network_bytes_per_s: float = 25e9

    @property
    def devices(self) -> int:
        """All of them."""
        return self.data * self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class Run:
    """One step of a network.

    batch       sequences or images of a step, over all data-parallel devices
    sequence    tokens per sequence: all of them in inference, training and prefill; in decode the keys seen by the
                one new token, itself included
    image_size  pixels of one side, of networks that take images
    accumulation  steps whose gradients add up before one update
    emptied     whether PyTorch's allocator holds nothing as the step begins, as in a first one (app.graphs.allocator)
    recompute   whether backward computes each block's activations again instead of keeping them
    """

    mode: Mode = "inference"
    batch: int = 1
    sequence: int = 1
    image_size: int = 224
    dtype: str = "fp32"
    attention: Attention = "eager"
    fused: bool = False
    optimizer: Optimizer = "adam"
    accumulation: int = 1
    emptied: bool = False
    recompute: bool = False
    parallelism: Parallelism = field(default_factory=Parallelism)

    @property
    def device_batch(self) -> int:
        """Sequences or images that one device works on at a time (one microbatch of its replica)."""
        return max(self.batch // (self.parallelism.data * self.parallelism.microbatches * self.accumulation), 1)


def spanned(devices: int, stride: int, run: Run) -> int:
    """Nodes that hold a group of `devices`, every `stride`-th of the run's: tensor ranks are neighbours."""
    per_node = max(run.parallelism.devices // run.parallelism.nodes, 1)
    least = min(-(-devices * stride // per_node), devices)
    return next(nodes for nodes in range(least, devices + 1) if devices % nodes == 0)
