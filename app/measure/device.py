"""The device that is measured, as its own driver describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

# Formats that PyTorch's matrix products take, the most used first, with the compute capability that brought them.
_SINCE = {"bf16": 8.0, "fp32": 0.0, "fp16": 5.3, "fp8": 8.9, "tf32": 8.0, "fp64": 0.0}
_CPU_DTYPES = ("fp32", "bf16", "fp16", "fp64")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Device:
    """Where points run.

    kind          "cuda" or "cpu"
    name          what its driver, or the system, calls it
    dtypes        formats that it computes in, as the API spells them, the most used first
    memory_bytes  bytes that points may take together
    sm_count      SMs; of a CPU the threads that compute
    software      label of eager PyTorch, whose host launches count
    replayed      label of CUDA graphs of PyTorch's kernels (device time alone); of a CPU that of eager
    """

    kind: str
    name: str
    dtypes: tuple[str, ...]
    memory_bytes: float
    sm_count: int
    software: str
    replayed: str

    @property
    def handle(self) -> torch.device:
        """The same for PyTorch."""
        return torch.device(self.kind)


def torch_dtypes() -> Mapping[str, Any]:
    """PyTorch's formats by the API's names; tf32 is fp32 in memory."""
    return {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
    }


def find(threads: int | None = None) -> Device:
    """The CUDA device where there is one; else the CPU, with `threads` threads (absent: PyTorch's choice)."""
    if threads is not None:
        torch.set_num_threads(threads)
    eager = f"pytorch-{torch.__version__.partition('+')[0]}"
    if not torch.cuda.is_available():
        used = torch.get_num_threads()
        name = f"{_processor()}, {used} threads"
        return Device("cpu", name, _CPU_DTYPES, psutil.virtual_memory().available, used, eager, eager)
    figures = torch.cuda.get_device_properties(0)
    capability = figures.major + figures.minor / 10
    dtypes = tuple(dtype for dtype, since in _SINCE.items() if capability >= since)
    free, _ = torch.cuda.mem_get_info()
    return Device("cuda", figures.name, dtypes, free, figures.multi_processor_count, eager, f"cudagraph-{eager}")


def _processor() -> str:
    """The processor's name."""
    found = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE) if _CPUINFO.exists() else None
    return found[1] if found else "CPU"
