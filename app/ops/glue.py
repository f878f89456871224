"""What serving stacks fuse between the products of a transformer layer.

`add_norm` adds a part's output to the residual stream and normalises the sum; `gated_activation` multiplies the
activation of one half of its input by the other half; `rotary_cache` rotates queries and keys by their position and
writes keys and values to the cache; `sample` chooses a token by the logits, which it reads in FP32. Bytes = what they
read and write, each once; `b` rows of `h` elements. PyTorch has none of them as one kernel, so they are not measured.

`quantize`: a kernel that writes activations of 16 bits in a narrower format, for the product that follows.

`b` rows of `h` elements are divided by a scale and rounded. `scale` static: the scale is known beforehand; dynamic: the
kernel finds the largest magnitude of each row first, which stays on the SM for the second reading. FLOPs = 2 an element
(scaled, rounded), dynamic 4 (magnitude, largest). Bytes = 16 bits in and the row's dtype out; dynamic writes a scale of
FP32 a row too. vLLM: csrc/quantization/fp8/common.cu static_scaled_fp8_quant, dynamic_per_token_scaled_fp8_quant.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from app.ops.base import COMMON, Dim, Op, choice, forward_only
from app.ops.figures import Broken, Prior, Ratio, Work
from app.tables.ops import DTYPE_BYTES, OpTable


def _work(operations: float, passes: float, table: OpTable) -> Work:
    """`operations` per element, and `passes` over the rows, read and written together."""
    elements = table.column("b") * table.column("h")
    moved = passes * elements * DTYPE_BYTES[table.dtype]
    return Work(operations * elements, moved, moved)


def check(table: OpTable) -> list[Broken]:
    """Serving learns nothing."""
    return [forward_only(table)]


class _Form(NamedTuple):
    """An operator: its line of the breakdown, work and kernel."""

    group: str
    operations: float
    passes: float
    elements: str


def _op(name: str, form: _Form) -> Op:
    return Op(
        name,
        form.group,
        (Dim("b", "rows (tokens)"), Dim("h", form.elements), *COMMON),
        partial(_work, form.operations, form.passes),
        check=check,
        prior=Prior.of(name),
        handed="rows",
        traffic="moves",
        ratios=(Ratio(("b",)), Ratio(("b", "h"))),
        interval_apart=True,  # a stack's kernels, of which its group has none
        backward=(),
        example={"b": 64, "h": 8192},
    )


_FORMS = {
    "add_norm": _Form("norm", 6.0, 4.0, "elements of a row"),
    "gated_activation": _Form("elementwise", 5.0, 3.0, "elements of a row of the product"),
    "rotary_cache": _Form("memory", 3.0, 2.0, "elements of a token's queries, keys and values"),
    "sample": _Form("memory", 4.0, 4.0, "logits of a token (vocabulary)"),
}
GLUE_OPS = tuple(_op(name, form) for name, form in _FORMS.items())


SCALES = ("static", "dynamic")
STATIC, DYNAMIC = (float(code) for code in range(len(SCALES)))
_IN_BYTES, _SCALE_BYTES = 2.0, 4.0


def quantize_work(table: OpTable) -> Work:
    """Each element in once and out once."""
    rows, dynamic = table.column("b"), table.column("scale") == DYNAMIC
    elements = rows * table.column("h")
    moved = elements * (_IN_BYTES + DTYPE_BYTES[table.dtype]) + dynamic * rows * _SCALE_BYTES
    return Work(np.where(dynamic, 4.0, 2.0) * elements, moved, moved)


QUANTIZE_OPS = (
    Op(
        "quantize",
        "quantize",
        (
            Dim("b", "rows (tokens)"),
            Dim("h", "elements of a row"),
            choice("scale", "static: known beforehand; dynamic: the kernel finds one for each row", SCALES, DYNAMIC),
            *COMMON,
        ),
        quantize_work,
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
