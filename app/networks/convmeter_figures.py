"""ConvMeter's metrics of a network (section 3), in which its equations 2 and 3 are linear, and two of our own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops import OP_CODE, kinds_of, work_of
from app.ops.conv import output
from app.ops.images import plane
from app.tables.workload import FORWARD, Workload


class Figures(NamedTuple):
    """Sums over a network's forward rows, of the whole batch.

    inputs   elements that all convolutions read (I)
    outputs  elements that all convolutions write (O)
    flops    floating-point operations of convolutions and matrix products, a multiply-add counting two (F)
    weights  trainable numbers (W)
    layers   layers that have any (L)
    depthwise  FLOPs of depthwise convolutions, included in `flops`: far slower than others, above all backward
    operators  operators that the host launches in forward, with or without weights
    """

    inputs: float
    outputs: float
    flops: float
    weights: float
    layers: float
    depthwise: float
    operators: float


def figures(w: Workload) -> Figures:
    """Return ConvMeter's metrics; inputs, outputs and FLOPs grow with the batch, weights and layers do not."""
    forward = w.phase == FORWARD
    runs = np.where(forward, w.runs, 0.0)
    rows = np.flatnonzero(forward & (w.ops.kind == OP_CODE["conv2d"]))
    convolutions, times = w.ops.take(rows), runs[rows] * w.ops.column("b")[rows]
    read = convolutions.column("in_channels") * plane(convolutions, "input_size").area
    written = convolutions.column("out_channels") * output(convolutions).area
    kinds = kinds_of(w.ops)
    flops = work_of(w.ops, kinds).flops
    depthwise = np.zeros(len(w))
    depthwise[rows] = (convolutions.column("groups") > 1) & (
        convolutions.column("groups") == convolutions.column("in_channels")
    )
    products = np.zeros(len(w))
    for op, own, _ in kinds:
        if op.products is not None:
            products[own] = 1.0
    return Figures(
        inputs=float(times @ read),
        outputs=float(times @ written),
        flops=float((runs * products) @ flops),
        weights=float(runs @ w.parameters),
        layers=float(runs @ (w.parameters > 0)),
        depthwise=float((runs * depthwise) @ flops),
        operators=float(runs @ (w.output_bytes > 0)),  # rows that passes add write nothing
    )
