"""Points of the operators suite: a row of the design, or of a server's plan, as something to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.errors import BadInput
from app.measure.cuda_graph import replayed
from app.measure.device import Device, torch_dtypes
from app.measure.operators.design import SPACES, rows
from app.measure.operators.random_tensors import Tensors, backward
from app.measure.point import Point, Prepared
from app.ops.suite import Family

_REPLAYED = ("bf16", "fp16", "fp8")


def points(device: Device) -> Sequence[Point]:
    """Return all points of the suite, the most useful first."""
    return [point_of(device, row) for row in rows(device)]


def is_measured(workload: Mapping[str, Any]) -> bool:
    """Return True if PyTorch supports the operator in its format."""
    return workload["dtype"] in torch_dtypes() and _family(workload["op"], workload["dtype"]) is not None


def _family(op: str, dtype: str) -> Family | None:
    """Return the builder of the operator's rows in a format; None if PyTorch does not support it."""
    if op not in SPACES:
        return None
    return SPACES[op].build_fp8 if dtype == "fp8" else SPACES[op].build


def point_of(device: Device, workload: Mapping[str, Any]) -> Point:
    """Return an operator row as a point; raises BadInput for an unsupported one.

    Forward in narrow formats runs in a CUDA graph, as in serving stacks; the rest runs as PyTorch launches it, unless
    the device runs all in graphs.
    """
    family = _family(workload["op"], workload["dtype"])
    if family is None or not is_measured(workload):
        raise BadInput(f"{workload['op']} in {workload['dtype']} is not measured here.")
    is_served = workload["dtype"] in _REPLAYED and workload.get("phase") != "backward"
    software = device.replayed if is_served or device.in_graphs else device.software
    return Point("operators", workload, partial(_prepared, device, workload, family, software), software)


def _prepared(device: Device, workload: Mapping[str, Any], family: Family, software: str) -> Prepared:
    made = family(Tensors.of(device, workload["dtype"]), workload)
    run = backward(made) if workload.get("phase") == "backward" else made.forward
    return Prepared({"": run if software == device.software else replayed(run)})
