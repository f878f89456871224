"""The bias of convolutions, which PyTorch adds in place by a kernel of its own after the convolution's.

ATen's `_convolution` calls cuDNN without the bias and then `add_`. torch.compile fuses the addition with what follows.
"""

from __future__ import annotations

import numpy as np

from app.networks.inserted_rows import InsertedRows, inserted, table_of
from app.networks.roles import biased
from app.networks.run import Run
from app.ops import OP_CODE
from app.tables.ops import OUTPUT_BYTES
from app.tables.workload import FORWARD, Workload


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
