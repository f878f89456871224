"""Layout of images in memory, PyTorch's memory format: channels of an image one after another, or of an element.

Kernels differ by it (app.ops.conv, app.ops.norm). PyTorch has channels first unless images and network are converted:
`model.to(memory_format=torch.channels_last)`. torch.compile converts networks itself where its rules expect that to
pay (`decide_layout_opt` of torch._inductor): in inference by FLOPs, each kind of convolution times a factor, and in
training unless there are groups, or convolutions of large windows from many channels to few.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.coefficients import Coefficients
from app.networks.batched import same_in_all, work_of_rows
from app.networks.inserted_rows import with_column
from app.networks.run import Run
from app.ops import OP_CODE, OPS
from app.ops.images import CHANNELS_LAST, plane
from app.tables.workload import Workload

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
