"""Points of the operators suite: a row of the design, or of a server's plan, as something to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.errors import BadInput
from app.measure.cuda_graph import replayed
from app.measure.device import Device, torch_dtypes
from app.measure.operators import attention, products
from app.measure.operators.design import rows
from app.measure.operators.made import Family, Maker, backward
from app.measure.operators.moe import moe
from app.measure.operators.rowwise import ROWWISE
from app.measure.point import Point, Prepared

FAMILIES: Mapping[str, Family] = {
    "linear": products.linear,
    "bmm": products.bmm,
    "conv2d": products.conv2d,
    "recurrent": products.recurrent,
    "attention_prefill": attention.prefill,
    "attention_decode": attention.decode,
    "attention_mla": attention.latent,
    "moe": moe,
    **ROWWISE,
}
_REPLAYED = ("bf16", "fp16", "fp8")


def points(device: Device) -> Sequence[Point]:
    """Every point of the suite, in the order of usefulness."""
    return [point_of(device, row) for row in rows(device)]


def is_measured(workload: Mapping[str, Any]) -> bool:
    """Whether PyTorch has the operator in its format: FP8 is a plain product's alone."""
    op, dtype = workload["op"], workload["dtype"]
    return op in FAMILIES and dtype in torch_dtypes() and (dtype != "fp8" or op == "linear")


def point_of(device: Device, workload: Mapping[str, Any]) -> Point:
    """An operator row as a point; BadInput for one that is not measured here.

    Narrow formats run forward as serving stacks run them, in a CUDA graph; the rest as PyTorch launches it.
    """
    if not is_measured(workload):
        raise BadInput(f"{workload['op']} in {workload['dtype']} is not measured here.")
    is_replayed = workload["dtype"] in _REPLAYED and workload.get("phase") != "backward"
    software = device.replayed if is_replayed else device.software
    return Point("operators", workload, partial(_prepared, device, workload, software), software)


def _prepared(device: Device, workload: Mapping[str, Any], software: str) -> Prepared:
    make = Maker.of(device, workload["dtype"])
    made = (products.scaled_linear if workload["dtype"] == "fp8" else FAMILIES[workload["op"]])(make, workload)
    run = backward(made) if workload.get("phase") == "backward" else made.forward
    return Prepared({"": run if software == device.software else replayed(run)})
