"""Moving bytes: `copy` reads and writes a tensor of `b` rows of `h`; `memory` is anything else, by its bytes.

NeuSight predicts an operator that it does not know as bound by its memory traffic: time = bytes / bandwidth. `bytes`
of `memory` is all that is read and written. Backward of a copy is a copy; of `memory`, as many bytes.

`embedding`: `b` rows of `h` looked up in a table of `vocabulary` rows.

Bytes = 64-bit indices + rows read + rows written. Backward adds dY into a dense gradient, as PyTorch does: the table
is filled with zeros, and each looked-up row is read and written again. Nothing is computed forward.

Serving stacks fuse what lies between the products of a transformer layer:

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
from typing import Literal, NamedTuple

import numpy as np

from app.ops.base import COMMON, MOST_BYTES, Dim, Op, choice, forward_only
from app.ops.figures import Broken, Prior, Ratio, Work
from app.ops.gradient import SAME, Step, rowwise
from app.ops.suite import PLAIN, ROWS, WIDTH, Log, Made, Maker, Row, Space
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, OpTable


def copy_work(table: OpTable) -> Work:
    """Each element once in, once out; nothing is computed."""
    moved = 2.0 * table.column("b") * table.column("h") * DTYPE_BYTES[table.dtype]
    return Work(0.0 * moved, moved, moved)


def memory_work(table: OpTable) -> Work:
    """The bytes given, whatever the dtype."""
    moved = 1.0 * table.column("bytes")
    return Work(0.0 * moved, moved, moved)


def _half(table: OpTable) -> Floats:
    """What is not written."""
    return 0.5 * table.column("bytes")


def _build_copy(make: Maker, row: Row) -> Made:
    x = make.normal(row["b"], row["h"])
    y = make.torch.empty_like(x)
    return Made(lambda: y.copy_(x), ())


def _build_memory(make: Maker, row: Row) -> Made:
    """Half of the bytes read, half written."""
    x = make.torch.randint(256, (row["bytes"] // 2,), dtype=make.torch.uint8, device=make.device)
    y = make.torch.empty_like(x)
    return Made(lambda: y.copy_(x), ())


COPY = Op(
    "copy",
    "memory",
    (Dim("b", "rows"), Dim("h", "elements of a row"), *COMMON),
    copy_work,
    default_dtype="fp32",
    handed="rows",
    traffic="moves",
    backward=(SAME,),
    fusible=True,
    own_input=True,
    suite=Space({"b": ROWS, "h": WIDTH}, PLAIN, _build_copy, back=False),
    example={"b": 4096, "h": 4096},
)
MEMORY = Op(
    "memory",
    "memory",
    (Dim("bytes", "bytes read and written", most=MOST_BYTES), *COMMON),
    memory_work,
    default_dtype="fp32",
    handed=_half,
    traffic="moves",
    backward=(SAME,),
    saves=("output",),
    fusible=True,
    own_input=True,
    suite=Space({"bytes": Log(1 << 10, 1 << 33, step=2)}, ("fp32",), _build_memory, back=False),
    example={"bytes": 1_000_000_000},
)
MEMORY_OPS = (COPY, MEMORY)


_INDEX_BYTES = 8.0


def embedding_work(table: OpTable) -> Work:
    """Work of look-ups."""
    rows, back, size = table.column("b"), table.column("backward"), DTYPE_BYTES[table.dtype]
    width = table.column("h") * size
    entire = back * table.column("vocabulary") * width
    moved = rows * _INDEX_BYTES + (2.0 + back) * rows * width + entire
    distinct = rows * _INDEX_BYTES + rows * width
    distinct = distinct + np.where(back > 0, entire, np.minimum(rows, table.column("vocabulary")) * width)
    return Work(back * rows * table.column("h"), moved, distinct)


def _build_embedding(make: Maker, row: Row) -> Made:
    vocabulary = row["vocabulary"]
    table, chosen = make.normal(vocabulary, row["h"]), make.whole(vocabulary, row["b"])
    return Made(lambda: make.torch.nn.functional.embedding(chosen, table), (table,))


EMBEDDING_OPS = (
    Op(
        "embedding",
        "embedding",
        (
            Dim("b", "rows looked up (tokens)"),
            Dim("h", "elements of a row"),
            Dim("vocabulary", "rows of the table", default=32_768.0),
            *COMMON,
        ),
        embedding_work,
        prior=Prior.of("embedding"),
        traffic="moves",
        own_input=True,
        tied=True,
        suite=Space({"b": ROWS, "h": Log(32, 8192), "vocabulary": Log(512, 1 << 18)}, PLAIN, _build_embedding),
        example={"b": 4096, "h": 4096},
    ),
)


def _fused_work(operations: float, passes: float, table: OpTable) -> Work:
    """`operations` per element, and `passes` over the rows, read and written together."""
    elements = table.column("b") * table.column("h")
    moved = passes * elements * DTYPE_BYTES[table.dtype]
    return Work(operations * elements, moved, moved)


def _check(table: OpTable) -> list[Broken]:
    """Serving learns nothing."""
    return [forward_only(table)]


class _Form(NamedTuple):
    """An operator: its line of the breakdown, work and kernel, and what training saves of it and runs backward."""

    group: str
    operations: float
    passes: float
    elements: str
    saves: tuple[Literal["input"], ...] = ()
    backward: tuple[Step, ...] = ()


def _op(name: str, form: _Form) -> Op:
    return Op(
        name,
        form.group,
        (Dim("b", "rows (tokens)"), Dim("h", form.elements), *COMMON),
        partial(_fused_work, form.operations, form.passes),
        check=_check,
        prior=Prior.of(name),
        handed="rows",
        traffic="moves",
        ratios=(Ratio(("b",)), Ratio(("b", "h"))),
        interval_apart=True,  # a stack's kernels, of which its group has none
        backward=form.backward,
        saves=form.saves,
        example={"b": 64, "h": 8192},
    )


_FORMS = {
    "add_norm": _Form("norm", 6.0, 4.0, "elements of a row"),
    # Backward reads the gradient and both operands and writes those of both: five passes.
    "gated_activation": _Form(
        "elementwise", 5.0, 3.0, "elements of a row of the product", ("input",), (SAME, *rowwise("relu"))
    ),
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
        check=_check,
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
