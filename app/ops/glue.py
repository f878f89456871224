"""What serving stacks fuse between the products of a transformer layer.

`add_norm` adds a part's output to the residual stream and normalises the sum; `gated_activation` multiplies the
activation of one half of its input by the other half; `rotary_cache` rotates queries and keys by their position and
writes keys and values to the cache; `sample` chooses a token by the logits, which it reads in FP32. Bytes = what they
read and write, each once; `b` rows of `h` elements.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from app.ops.base import COMMON, Dim, Op, handed_rows
from app.ops.figures import Broken, Ratio, Work
from app.ops.prior import Prior
from app.ops.suite import NARROW, ROWS, WIDTH, Family, Made, Maker, Row, Space
from app.tables.ops import DTYPE_BYTES, OpTable


def _work(operations: float, passes: float, table: OpTable) -> Work:
    """`operations` per element, and `passes` over the rows, read and written together."""
    elements = table.column("b") * table.column("h")
    moved = passes * elements * DTYPE_BYTES[table.dtype]
    return Work(operations * elements, moved, moved)


def _build_add_norm(make: Maker, row: Row) -> Made:
    x, residual, weight = make.normal(row["b"], row["h"]), make.normal(row["b"], row["h"]), make.normal(row["h"])

    def forward() -> Any:
        residual.add_(x)
        return make.torch.nn.functional.rms_norm(residual, (row["h"],), weight)

    return Made(forward, ())


def _build_gated(make: Maker, row: Row) -> Made:
    both = make.normal(row["b"], 2 * row["h"])
    gate, up = both.chunk(2, dim=-1)
    return Made(lambda: make.torch.nn.functional.silu(gate) * up, ())


def _build_rotary(make: Maker, row: Row) -> Made:
    x, cosine = make.normal(row["b"], row["h"]), make.normal(row["b"], row["h"])
    return Made(lambda: x.mul_(cosine), ())


def _build_sample(make: Maker, row: Row) -> Made:
    logits = make.normal(row["b"], row["h"])
    return Made(lambda: make.torch.softmax(logits.float(), -1).argmax(-1), ())


def check(table: OpTable) -> list[Broken]:
    """Serving learns nothing."""
    return [Broken("serving stacks' kernels have no backward phase", table.column("backward") > 0, "backward")]


class _Form(NamedTuple):
    """An operator: its line of the breakdown with the width of its intervals, its shortest time, work and kernel."""

    group: str
    width: float
    device_s: float
    operations: float
    passes: float
    elements: str
    build: Family


def _op(name: str, form: _Form) -> Op:
    return Op(
        name,
        form.group,
        (Dim("b", "rows (tokens)"), Dim("h", form.elements), *COMMON),
        partial(_work, form.operations, form.passes),
        check=check,
        prior=Prior(1.0, 0.70, 40e-6, form.device_s, form.width),  # a guess: no rows are behind it
        handed=handed_rows,
        traffic="moves",
        ratios=(Ratio(("b",)), Ratio(("b", "h"))),
        backward=(),
        suite=Space({"b": ROWS, "h": WIDTH}, NARROW, form.build, back=False),
        example={"b": 64, "h": 8192},
    )


_FORMS = {
    "add_norm": _Form("norm", 0.50, 3e-6, 6.0, 4.0, "elements of a row", _build_add_norm),
    "gated_activation": _Form("elementwise", 0.40, 3e-6, 5.0, 3.0, "elements of a row of the product", _build_gated),
    "rotary_cache": _Form(
        "memory", 0.50, 3e-6, 3.0, 2.0, "elements of a token's queries, keys and values", _build_rotary
    ),
    "sample": _Form("memory", 0.50, 15e-6, 4.0, 4.0, "logits of a token (vocabulary)", _build_sample),
}
GLUE_OPS = tuple(_op(name, form) for name, form in _FORMS.items())
