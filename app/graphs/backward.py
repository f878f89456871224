"""What backward of each operator runs, as forward operators wherever it is such: those are what predictors learned.

As PyTorch's autograd does it. A product runs two: by data, dX = dY W, and by weight, dW = dY^T X, and sums a bias's
gradient over rows. Element-wise ones read dY and what forward kept, and write dX: `mul` in traffic. Backward of `add`,
`add_strided` and `add_scalar` runs nothing, dY passes through; a tensor that several rows read adds its gradients up
instead (`training_pass`). Softmax reads dY and Y and writes dX; layer norm does so with X, and reads both once more for
the gradients of its parameters; batch norm sums over the batch first. An all_gather's backward is a reduce_scatter and
the reverse; an all_reduce's is one (Megatron-LM, Shoeybi et al. 2019). Others run themselves with `backward` 1.

Rules say where each column of a step comes from, so that all steps of all rows are one gather.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from app.graphs.build import DEFAULTS
from app.graphs.many import placed
from app.ops import OP_CODE, OPS
from app.tables.ops import DTYPE_BYTES, OUTPUT_BYTES, OpTable
from app.tables.workload import Bools, Floats, Ints

# What a row must be for a step to run.
ALWAYS, FED, BIASED, OF_TWO = range(4)
# Figures of rows beside their own columns, in this order behind them: bytes that a launch writes, that a norm reads for
# its parameters and a batch norm for the batch, launches for each factor that has a gradient, and twice the launches.
_WRITTEN, _BOTH_READ, _BATCH_READ, _OF_FACTORS, _TWICE = _DERIVED = (
    *("written", "both_read", "batch_read", "of_factors", "twice"),
)
# Columns of a step that are numbers, whatever the row; the last is of columns that an operator lacks.
_DEFAULTS = {value for row in DEFAULTS.values() for value in row.values() if value is not None}
_NUMBERS = (*sorted(value for value in _DEFAULTS if np.isfinite(value)), np.nan)


class Step(NamedTuple):
    """One thing that backward runs: an operator (none: the row itself), its columns by the row's, and `needs`.

    Columns left out are at their defaults; of the row itself, as they are.
    """

    op: str | None
    columns: Mapping[str, str | float]
    needs: int = ALWAYS


def _of(op: str, *same: str, needs: int = ALWAYS, **columns: str) -> Step:
    return Step(op, {"count": "count", "burst": "burst"} | {name: name for name in same} | columns, needs)


def _like(*ops: str) -> tuple[Step, ...]:
    """Element-wise operators of the forward row's size, one after another."""
    return tuple(_of(op, "b", "h") for op in ops)


def _collective(op: str) -> tuple[Step]:
    return (_of(op, "message_bytes", "devices", "nodes", "spread", "implementation"),)


_ITSELF, _SAME = Step(None, {"backward": 1.0}), Step(None, {})
_BIAS = _of("memory", bytes=_WRITTEN, needs=BIASED)
# By data and by weight: products of the same size and about the same form (convolutions, experts).
_PAIR = (_SAME._replace(needs=FED), _SAME, _BIAS)
# By data, then by parameters, which reads dY and X.
_NORM = (_of("mul", "b", "h"), _of("memory", bytes=_BOTH_READ))
_RULES: Mapping[str, tuple[Step, ...]] = {
    "linear": (_of("linear", "m", n="k", k="n", needs=FED), _of("linear", m="n", n="k", k="m"), _BIAS),
    "bmm": (_of("bmm", "b", "m", n="k", k="n"), _of("bmm", "b", "n", m="k", k="m")),
    "conv2d": _PAIR,
    "moe": _PAIR,
    "attention_decode": _PAIR,
    "add": (),
    "add_strided": (),
    "add_scalar": (),
    "mul": (_of("mul", "b", "h", count=_OF_FACTORS),),
    "div": (_of("div", "b", "h"), _of("mul", "b", "h", count=_TWICE, needs=OF_TWO)),
    "pow": _like("pow", "mul"),
    "pow_scalar": _like("pow_scalar", "mul_scalar", "mul"),
    "mul_scalar": (_SAME,),
    "div_scalar": (_SAME,),
    **dict.fromkeys(("relu", "gelu", "tanh", "silu", "softmax", "dropout"), _like("mul")),
    "layer_norm": _NORM,
    "rms_norm": _NORM,
    "batch_norm": (_of("memory", bytes=_BATCH_READ), _ITSELF),
    "copy": (_SAME,),
    "memory": (_SAME,),
    "all_reduce": _collective("all_reduce"),
    "all_to_all": _collective("all_to_all"),
    "send_recv": _collective("send_recv"),
    "all_gather": _collective("reduce_scatter"),
    "reduce_scatter": _collective("all_gather"),
}
_STEPS = [(kind, step) for kind, op in enumerate(OPS) for step in _RULES.get(op.name, (_ITSELF,))]
_COUNT = np.bincount([kind for kind, _ in _STEPS], minlength=len(OPS))
_FIRST = np.cumsum(_COUNT) - _COUNT
_KIND = np.array([kind if step.op is None else OP_CODE[step.op] for kind, step in _STEPS])
_NEEDS = np.array([step.needs for _, step in _STEPS])


class Forward(NamedTuple):
    """Forward rows, n of them.

    ops        OpTable of n rows
    producers  int [n], rows of its block that feed each
    learning   bool [n], whether its output has a gradient
    fed        bool [n], whether what a row reads needs a gradient (the network's input does not)
    bias       bool [n], whether it adds a bias
    output     float64 [n] (or [c, n]), bytes that a launch writes
    """

    ops: OpTable
    producers: Ints
    learning: Bools
    fed: Bools
    bias: Bools
    output: Floats


class Backward(NamedTuple):
    """What backward runs: m rows, the forward row that each stems from, and the how-many-eth of its steps it is."""

    ops: OpTable
    source: Ints
    number: Ints


def backward(forward: Forward) -> Backward:
    """Every step of every row that has a gradient, forward row by forward row."""
    ops = forward.ops
    count = np.where(forward.learning, _COUNT[ops.kind], 0)
    source = np.repeat(np.arange(len(ops)), count)
    number = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    step = _FIRST[ops.kind[source]] + number
    met = np.array([np.ones(len(ops), dtype=np.bool_), forward.fed, forward.bias, forward.producers > 1])
    runs = met[_NEEDS[step], source]
    source, number, step = source[runs], number[runs], step[runs]
    figures, places = _figures(forward), _places(tuple(ops.fields.items()))[step].T
    kind, dtype, label = _KIND[step], ops.dtype[source], ops.label[source]
    if figures.place is None:
        rows = OpTable(kind, dtype, label, ops.fields, figures.dims[places, source])
    else:
        rows = OpTable(kind, dtype, label, ops.fields, figures.dims, figures.place[places, source])
    return Backward(rows, source, number)


def _figures(forward: Forward) -> OpTable:
    """The rows with their columns, _DERIVED and _NUMBERS, one behind another."""
    ops = forward.ops
    elements, count = ops.column("b") * ops.column("h"), ops.column("count")
    derived = (
        np.maximum(forward.output, 1.0),
        elements * (DTYPE_BYTES + OUTPUT_BYTES)[ops.dtype],
        2.0 * elements * DTYPE_BYTES[ops.dtype],
        count * np.clip(forward.producers, 1, 2),
        count * 2.0,
    )
    n, numbers = len(ops), np.array(_NUMBERS)[:, None]
    if ops.place is None and forward.output.ndim == 1:
        return replace(ops, dims=np.concatenate([ops.dims, derived, np.repeat(numbers, n, axis=1)]))
    c = len(forward.output) if ops.place is None else ops.dims.shape[1]
    ops = placed(ops, c)
    assert ops.place is not None
    added = [np.broadcast_to(column, (c, n)).T for column in derived]
    at = len(ops.dims) + np.arange(len(derived) * n).reshape(-1, n)
    constant = np.broadcast_to(len(ops.dims) + at.size + np.arange(len(numbers))[:, None], (len(numbers), n))
    dims = np.concatenate([ops.dims, *added, np.repeat(numbers, c, axis=1)])
    return replace(ops, dims=dims, place=np.concatenate([ops.place, at, constant]))


@lru_cache(maxsize=256)
def _places(fields: tuple[tuple[str, int], ...]) -> Ints:
    """Of every step and column the row of `_figures` that it is, int [steps, columns]."""
    row_of = dict(fields)
    columns = 1 + max(row_of.values())
    figure_of: dict[str | float | None, int] = {name: columns + k for k, name in enumerate(_DERIVED)}
    figure_of |= {number: columns + len(_DERIVED) + k for k, number in enumerate(_NUMBERS)}
    absent = columns + len(_DERIVED) + len(_NUMBERS) - 1
    places = np.empty((len(_STEPS), columns), dtype=np.intp)
    for row, (_, step) in zip(places, _STEPS, strict=True):
        row[:] = np.arange(columns) if step.op is None else absent
        for name, default in (DEFAULTS[step.op] if step.op else {}).items():
            row[row_of[name]] = figure_of.get(default, absent)
        for name, given in step.columns.items():
            row[row_of[name]] = figure_of[given] if given in figure_of else row_of[str(given)]
    return places
