"""The target of a measurement plan: the operators of a workload, or usual shapes of given operators.

Where no workload says which shapes to measure, they are powers of two that fill the usual ranges evenly: points of the
additive recurrence with the generalised golden ratio, in the logarithms of the dimensions (Roberts 2018, "The
unreasonable effectiveness of quasirandom sequences").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app.engine.gpu_rows import GpuRows
from app.engine.operator_rows import read_operators
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, TooLarge
from app.ops import OPS
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.services.operators.common import unsupported_message
from app.services.operators.operator_tables import unsupported_rows
from app.steps.networks import prepare
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.wire.graph_form import GraphRequest
from app.wire.measurement_form import MeasurementPlanRequest
from app.wire.names import own_dtype
from app.wire.network_form import ModelRequest
from app.wire.operator_forms import FORMS, ROW_FORMS, OperatorsRequest, unknown_op
from app.wire.predict_body import read_request

# Rows of an operator and dtype that stand for its usual shapes.
DESIGNED = 48
RANGES: Mapping[str, Mapping[str, tuple[int, int] | int]] = {op.name: op.usual for op in OPS if op.usual}
_DEFAULT_DTYPES = ("fp32", "bf16")


@cache
def design(op: str, dtype: str, count: int) -> tuple[Any, ...]:
    """`count` rows of an operator of RANGES in the API's form."""
    free = {name: given for name, given in RANGES[op].items() if not isinstance(given, int)}
    fixed = {name: given for name, given in RANGES[op].items() if isinstance(given, int)}
    low, high = (np.log2([ends[k] for ends in free.values()]) for k in (0, 1))
    points = (0.5 + np.outer(np.arange(1, count + 1), _steps(len(free)))) % 1.0
    sizes = 2 ** np.round(low + points * (high - low)).astype(int)
    return tuple(
        msgspec.convert({"op": op, "dtype": dtype, **fixed, **dict(zip(free, row, strict=True))}, ROW_FORMS[op])
        for row in sizes.tolist()
    )


def _steps(dimensions: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Steps of the recurrence: powers of 1 / g, where g^(dimensions + 1) = g + 1."""
    ratio = 2.0
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    return ratio ** -np.arange(1.0, dimensions + 1)


class Mix(NamedTuple):
    """Distinct operator rows of a workload, one repetition each, and how often each runs; None: equal time shares."""

    table: OpTable
    runs: Floats | None


def workload_mix(
    snapshot: Snapshot,
    rows: GpuRows,
    target: int,
    request: MeasurementPlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None,
) -> Mix:
    """Return the operators of a workload. Raises BadInput, NotFound (a graph) or TooLarge with what to send instead."""
    predict_request = read_request(msgspec.json.encode({"workload": request.workload, "gpu": rows.id(target)}))
    if isinstance(predict_request, OperatorsRequest):
        distinct = read_operators(predict_request.workload.operators)
        mix = Mix(distinct.table, _counted(distinct.row, distinct.repeats, len(distinct.table)))
    elif isinstance(predict_request, ModelRequest | GraphRequest):
        ready = prepare(*resolve_network(predict_request.workload, graphs))
        table, row = ready.distinct.table, ready.distinct.row
        mix = Mix(table, _counted(row, ready.workload.runs, len(table)))
    else:
        raise _refused(("workload", "kind"), "send operators, model or graph")
    if len(mix.table) > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are accepted at once; got {len(mix.table):,}.")
    if len(missing := unsupported_rows(snapshot.engine, mix.table, rows.table(), target)):
        raise _refused(("workload", "dtype"), unsupported_message(rows.id(target), mix.table, int(missing[0])))
    return mix


def operator_mix(snapshot: Snapshot, rows: GpuRows, target: int, ops: Sequence[str], dtypes: Sequence[str]) -> Mix:
    """Return usual shapes of these operators and dtypes, or of all usual ones, as far as the GPU supports them."""
    for op in ops:
        if op not in RANGES:
            message = f"no usual shapes are known for {op[:100]!r}: send a workload, or one of {', '.join(RANGES)}"
            raise _refused(("op",), message if op in FORMS else unknown_op(op))
    dtypes = [own_dtype(dtype) for dtype in dtypes]
    for dtype in dtypes:
        if dtype not in DTYPE_CODE:
            raise _refused(("dtype",), f"{dtype[:100]!r} is unknown: use one of {', '.join(DTYPES)}")
    operators = [
        row
        for op in ops or RANGES
        for dtype in dtypes or _DEFAULT_DTYPES
        if dtype in OPS[FORMS[op].code].dtypes
        for row in design(op, dtype, DESIGNED)
    ]
    if operators:
        table = read_operators(operators).table
        unsupported = unsupported_rows(snapshot.engine, table, rows.table(), target)
        if len(unsupported) < len(table):
            return Mix(table.take(np.delete(np.arange(len(table)), unsupported)), None)
    raise _refused(("dtype",), f"{rows.id(target)} supports none of these operators in {', '.join(dtypes)}")


def _counted(row: Ints, times: Floats, count: int) -> Floats:
    """Return how often each distinct row runs in total."""
    return np.bincount(row, weights=times, minlength=count).astype(np.float64)


def _refused(loc: tuple[str, ...], message: str) -> BadInput:
    return BadInput(f"{'.'.join(loc)}: {message}.", errors=[FieldError(loc, message)])
