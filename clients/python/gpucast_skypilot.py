"""SkyPilot's time estimator from gpucast: `task.set_time_estimator(TimeEstimator(workload, steps=...))`.

Needs httpx, gpucast_client.py beside it, and a running service; of SkyPilot only the resources that it is called with.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from math import ceil
from typing import Any

from gpucast_client import Gpucast, GpucastProblem

# Seconds of a job on resources that cannot run it, so that the optimizer never chooses them: 30 years.
NEVER_S = 10**9
# gpucast's GPUs by SkyPilot's names of accelerators, in lower case without marks. A bare name is the smaller memory.
ACCELERATORS = {
    "a10": "a10",
    "a100": "a100-sxm4-40gb",
    "a10080gb": "a100-sxm4-80gb",
    "a10080gbsxm": "a100-sxm4-80gb",
    "a100sxm": "a100-sxm4-40gb",
    "a10g": "a10g",
    "a30": "a30",
    "a40": "a40",
    "a6000": "rtx-a6000",
    "rtxa6000": "rtx-a6000",
    "b200": "b200",
    "b300": "b300",
    "gb200": "gb200",
    "gh200": "gh200-96gb",
    "h100": "h100-sxm5-80gb",
    "h10080gb": "h100-sxm5-80gb",
    "h100mega80gb": "h100-sxm5-80gb",
    "h100sxm": "h100-sxm5-80gb",
    "h100pcie": "h100-pcie-80gb",
    "h100nvl": "h100-nvl-94gb",
    "h200": "h200-sxm-141gb",
    "h200sxm": "h200-sxm-141gb",
    "l4": "nvidia-l4",
    "l40": "l40",
    "l40s": "l40s",
    "mi250": "amd-instinct-mi250",
    "mi300x": "amd-instinct-mi300x",
    "mi325x": "amd-instinct-mi325x",
    "p4": "tesla-p4",
    "p40": "tesla-p40",
    "p100": "tesla-p100-pcie-16gb",
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "rtx5090": "rtx-5090",
    "rtx6000ada": "rtx-6000-ada",
    "t4": "tesla-t4",
    "v100": "tesla-v100-sxm2-16gb",
    "v10032gb": "tesla-v100-sxm2-32gb",
}
_SPLIT = ("model", "graph")


class TimeEstimator:
    """Seconds of a job on `sky.Resources`: `steps` runs of a workload, in the form of POST /predict.

    A training step without a `parallelism` is split over all devices as copies of the network (data parallelism), so
    its `batch` must be divisible by their number; runs of other workloads are independent, and the devices share them.
    `nodes` is the task's num_nodes, `names` gives gpucast's GPU of further accelerators, and `upper` takes the upper
    end of the interval instead of the expected time. Resources without a known GPU, and those that cannot run the
    workload or lack the memory, take NEVER_S, with a warning that says why.
    """

    def __init__(
        self,
        workload: Mapping[str, Any],
        *,
        steps: float = 1.0,
        nodes: int = 1,
        names: Mapping[str, str] | None = None,
        upper: bool = False,
        url: str = "http://127.0.0.1:8000",
        key: str | None = None,
    ) -> None:
        if workload.get("kind") == "serving":
            raise ValueError("a served model has no end: send one of its steps, kind model")
        self._workload = dict(workload)
        self._steps, self._nodes, self._upper = steps, nodes, upper
        self._names = ACCELERATORS | {_plain(name): gpu for name, gpu in (names or {}).items()}
        self._service = Gpucast(url, key=key)
        self._known: dict[str, int] = {}

    def __call__(self, resources: Any) -> int:
        """Return the seconds on resources, which have `accelerators` {name: count per node}, rounded up."""
        (name, count), *_ = (resources.accelerators or {"": 0}).items()
        asked = json.dumps([name, count])
        if asked not in self._known:
            self._known[asked] = self._seconds(name, count)
        return self._known[asked]

    def _seconds(self, name: str, count: float) -> int:
        gpu = self._names.get(_plain(name))
        if gpu is None or count < 1 or count != int(count):
            return _never(f"{count:g} x {name or 'no accelerator'}: no whole GPU that gpucast knows; say it in names")
        devices = self._nodes * int(count)
        workload, shared = self._workload, devices
        if workload.get("kind") in _SPLIT and (workload.get("mode") == "training" or "parallelism" in workload):
            split = workload.get("parallelism") or {"data": devices, "nodes": self._nodes}
            workload, shared = {**workload, "parallelism": split}, 1
        try:
            found: Any = self._service.predict({"gpu": gpu, "workload": workload})  # type: ignore[arg-type,misc]
        except GpucastProblem as problem:
            return _never(f"{devices} x {name}: {problem}")
        (row,) = found["predictions"]
        if not row.get("memory", {}).get("fits", True):
            return _never(f"{devices} x {name}: the workload does not fit in the memory of {gpu}")
        step_ms: float = row["interval_ms"]["high"] if self._upper else row["latency_ms"]
        return max(ceil(ceil(self._steps / shared) * step_ms / 1e3), 1)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _never(reason: str) -> int:
    warnings.warn(f"gpucast: {reason}", stacklevel=4)
    return NEVER_S
