"""The device function behind a point, as CUPTI saw it through PyTorch's profiler, in a run that is not timed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# CUPTI stays from one profile to the next: taken down, it crashes on graphs of CUDA before 12.6.
_KEPT = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}


def launched(run: Callable[[], object]) -> dict[str, Any]:
    """Name, grid and block of the kernel that `run` spends most time in, as columns; none where it launches none."""
    os.environ.update(_KEPT)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        # Only the trace tells grid and block.
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return longest(events)


def longest(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of the kernel among a trace's events whose launches together took longest."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if not kernels:
        return {}
    total: dict[str, float] = {}
    for event in kernels:
        total[event["name"]] = total.get(event["name"], 0.0) + event["dur"]
    chosen = next(event for event in kernels if total[event["name"]] == max(total.values()))
    sizes = {name: "x".join(map(str, chosen["args"][name])) for name in ("grid", "block") if name in chosen["args"]}
    return {"kernel.name": chosen["name"][:2000]} | {f"kernel.{name}": size for name, size in sizes.items()}
