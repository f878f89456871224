"""Normalisations of `b` rows of `h`: layer_norm, rms_norm, softmax, and batch_norm (`h` channels, `b` batch x area).

y = (x - mean) / sqrt(var + eps) gamma + beta (Ba et al. 2016; Ioffe and Szegedy 2015; RMS: Zhang and Sennrich 2019);
softmax is exp(x - max) / sum. FLOPs = operations per element x b h; bytes = each tensor once: x in, y out, and `h`
parameters; backward reads dY and x (softmax: y) and writes dX and the parameters' gradients.
"""

from __future__ import annotations

from collections.abc import Callable

from app.ops.base import COMMON, Dim, Op, Work
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable


def _work(flops: tuple[float, float], parameters: float) -> Callable[[OpTable], Work]:
    """Operations per element forward and backward, and vectors of `h` parameters or statistics."""

    def work(table: OpTable) -> Work:
        width, back = table.column("h"), table.column("backward")
        elements = table.column("b") * width
        size = DTYPE_BYTES[table.dtype]
        moved = elements * ((1.0 + back) * size + OUTPUT_BYTES[table.dtype])
        moved = moved + parameters * (1.0 + back) * width * size
        return Work((flops[0] + back * (flops[1] - flops[0])) * elements, moved, moved)

    return work


_DIMS = (Dim("b", "rows (batch_norm: batch x height x width)"), Dim("h", "elements of a row (batch_norm: channels)"))

NORM_OPS = tuple(
    Op(name, "norm" if parameters else "softmax", (*_DIMS, *COMMON), _work(flops, parameters))
    for name, flops, parameters in (
        ("layer_norm", (8.0, 14.0), 2.0),
        ("rms_norm", (5.0, 10.0), 1.0),
        ("batch_norm", (8.0, 14.0), 4.0),
        ("softmax", (6.0, 4.0), 0.0),
    )
)
