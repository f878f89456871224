"""Plan what to measure next on a GPU: the rows that shrink a workload's intervals most, and by how much.

Where no workload says which shapes to measure, they are powers of two that fill the usual ranges evenly: points of the
additive recurrence with the generalised golden ratio, in the logarithms of the dimensions (Roberts 2018, "The
unreasonable effectiveness of quasirandom sequences").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from app.bands.band import Band, mean_error
from app.bands.coverage import COVERAGE
from app.engine.measurement_tables import stored_operators
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, TooLarge
from app.ops import MIXED_FIELDS, OPS, kinds_of, work_of
from app.predictors import DEFAULT
from app.predictors.active_selection import Prospect, chosen
from app.predictors.auto.operators.models.gaussian_process import expected_noise
from app.predictors.base import calibrated
from app.services.graphs.graph_store import Graphs
from app.services.measurements.stored import operator_form
from app.services.models.predict_networks import predict_network
from app.services.models.resolve_networks import resolve_network
from app.services.operators.operator_tables import unsupported_rows
from app.services.operators.predict_operators import read_operators, unsupported_message
from app.steps.networks import prepare
from app.store.session import Database
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable, concatenate
from app.tables.predictions import MEASURED, Predictions
from app.training.row_hashes import hashed
from app.wire.decoding import decode
from app.wire.graph_form import GraphRequest
from app.wire.measurement_form import (
    MEASUREMENT_PLAN_EXAMPLE,
    Gain,
    MeasurementPlan,
    MeasurementPlanRequest,
    PlannedMeasurement,
    WorkloadInterval,
)
from app.wire.names import own_dtype
from app.wire.network_form import ModelRequest
from app.wire.operator_forms import FORMS, ROW_FORMS, OperatorsRequest, unknown_op
from app.wire.predict_body import Request, read_request
from app.wire.prediction_form import AnsweredBy

# Rows considered per operator and dtype: of the workload by their time, and measured ones.
_MOST_ASKED, _MOST_KNOWN = 128, 128
# Slower rows are not worth their time; rows that need a larger fraction of the GPU's memory are not run.
_LONGEST_S, _MEMORY = 0.1, 0.5
_LEAST_SPREAD = 1e-6
_TINY = np.finfo(np.float64).tiny
_DECODER = msgspec.json.Decoder(MeasurementPlanRequest)


@dataclass(frozen=True, slots=True)
class _OperatorGroup:
    """Rows of one operator and dtype: requested rows first, then designed and measured ones.

    prospect   expected information of measuring them
    table      the rows, with the seconds that each should take
    rows       int [w], places of the requested rows in the mix
    share      float64 [w], their share of the time
    error      float64 [w], their expected error now, and its `spread`
    """

    prospect: Prospect
    table: OpTable
    latency_s: Floats
    rows: Ints
    share: Floats
    error: Floats
    spread: Floats

    @property
    def remaining(self) -> Floats:
        """Fraction of each requested row's error that remains, float64 [w]."""
        return self.prospect.spread / self.spread


def read_plan_request(body: bytes) -> MeasurementPlanRequest:
    """Return the request from JSON. Raises Malformed, or BadInput that names every wrong field."""
    return decode(_DECODER, body, example=MEASUREMENT_PLAN_EXAMPLE)


def plan_measurements(
    snapshot: Snapshot,
    database: Database,
    name: str,
    request: MeasurementPlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None,
) -> MeasurementPlan:
    """Return the plan for a workload. Raises NotFound, BadInput or TooLarge with what to send instead."""
    rows = GpuRows(snapshot)
    target = rows.row(name, ("name",))
    whole = read_request(msgspec.json.encode({"workload": request.workload, "gpu": rows.id(target)}))
    mix = workload_mix(snapshot, rows, target, whole, max_rows=max_rows, graphs=graphs)
    plan = _plan(snapshot, database, rows, target, mix, int(request.count))
    if not isinstance(whole, ModelRequest | GraphRequest):
        return plan
    detailed = structs.replace(whole, detail=True)
    (answer,) = predict_network(snapshot, detailed, max_rows=max_rows, graphs=graphs, advise=False).predictions
    return structs.replace(plan, narrowed_by=answer.narrowed_by)


def plan_operators(
    snapshot: Snapshot, database: Database, name: str, ops: Sequence[str], dtypes: Sequence[str], count: int
) -> MeasurementPlan:
    """Return the plan for usual shapes of these operators and dtypes; of all usual ones if none is given."""
    rows = GpuRows(snapshot)
    target = rows.row(name, ("name",))
    return _plan(snapshot, database, rows, target, operator_mix(snapshot, rows, target, ops, dtypes), count)


def _plan(snapshot: Snapshot, database: Database, rows: GpuRows, target: int, mix: Mix, count: int) -> MeasurementPlan:
    engine, gpus = snapshot.engine, rows.table()
    answer = _predict(snapshot, gpus, target, mix.table)
    seconds = np.ones(len(mix.table)) if mix.runs is None else mix.runs * answer.latency_s
    share = seconds / max(float(seconds.sum()), _TINY)
    runs = share / np.maximum(answer.latency_s, _TINY) if mix.runs is None else mix.runs
    groups = _groups(snapshot, database, rows, target, mix.table, answer, share)
    before = _error(groups)
    measurements = []
    for which, row in chosen([group.prospect for group in groups], count):
        group, after = groups[which], _error(groups)
        workload = operator_form(group.table, row)
        measurements.append(PlannedMeasurement(workload, Gain(before, after), 1e3 * float(group.latency_s[row])))
        before = after
    remaining = np.ones(len(mix.table))
    for group in groups:
        remaining[group.rows] = group.remaining
    now, then = (_interval(answer, runs, ratio) for ratio in (np.ones(len(remaining)), remaining))
    gpu = rows.id(target)
    return MeasurementPlan(
        gpu,
        0 if rows.is_uncatalogued(target) else engine.operators.counts.get(gpu, 0),
        AnsweredBy(DEFAULT, engine.version_of(DEFAULT, gpu)),
        1e3 * float(runs @ answer.latency_s),
        now,
        then,
        measurements,
        [] if measurements else [_no_plan_reason(gpu, mix.table, answer)],
    )


def _no_plan_reason(gpu: str, table: OpTable, answer: Predictions) -> str:
    """Return why there is nothing to measure."""
    if not _is_usual(table).any():
        return "a few measured backward passes, or products on a cool card, do not correct other operators"
    if (answer.support == MEASURED).all():
        return f"every operator of the request was already measured on {gpu}"
    return f"{gpu} has a model of its own for these operators, or nothing that can be measured"


def _is_usual(table: OpTable) -> Bools:
    """Return which rows the models are trained on: forward, on a busy card, bool [n]."""
    usual: Bools = (table.dims[MIXED_FIELDS["backward"]] == 0.0) & (table.dims[MIXED_FIELDS["burst"]] == 0.0)
    return usual


def _predict(snapshot: Snapshot, gpus: GpuTable, target: int, table: OpTable) -> Predictions:
    i, j = np.arange(len(table)), np.full(len(table), target)
    return snapshot.engine.predict_with_hits(table, gpus, i, j, predictor=DEFAULT, coverage=COVERAGE)


def _groups(
    snapshot: Snapshot,
    database: Database,
    rows: GpuRows,
    target: int,
    table: OpTable,
    answer: Predictions,
    share: Floats,
) -> list[_OperatorGroup]:
    """Return the operators and dtypes of the workload whose errors measurements can shrink.

    Rows outside the training (backward passes, cool cards) and rows that were already measured are not included.
    """
    open_rows = np.flatnonzero(_is_usual(table) & (answer.support != MEASURED) & (answer.low_s > 0.0))
    groups = []
    for kind, dtype in sorted(set(zip(table.kind[open_rows].tolist(), table.dtype[open_rows].tolist(), strict=True))):
        mine = open_rows[(table.kind[open_rows] == kind) & (table.dtype[open_rows] == dtype)]
        mine = mine[np.argsort(-share[mine], kind="stable")[:_MOST_ASKED]]
        error = mean_error(Band.of(answer.latency_s[mine], answer.low_s[mine], answer.high_s[mine]))
        group = _group_of(snapshot, database, rows, target, table.take(mine), mine, share[mine], error)
        if group is not None:
            groups.append(group)
    return groups


def _group_of(  # noqa: PLR0913, PLR0917  (the service's state, and columns of the requested rows)
    snapshot: Snapshot,
    database: Database,
    rows: GpuRows,
    target: int,
    requested: OpTable,
    mine: Ints,
    share: Floats,
    error: Floats,
) -> _OperatorGroup | None:
    """Return one group of rows; None if the GPU has a model of its own."""
    gpus, op, dtype = rows.table(), OPS[requested.kind[0]].name, DTYPES[requested.dtype[0]]
    designed = read_operators(design(op, dtype, DESIGNED)).table if op in RANGES else requested.take(mine[:0])
    known = _stored_tables(database, gpus, rows, target, op, dtype)
    table = concatenate([requested, designed, *known])
    measured = np.arange(len(requested) + len(designed), len(table))
    served = snapshot.engine.serving(DEFAULT, rows.id(target)).predictor
    assert calibrated(served)
    nothing = np.ones(len(table))
    covariance = served.expected_errors(Measurements(table, np.full(len(table), target), nothing), gpus)
    if covariance is None:
        return None
    latency_s = _predict(snapshot, gpus, target, table).latency_s
    room = _MEMORY * np.nan_to_num(gpus.column("memory_bytes")[target], nan=np.inf)
    can = (latency_s <= _LONGEST_S) & (work_of(table, kinds_of(table)).working_set_bytes <= room)
    # Designed rows equal to a requested or measured row, but for the launching stack, are duplicates.
    same = hashed(table, [name for name in table.fields if name not in ("eager", "stack")])
    order = np.concatenate([measured, np.arange(len(requested) + len(designed))])
    _, first = np.unique(same[order], return_index=True)
    can[np.setdiff1d(order, order[first])] = False
    free = np.flatnonzero(can[: len(requested) + len(designed)])
    prospect = Prospect(covariance, expected_noise(int(table.kind[0])), np.arange(len(requested)), share, free)
    for row in measured.tolist():
        prospect.measure(row)
    spread = np.maximum(prospect.spread, _LEAST_SPREAD)
    prospect.share = share * (error / spread) ** 2  # scales variances to the errors of the intervals
    return _OperatorGroup(prospect, table, latency_s, mine, share, error, spread)


def _stored_tables(
    database: Database, gpus: GpuTable, rows: GpuRows, target: int, op: str, dtype: str
) -> list[OpTable]:
    """Return the stored rows of the GPU, with the columns of all operators."""
    if rows.is_uncatalogued(target):
        return []
    with database.begin(long=True) as connection:
        stored = stored_operators(connection, gpus, gpu_ids=[rows.id(target)], ops=[op])
    tables = [run.rows.ops.take(np.arange(min(len(run), _MOST_KNOWN))) for run in stored if run.dtype == dtype]
    return [_with_all_columns(table) for table in tables]


def _with_all_columns(table: OpTable) -> OpTable:
    dims = np.full((len(MIXED_FIELDS), len(table)), np.nan)
    for name in table.fields:
        dims[MIXED_FIELDS[name]] = table.column(name)
    return OpTable(table.kind, table.dtype, table.label, MIXED_FIELDS, dims)


def _error(groups: Sequence[_OperatorGroup]) -> float:
    """Return the expected error of all groups, percent, weighted by time."""
    whole = sum(float(group.share.sum()) for group in groups)
    return (
        100.0 * sum(float(group.share @ (group.error * group.remaining)) for group in groups) / whole if whole else 0.0
    )


def _interval(answer: Predictions, runs: Floats, ratio: Floats) -> WorkloadInterval:
    """Return the interval of rows whose own are scaled by `ratio` in log space; errors are fully correlated."""
    band = Band.of(answer.latency_s, answer.low_s, answer.high_s).times(ratio)
    low, high = (float(runs @ end) for end in band.ends(answer.latency_s, COVERAGE))
    return WorkloadInterval(1e3 * low, 1e3 * high, COVERAGE)


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
    predict_request: Request,
    *,
    max_rows: int,
    graphs: Graphs | None,
) -> Mix:
    """Return the operators of a workload. Raises BadInput, NotFound (a graph) or TooLarge with what to send instead."""
    if isinstance(predict_request, OperatorsRequest):
        distinct = read_operators(predict_request.workload.operators)
        mix = Mix(distinct.table, _counted(distinct.row, distinct.repeats, len(distinct.table)))
    elif isinstance(predict_request, ModelRequest | GraphRequest):
        ready = prepare(*resolve_network(predict_request.workload, graphs))
        table, row = ready.distinct.table, ready.distinct.row
        mix = Mix(table, _counted(row, ready.workload.runs, len(table)))
    else:
        raise BadInput.at(("workload", "kind"), "send operators, model or graph", end=".")
    if len(mix.table) > max_rows:
        raise TooLarge(f"At most {max_rows:,} rows are accepted at once; got {len(mix.table):,}.")
    if len(missing := unsupported_rows(snapshot.engine, mix.table, rows.table(), target)):
        raise BadInput.at(
            ("workload", "dtype"), unsupported_message(rows.id(target), mix.table, int(missing[0])), end="."
        )
    return mix


def operator_mix(snapshot: Snapshot, rows: GpuRows, target: int, ops: Sequence[str], dtypes: Sequence[str]) -> Mix:
    """Return usual shapes of these operators and dtypes, or of all usual ones, as far as the GPU supports them."""
    for op in ops:
        if op not in RANGES:
            message = f"no usual shapes are known for {op[:100]!r}: send a workload, or one of {', '.join(RANGES)}"
            raise BadInput.at(("op",), message if op in FORMS else unknown_op(op), end=".")
    dtypes = [own_dtype(dtype) for dtype in dtypes]
    for dtype in dtypes:
        if dtype not in DTYPE_CODE:
            raise BadInput.at(("dtype",), f"{dtype[:100]!r} is unknown: use one of {', '.join(DTYPES)}", end=".")
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
    raise BadInput.at(("dtype",), f"{rows.id(target)} supports none of these operators in {', '.join(dtypes)}", end=".")


def _counted(row: Ints, times: Floats, count: int) -> Floats:
    """Return how often each distinct row runs in total."""
    return np.bincount(row, weights=times, minlength=count).astype(np.float64)
