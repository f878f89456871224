"""The target of a measurement plan: the operators of a workload, or usual shapes of given operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from app.engine.gpu_rows import GpuRows, Snapshot
from app.engine.operator_rows import read_operators
from app.errors import BadInput, FieldError, TooLarge
from app.ops import OPS
from app.services.graphs.graph_store import Graphs
from app.services.measurements.design import DESIGNED, RANGES, design
from app.services.models.networks import prepare
from app.services.models.resolve_networks import resolve_network
from app.services.operators.common import unsupported_message
from app.services.operators.operator_tables import unsupported_rows
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.wire.measurement_plan_form import MeasurementPlanRequest
from app.wire.network_form import GraphRequest, ModelRequest
from app.wire.operators.operators_form import OperatorsRequest
from app.wire.operators.row_forms import FORMS, unknown_op
from app.wire.predict_body import read_request
from app.wire.usual_names import own_dtype

_DEFAULT_DTYPES = ("fp32", "bf16")


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
        mix = Mix(table, _counted(row, ready.runs, len(table)))
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
