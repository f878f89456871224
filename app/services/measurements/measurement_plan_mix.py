"""What a plan of measurements is for: the operators of a workload, or usual shapes of some operators."""

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
from app.services.models.networks import prepared
from app.services.models.sources import asked_network
from app.services.operators.answers import lacks
from app.services.operators.tables import lacking_rows
from app.tables.arrays import Floats, Ints
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.wire.measurement_plan_form import MeasurementPlanRequest
from app.wire.network_form import GraphRequest, ModelRequest
from app.wire.operators.operators_form import OperatorsRequest
from app.wire.operators.row_forms import FORMS, unknown_op
from app.wire.predict_body import read_request

_DEFAULT_DTYPES = ("fp32", "bf16")


class Mix(NamedTuple):
    """Operators of a workload: distinct rows, each of one repetition, and how often each runs; None: equal times."""

    table: OpTable
    runs: Floats | None


def mix_of_workload(
    snapshot: Snapshot,
    rows: GpuRows,
    target: int,
    request: MeasurementPlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None,
) -> Mix:
    """The operators of a workload; BadInput, NotFound (a graph) or TooLarge say what to send instead."""
    asked = read_request(msgspec.json.encode({"workload": request.workload, "gpu": rows.id(target)}))
    if isinstance(asked, OperatorsRequest):
        found = read_operators(asked.workload.operators)
        mix = Mix(found.table, _counted(found.row, found.repeats, len(found.table)))
    elif isinstance(asked, ModelRequest | GraphRequest):
        ready = prepared(*asked_network(asked.workload, graphs))
        table, row = ready.distinct.table, ready.distinct.row
        mix = Mix(table, _counted(row, ready.runs, len(table)))
    else:
        raise _refused(("workload", "kind"), "send operators, model or graph")
    if len(mix.table) > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are taken at once; {len(mix.table):,} are more.")
    if len(missing := lacking_rows(snapshot.engine, mix.table, rows.table(), target)):
        raise _refused(("workload", "dtype"), lacks(rows.id(target), mix.table, int(missing[0])))
    return mix


def mix_of_operators(snapshot: Snapshot, rows: GpuRows, target: int, ops: Sequence[str], dtypes: Sequence[str]) -> Mix:
    """Usual shapes of these operators in these dtypes, of all where none is named, as far as the GPU runs them."""
    for op in ops:
        if op not in RANGES:
            known = f"no usual shapes are known of {op[:100]!r}: send a workload, or one of {', '.join(RANGES)}"
            raise _refused(("op",), known if op in FORMS else unknown_op(op))
    for dtype in dtypes:
        if dtype not in DTYPE_CODE:
            raise _refused(("dtype",), f"{dtype[:100]!r} is unknown: use one of {', '.join(DTYPES)}")
    asked = [
        row
        for op in ops or RANGES
        for dtype in dtypes or _DEFAULT_DTYPES
        if dtype in OPS[FORMS[op].code].dtypes
        for row in design(op, dtype, DESIGNED)
    ]
    if asked:
        table = read_operators(asked).table
        lacking = lacking_rows(snapshot.engine, table, rows.table(), target)
        if len(lacking) < len(table):
            return Mix(table.take(np.delete(np.arange(len(table)), lacking)), None)
    raise _refused(("dtype",), f"{rows.id(target)} runs none of these operators in {', '.join(dtypes)}")


def _counted(row: Ints, times: Floats, count: int) -> Floats:
    """How often each distinct row runs in all."""
    return np.bincount(row, weights=times, minlength=count).astype(np.float64)


def _refused(loc: tuple[str, ...], words: str) -> BadInput:
    return BadInput(f"{'.'.join(loc)}: {words}.", errors=[FieldError(loc, words)])
