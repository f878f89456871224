"""The measured device, as described by its driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from app.measure.data_parallel import Peers
from app.measure.sensors import Sensors
from app.measure.specification import description, processor, rates

# Formats of PyTorch's matrix products, most used first, with the compute capability that introduced them.
_SINCE = {"bf16": 8.0, "fp32": 0.0, "fp16": 5.3, "fp8": 8.9, "tf32": 8.0, "fp64": 0.0}
_CPU_DTYPES = ("fp32", "bf16", "fp16", "fp64")


@dataclass(frozen=True, slots=True)
class Device:
    """The device that points run on.

    kind          "cuda" or "cpu"
    name          name by its driver or the system
    dtypes        supported formats by the API's names, most used first
    memory_bytes  memory available to points
    sm_count      SMs; for a CPU its computing threads
    software      label of eager PyTorch, whose times include host launches
    replayed      label of CUDA graphs of PyTorch's kernels (device time only); for a CPU that of eager
    description   body for POST /gpus
    facts         further figures of its driver: version, clocks (Hz), power limit (W)
    rates         FLOP/s of a small convolution by dtype on a CPU, where unsupported formats may be a hundred times
                  slower; empty for a GPU
    in_graphs     whether operators of every format and phase run in CUDA graphs, not forward in narrow formats alone
    peers         other devices of a data-parallel group; None if it works alone
    """

    kind: str
    name: str
    dtypes: tuple[str, ...]
    memory_bytes: float
    sm_count: int
    software: str
    replayed: str
    description: Mapping[str, Any] = field(default_factory=dict, compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    rates: Mapping[str, float] = field(default_factory=dict, compare=False)
    in_graphs: bool = False
    peers: Peers | None = field(default=None, compare=False)

    @property
    def handle(self) -> torch.device:
        """The PyTorch device."""
        return torch.device(self.kind)


def torch_dtypes() -> Mapping[str, Any]:
    """Return PyTorch's dtypes by the API's names; tf32 is fp32 in memory."""
    return {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
    }


def find(threads: int | None = None) -> Device:
    """Return the CUDA device, or else the CPU with `threads` threads (None: PyTorch's default)."""
    if threads is not None:
        torch.set_num_threads(threads)
    eager = f"pytorch-{torch.__version__.partition('+')[0]}"
    if not torch.cuda.is_available():
        used = torch.get_num_threads()
        name = f"{processor()}, {used} thread{'s' * (used > 1)}"
        known = {dtype: torch_dtypes()[dtype] for dtype in _CPU_DTYPES}
        memory = psutil.virtual_memory().available
        described = description("cpu", name, used, {})
        return Device("cpu", name, _CPU_DTYPES, memory, used, eager, eager, described, {}, rates(known))
    figures = torch.cuda.get_device_properties(0)
    capability = figures.major + figures.minor / 10
    dtypes = tuple(dtype for dtype, since in _SINCE.items() if capability >= since)
    free, _ = torch.cuda.mem_get_info()
    facts = Sensors(is_cuda=True).facts()
    sms = figures.multi_processor_count
    described = description("cuda", figures.name, sms, facts)
    return Device("cuda", figures.name, dtypes, free, sms, eager, f"cudagraph-{eager}", described, facts)
