"""What serving stacks fuse between the products of a transformer layer.

`add_norm` adds a part's output to the residual stream and normalises the sum; `gated_activation` multiplies the
activation of one half of its input by the other half; `rotary_cache` rotates queries and keys by their position and
writes keys and values to the cache; `sample` chooses a token by the logits, which it reads in FP32. Bytes = what they
read and write, each once; `b` rows of `h` elements. PyTorch has none of them as one kernel, so they are not measured.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from app.ops.base import COMMON, Dim, Op, handed_rows
from app.ops.figures import Broken, Ratio, Work
from app.ops.prior import Prior
from app.tables.ops import DTYPE_BYTES, OpTable


def _work(operations: float, passes: float, table: OpTable) -> Work:
    """`operations` per element, and `passes` over the rows, read and written together."""
    elements = table.column("b") * table.column("h")
    moved = passes * elements * DTYPE_BYTES[table.dtype]
    return Work(operations * elements, moved, moved)


def check(table: OpTable) -> list[Broken]:
    """Serving learns nothing."""
    return [Broken("serving stacks' kernels have no backward phase", table.column("backward") > 0, "backward")]


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
        handed=handed_rows,
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
