"""`quantize`: a kernel that writes activations of 16 bits in a narrower format, for the product that follows.

`b` rows of `h` elements are divided by a scale and rounded. `scale` static: the scale is known beforehand; dynamic: the
kernel finds the largest magnitude of each row first, which stays on the SM for the second reading. FLOPs = 2 an element
(scaled, rounded), dynamic 4 (magnitude, largest). Bytes = 16 bits in and the row's dtype out; dynamic writes a scale of
FP32 a row too. vLLM: csrc/quantization/fp8/common.cu static_scaled_fp8_quant, dynamic_per_token_scaled_fp8_quant.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Broken, Ratio, Work
from app.ops.prior import Prior
from app.tables.ops import DTYPE_BYTES, OpTable

SCALES = ("static", "dynamic")
STATIC, DYNAMIC = (float(code) for code in range(len(SCALES)))
_IN_BYTES, _SCALE_BYTES = 2.0, 4.0


def work(table: OpTable) -> Work:
    """Each element in once and out once."""
    rows, dynamic = table.column("b"), table.column("scale") == DYNAMIC
    elements = rows * table.column("h")
    moved = elements * (_IN_BYTES + DTYPE_BYTES[table.dtype]) + dynamic * rows * _SCALE_BYTES
    return Work(np.where(dynamic, 4.0, 2.0) * elements, moved, moved)


def check(table: OpTable) -> list[Broken]:
    """Serving learns nothing."""
    return [Broken("serving stacks' kernels have no backward phase", table.column("backward") > 0, "backward")]


QUANTIZE_OPS = (
    Op(
        "quantize",
        "quantize",
        (
            Dim("b", "rows (tokens)"),
            Dim("h", "elements of a row"),
            Dim(
                "scale",
                "static: known beforehand; dynamic: the kernel finds one for each row",
                least=0.0,
                default=DYNAMIC,
                choices=SCALES,
                feature="code",
            ),
            *COMMON,
        ),
        work,
        check=check,
        dtypes=("fp8", "fp8_block", "int8", "nvfp4"),
        prior=Prior.of("quantize"),
        handed=lambda table: table.column("b") * table.column("h") * _IN_BYTES,
        traffic="moves",
        ratios=(Ratio(("b",)), Ratio(("b", "h"))),
        configuration=("h",),
        backward=(),
        example={"b": 4096, "h": 7168},
    ),
)
