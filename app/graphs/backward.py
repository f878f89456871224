"""What backward of each operator runs, as forward operators wherever it is such: those are what predictors learned.

As PyTorch's autograd does it. A product runs two: by data, dX = dY W, and by weight, dW = dY^T X, and sums a bias's
gradient over rows. Element-wise ones read dY and what forward kept, and write dX: `mul` in traffic. Backward of `add`,
`add_strided` and `add_scalar` runs nothing, dY passes through; a tensor that several rows read adds its gradients up
instead (`training_pass`). Softmax reads dY and Y and writes dX; layer norm does so with X, and reads both once more for
the gradients of its parameters; batch norm sums over the batch first. An all_gather's backward is a reduce_scatter and
the reverse; an all_reduce's is one (Megatron-LM, Shoeybi et al. 2019). Others run themselves with `backward` 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from app.graphs.rows import table_of, with_column
from app.ops import OPS
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable
from app.tables.workload import Bools, Floats, Ints


class Forward(NamedTuple):
    """Forward rows of one family, k of them.

    ops        OpTable of k rows
    producers  int [k], rows of its block that feed each
    fed        bool [k], whether what a row reads needs a gradient (the network's input does not)
    bias       bool [k], whether it adds a bias
    output     float64 [k] (or [c, k]), bytes that a launch writes
    """

    ops: OpTable
    producers: Ints
    fed: Bools
    bias: Bools
    output: Floats


class Step(NamedTuple):
    """One thing that backward runs: a table of k rows, and which of them do run."""

    ops: OpTable
    keep: Bools | None = None


Rule = Callable[[Forward], Iterator[Step]]


def steps(forward: Forward) -> Iterator[Step]:
    """What backward of these rows runs, in order."""
    name = OPS[int(forward.ops.kind[0])].name
    return _RULES.get(name, _itself)(forward)


def _as(forward: Forward, op: str, *, times: Floats | float = 1.0, **columns: Floats) -> OpTable:
    ops = forward.ops
    return table_of(op, ops.dtype, ops.fields, count=ops.column("count") * times, burst=ops.column("burst"), **columns)


def _itself(forward: Forward) -> Iterator[Step]:
    yield Step(with_column(forward.ops, "backward", 1.0))


def _same(forward: Forward) -> Iterator[Step]:
    yield Step(forward.ops)


def _nothing(forward: Forward) -> Iterator[Step]:
    yield from ()


def _bias(forward: Forward) -> Step:
    return Step(_as(forward, "memory", bytes=np.maximum(forward.output, 1.0)), forward.bias)


def _linear(forward: Forward) -> Iterator[Step]:
    m, n, k = (forward.ops.column(name) for name in "mnk")
    yield Step(_as(forward, "linear", m=m, n=k, k=n), forward.fed)
    yield Step(_as(forward, "linear", m=n, n=k, k=m))
    yield _bias(forward)


def _bmm(forward: Forward) -> Iterator[Step]:
    b, m, n, k = (forward.ops.column(name) for name in "bmnk")
    yield Step(_as(forward, "bmm", b=b, m=m, n=k, k=n))
    yield Step(_as(forward, "bmm", b=b, m=k, n=n, k=m))


def _twice(forward: Forward) -> Iterator[Step]:
    """By data and by weight: products of the same size and about the same form (convolutions, experts)."""
    yield Step(forward.ops, forward.fed)
    yield Step(forward.ops)
    yield _bias(forward)


def _rows(forward: Forward) -> dict[str, Floats]:
    return {"b": forward.ops.column("b"), "h": forward.ops.column("h")}


def _like(*ops: str) -> Rule:
    """Element-wise operators of the forward row's size, one after another."""

    def rule(forward: Forward) -> Iterator[Step]:
        for op in ops:
            yield Step(_as(forward, op, **_rows(forward)))

    return rule


def _mul(forward: Forward) -> Iterator[Step]:
    """A gradient for each factor that has one."""
    yield Step(_as(forward, "mul", times=np.clip(forward.producers, 1, 2), **_rows(forward)))


def _div(forward: Forward) -> Iterator[Step]:
    yield Step(_as(forward, "div", **_rows(forward)))
    yield Step(_as(forward, "mul", times=2.0, **_rows(forward)), forward.producers > 1)


def _norm(forward: Forward) -> Iterator[Step]:
    """By data, then by parameters, which reads dY and X."""
    b, h = forward.ops.column("b"), forward.ops.column("h")
    yield Step(_as(forward, "mul", b=b, h=h))
    yield Step(_as(forward, "memory", bytes=b * h * (DTYPE_BYTES + OUTPUT_BYTES)[forward.ops.dtype]))


def _batch_norm(forward: Forward) -> Iterator[Step]:
    """Sums over the batch, which read dY and X, before the rest."""
    elements = forward.ops.column("b") * forward.ops.column("h")
    yield Step(_as(forward, "memory", bytes=2.0 * elements * DTYPE_BYTES[forward.ops.dtype]))
    yield from _itself(forward)


def _collective(op: str) -> Rule:
    def rule(forward: Forward) -> Iterator[Step]:
        names = ("message_bytes", "devices", "nodes", "implementation")
        yield Step(_as(forward, op, **{name: forward.ops.column(name) for name in names}))

    return rule


_RULES: Mapping[str, Rule] = {
    "linear": _linear,
    "bmm": _bmm,
    "conv2d": _twice,
    "moe": _twice,
    "attention_decode": _twice,
    "add": _nothing,
    "add_strided": _nothing,
    "add_scalar": _nothing,
    "mul": _mul,
    "div": _div,
    "pow": _like("pow", "mul"),
    "pow_scalar": _like("pow_scalar", "mul_scalar", "mul"),
    "mul_scalar": _same,
    "div_scalar": _same,
    **dict.fromkeys(("relu", "gelu", "tanh", "silu", "softmax"), _like("mul")),
    "layer_norm": _norm,
    "rms_norm": _norm,
    "batch_norm": _batch_norm,
    "copy": _same,
    "memory": _same,
    "all_reduce": _collective("all_reduce"),
    "all_to_all": _collective("all_to_all"),
    "send_recv": _collective("send_recv"),
    "all_gather": _collective("reduce_scatter"),
    "reduce_scatter": _collective("all_gather"),
}
