"""`hyper_connections`: residual streams around a part of a layer (Zhu et al. 2024; mHC, Xie et al. 2025; DeepSeek-V4).

`b` tokens have `streams` residual streams of `h` features each. `part` pre: from the root mean square of all streams
and a product with streams^2 + 2 streams columns come the weights by which streams are read, written and mixed, the
last made doubly stochastic by some normalisations; the part's input is the weighted sum. post: streams are mixed, and
the part's output is added to each.

FLOPs a token: pre 2 streams h (streams^2 + 2 streams + 1) + 3 streams h, post 2 streams h (streams + 1). Bytes: pre the
streams in and one out, and the product's weights in FP32; post the streams in and out, and the output in. Backward is
twice both.
"""

from __future__ import annotations

import numpy as np

from app.ops.base import COMMON, Dim, Op, choice
from app.ops.figures import Prior, Ratio, Work
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_BYTES, OpTable

PARTS = ("pre", "post")
PRE, POST = (float(code) for code in range(len(PARTS)))
_WEIGHT_BYTES = 4.0


def work(table: OpTable) -> Work:
    """Work of residual streams."""
    tokens, width, streams = (table.column(name) for name in ("b", "h", "streams"))
    pre, size = table.column("part") == PRE, DTYPE_BYTES[table.dtype]
    columns = streams * (streams + 2.0)
    each = np.where(pre, 2.0 * (columns + 1.0) + 3.0, 2.0 * (streams + 1.0))
    moved = tokens * width * size * np.where(pre, streams + 1.0, 2.0 * streams + 1.0)
    moved = moved + np.where(pre, columns * streams * width * _WEIGHT_BYTES, 0.0)
    passes = 1.0 + table.column("backward")
    return Work(passes * tokens * streams * width * each, passes * moved, passes * moved)


def part_class(table: OpTable) -> Floats:
    """PRE or POST of each row, [n]."""
    return table.column("part")


HYPER_CONNECTION_OPS = (
    Op(
        "hyper_connections",
        "norm",
        (
            Dim("b", "tokens"),
            Dim("h", "features of a stream"),
            Dim("streams", "residual streams", default=4.0),
            choice(
                "part", "pre: weights, and the input of a part; post: its output into the streams", PARTS, PRE, "class"
            ),
            *COMMON,
        ),
        work,
        # A guess: kernels that stream, after small products with few columns.
        prior=Prior.of("hyper_connections"),
        ratios=(Ratio(("b",)), Ratio(("b", "h"))),
        kernel_class=part_class,
        few_configurations=True,
        interval_apart=True,
        saves=("input",),
        example={"b": 4096, "h": 7168},
    ),
)
