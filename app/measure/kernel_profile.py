"""Name of a point's device function, from CUPTI through PyTorch's profiler, in an untimed run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Keep CUPTI between profiles: its teardown crashes on CUDA graphs before CUDA 12.6.
_KEPT = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}


def launched(run: Callable[[], object]) -> dict[str, Any]:
    """Return name, grid and block of the kernel with most of `run`'s time, as columns; none without kernels."""
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
    """Return the columns of the kernel with the longest total time in a trace's events."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if not kernels:
        return {}
    total: dict[str, float] = {}
    for event in kernels:
        total[event["name"]] = total.get(event["name"], 0.0) + event["dur"]
    chosen = next(event for event in kernels if total[event["name"]] == max(total.values()))
    sizes = {name: "x".join(map(str, chosen["args"][name])) for name in ("grid", "block") if name in chosen["args"]}
    return {"kernel.name": chosen["name"][:2000]} | {f"kernel.{name}": size for name, size in sizes.items()}
