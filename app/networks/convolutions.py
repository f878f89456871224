"""Convolutions as PyTorch runs them: the layout of images in memory, and the bias, which a kernel of its own adds.

Channels of an image lie one after another, or those of an element (PyTorch's memory format). Kernels differ by it
(app.ops.conv, app.ops.norm). PyTorch has channels first unless images and network are converted:
`model.to(memory_format=torch.channels_last)`. torch.compile converts networks itself where its rules expect that to
pay (`decide_layout_opt` of torch._inductor): in inference by FLOPs, each kind of convolution times a factor, and in
training unless there are groups, or convolutions of large windows from many channels to few.

ATen's `_convolution` calls cuDNN without the bias and then `add_`. torch.compile fuses the addition with what follows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.coefficients import Coefficients
from app.networks.batched import same_in_all, work_of_rows
from app.networks.build import InsertedRows, inserted, table_of, with_column
from app.networks.roles import biased
from app.networks.run import Run
from app.ops import OP_CODE, OPS
from app.ops.images import CHANNELS_LAST, plane
from app.tables.ops import OUTPUT_BYTES
from app.tables.workload import FORWARD, Workload

_FITTED = Coefficients("networks")

_OF_IMAGES = np.array([CHANNELS_LAST.name in op.fields for op in OPS])
# Time of convolutions with channels last, of that with channels first, as torch._inductor has it: of several groups, of
# windows from many channels to few, of few channels, and others; and what few channels are.
_GROUPED, _NARROWING, _SMALL, _OTHER = _FITTED.each(
    "channels_last_grouped", "channels_last_narrowing", "channels_last_small", "channels_last_other"
)
_FEW = 64.0


def in_memory_format(w: Workload, run: Run) -> Workload:
    """Return the network with its images as the run keeps them."""
    if run.memory_format == "channels_first" and not (run.fused and _is_converted(w, run)):
        return w
    return replace(w, ops=with_column(w.ops, CHANNELS_LAST.name, np.where(_OF_IMAGES[w.ops.kind], 1.0, np.nan)))


def _is_converted(w: Workload, run: Run) -> bool:
    """Return whether torch.compile runs the network with channels last."""
    rows = np.flatnonzero(w.ops.kind == OP_CODE["conv2d"])
    if not len(rows):
        return False
    ops = w.ops.take(rows)
    groups, made = ops.column("groups"), ops.column("out_channels")
    channels = ops.column("in_channels") / groups
    several = same_in_all((groups > 1.0) & (channels > 1.0))
    narrowing = same_in_all((2.0 * made <= channels) & (plane(ops, "kernel_size").height > 1.0))
    small = same_in_all((made <= _FEW) & (channels <= _FEW))
    if run.mode == "training":
        return not (several.any() or narrowing.any() or small.all())
    factor = np.select([several, narrowing, small], [_GROUPED, _NARROWING, _SMALL], _OTHER)
    flops = work_of_rows(ops).flops * w.runs[..., rows]
    return bool(((flops * factor).sum(axis=-1) < flops.sum(axis=-1)).all())


def with_bias_kernels(w: Workload, run: Run) -> Workload:
    """Return the workload with an addition after each convolution forward that has a bias."""
    convolves = (w.ops.kind == OP_CODE["conv2d"]) & (w.phase == FORWARD)
    if run.fused or not convolves.any():  # most networks, which need not be searched for biases
        return w
    rows = np.flatnonzero(convolves & biased(w))
    if not len(rows):
        return w
    dtype, count = w.ops.dtype[rows], w.ops.column("count")[..., rows]
    same = {name: w.ops.column(name)[..., rows] for name in ("eager", "burst")}
    elements = w.output_bytes[..., rows] / count / OUTPUT_BYTES[dtype]
    ops = table_of("add_scalar", dtype, w.ops.fields, b=1.0, h=np.maximum(elements, 1.0), count=count, **same)
    return inserted(w, [InsertedRows(ops, rows, w.block[rows], rows.astype(np.float64) + 0.5, FORWARD)])
