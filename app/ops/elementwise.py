"""Element-wise operators on `b` rows of `h`.

FLOPs = operations per element x b h; bytes = (tensors read + tensors written) x b h elements. PM2Lat ("Utility Layer
Latency Prediction") and NeuSight take these layers as bound by memory. Operations per element count each arithmetic
instruction as one and each special function (exp, tanh, log, division) as two; they are far under any roof.

Backward, as PyTorch's autograd stores it: a unary one reads dY and what forward kept, and writes dX; a binary one
writes two gradients; with a scalar, dX = s dY.

`add_strided` adds a tensor laid out otherwise than the result (T5's bias, heads last, to scores, heads first): a row's
neighbours lie `stride` elements apart, so each element comes in a sector of its own through the L2, and in a burst of
its own from DRAM, unless the L2 still has the burst when the next row needs its part of it.

`dropout` draws a random number per element (PyTorch: Philox 4x32-10, Salmon et al. 2011), which may keep the SMs longer
than its bytes keep the DRAM: x in, y and a byte of the mask out, and dY and that byte in and dX out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Prior, Ratio, Rereads, Work
from app.ops.gradient import OF_FACTORS, OF_TWO, SAME, TWICE, Step, rowwise, step
from app.ops.suite import PLAIN, ROWS, WIDTH, Axis, Family, Log, Made, Maker, Pick, Row, Sizes, Space, unary
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable

_FITTED = Coefficients("operators")


class Cost(NamedTuple):
    """Per element: operations, tensors read, tensors written."""

    flops: float
    read: float
    written: float


def _work(forward: Cost, backward: Cost) -> Callable[[OpTable], Work]:
    def work(table: OpTable) -> Work:
        elements, back = table.column("b") * table.column("h"), table.column("backward")
        flops, read, written = (f + back * (b - f) for f, b in zip(forward, backward, strict=True))
        moved = elements * (read * DTYPE_BYTES[table.dtype] + written * OUTPUT_BYTES[table.dtype])
        return Work(flops * elements, moved, moved)

    return work


# Bytes that the L2 hands over at least (a sector), and that it fetches from DRAM (NVIDIA since Volta; two sectors).
_SECTOR_BYTES, _BURST_BYTES = 32.0, 64.0


def _strided(table: OpTable, most: float) -> Floats:
    """Bytes fetched for an element of the strided tensor in pieces of `most`, [n]."""
    fetched: Floats = np.minimum(table.column("stride") * DTYPE_BYTES[table.dtype], most)
    return fetched


def _strided_work(table: OpTable) -> Work:
    """The same forward and backward, which reads dY and writes both gradients."""
    elements, size = table.column("b") * table.column("h"), DTYPE_BYTES[table.dtype]
    even = elements * (size + OUTPUT_BYTES[table.dtype])
    moved = even + elements * _strided(table, _SECTOR_BYTES)
    return Work((1.0 + table.column("backward")) * elements, moved, even + elements * size)


def _strided_rereads(table: OpTable) -> Rereads:
    """A burst for every element; it holds parts of as many rows, which a whole row passes between."""
    size, row = DTYPE_BYTES[table.dtype], table.column("h")
    burst = _strided(table, _BURST_BYTES)
    passed = row * (burst + size + OUTPUT_BYTES[table.dtype])
    nothing = np.zeros(table.kind.size)
    return Rereads(table.column("b") * row * (burst - size), nothing, passed, nothing, nothing, nothing)


# Clocks of an SM per random number: ten rounds of Philox make four numbers in some 120 integer instructions, 64 lanes
# at once, and each is compared and scaled.
_RANDOM_CLOCKS = _FITTED.number("random_number_clocks")
MASK_BYTES = 1.0


def _dropout_work(table: OpTable) -> Work:
    elements = table.column("b") * table.column("h")
    moved = elements * ((DTYPE_BYTES + OUTPUT_BYTES)[table.dtype] + MASK_BYTES)
    return Work(2.0 * elements, moved, moved)


def _dropout_rereads(table: OpTable) -> Rereads:
    """Nothing is read again; backward has the mask and draws nothing."""
    drawn = table.column("b") * table.column("h") * (1.0 - table.column("backward"))
    return Rereads.of_clocks(_RANDOM_CLOCKS * drawn)


_ROWS = (Dim("b", "rows"), Dim("h", "elements of a row"))
_STRIDE = Dim("stride", "elements between a row's neighbours in the tensor that is added")


def _binary(compute: Callable[[Any, Any, Any], Any]) -> Family:
    def build(make: Maker, row: Row) -> Made:
        x, y = make.positive(row["b"], row["h"]), make.positive(row["b"], row["h"])
        return Made(lambda: compute(make.torch, x, y), (x, y))

    return build


def _build_strided(make: Maker, row: Row) -> Made:
    """Groups of `stride` rows, whose added tensor has these rows innermost."""
    groups, stride, width = row["b"] // row["stride"], row["stride"], row["h"]
    x, y = make.normal(groups, stride, width), make.normal(groups, width, stride)
    return Made(lambda: make.torch.add(x, y.transpose(1, 2)), (x, y))


def _interleaved(sizes: Sizes) -> Sizes:
    """Groups of as many rows as lie interleaved."""
    return {"b": sizes.pop("groups") * sizes["stride"], **sizes}


class _Form(NamedTuple):
    """An operator on tensors that all lie alike."""

    forward: Cost
    backward: Cost
    build: Family
    steps: tuple[Step, ...]
    saves: tuple[Literal["input", "output"], ...] = ()


# Backward of sums runs nothing: dY passes through.
_DIV = (step("div", "b", "h"), step("mul", "b", "h", count=TWICE, needs=OF_TWO))
_FORMS = {
    "add": _Form(Cost(1, 2, 1), Cost(2, 1, 2), _binary(lambda torch, x, y: torch.add(x, y)), ()),
    "mul": _Form(
        *(Cost(1, 2, 1), Cost(2, 3, 2), _binary(lambda torch, x, y: torch.mul(x, y))),
        *((step("mul", "b", "h", count=OF_FACTORS),), ("input",)),
    ),
    "div": _Form(Cost(2, 2, 1), Cost(6, 3, 2), _binary(lambda torch, x, y: torch.div(x, y)), _DIV, ("input",)),
    "pow": _Form(
        *(Cost(4, 2, 1), Cost(12, 4, 2), _binary(lambda torch, x, y: torch.pow(x, y))),
        *(rowwise("pow", "mul"), ("input",)),
    ),
    "relu": _Form(Cost(1, 1, 1), Cost(1, 2, 1), unary(lambda torch, x: torch.relu(x)), rowwise("mul"), ("output",)),
    "gelu": _Form(
        *(Cost(8, 1, 1), Cost(14, 2, 1), unary(lambda torch, x: torch.nn.functional.gelu(x))),
        *(rowwise("mul"), ("input",)),
    ),
    "tanh": _Form(Cost(2, 1, 1), Cost(3, 2, 1), unary(lambda torch, x: torch.tanh(x)), rowwise("mul"), ("output",)),
    "silu": _Form(
        *(Cost(4, 1, 1), Cost(8, 2, 1), unary(lambda torch, x: torch.nn.functional.silu(x))),
        *(rowwise("mul"), ("input",)),
    ),
    "add_scalar": _Form(Cost(1, 1, 1), Cost(1, 1, 1), unary(lambda torch, x: x + 1.5), ()),
    "mul_scalar": _Form(Cost(1, 1, 1), Cost(1, 1, 1), unary(lambda torch, x: x * 1.5), (SAME,)),
    "div_scalar": _Form(Cost(2, 1, 1), Cost(2, 1, 1), unary(lambda torch, x: x / 1.5), (SAME,)),
    "pow_scalar": _Form(
        *(Cost(4, 1, 1), Cost(6, 2, 1), unary(lambda torch, x: x**3.0)),
        *(rowwise("pow_scalar", "mul_scalar", "mul"), ("input",)),
    ),
}
_AXES: Mapping[str, Axis] = {"b": ROWS, "h": WIDTH}
_USUAL = {"b": (64, 65536), "h": (128, 16384)}


def _op(name: str, form: _Form) -> Op:
    return Op(
        name,
        "elementwise",
        (*_ROWS, *COMMON),
        _work(form.forward, form.backward),
        prior=Prior.of("elementwise"),
        handed="rows",
        traffic="streams",
        ratios=(Ratio(("b", "h")),),
        backward=form.steps,
        saves=form.saves,
        fusible=True,
        interval_apart=name == "pow_scalar",  # on other GPUs its time varies more than the others'
        # Much alike: each is measured in every third round; backward only where it runs something.
        suite=Space(_AXES, PLAIN, form.build, back=bool(form.steps), every=3),
        usual=_USUAL if name in ("add", "gelu") else {},
        example={"b": 4096, "h": 4096},
    )


FLAT_OPS = tuple(_op(name, form) for name, form in _FORMS.items())
ADD_STRIDED = replace(
    FLAT_OPS[0],
    name="add_strided",
    dims=(*_ROWS, _STRIDE, *COMMON),
    work=_strided_work,
    rereads=_strided_rereads,
    suite=Space(
        {"groups": Log(1, 32), "h": Log(64, 1 << 20), "stride": Pick((8, 16, 32))},
        PLAIN,
        _build_strided,
        _interleaved,
        back=False,
    ),
    usual={},
    example={"b": 4096, "h": 4096, "stride": 16},
)
DROPOUT = replace(
    FLAT_OPS[0],
    name="dropout",
    work=_dropout_work,
    rereads=_dropout_rereads,
    backward=rowwise("mul"),
    suite=Space(_AXES, PLAIN, unary(lambda torch, x: torch.nn.functional.dropout(x)), every=3),
    usual={},
)
ELEMENTWISE_OPS = (*FLAT_OPS, ADD_STRIDED, DROPOUT)
