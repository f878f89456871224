"""Times of kernel launches from their source measurements: `auto`'s arithmetic, compiled, row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.bands.band import DEVIATIONS
from app.bands.groups import NO_EVIDENCE, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU
from app.coefficients import Coefficients
from app.ops.kernel import COPY, FIELD_INDEX, UNCOUNTED
from app.predictors.auto.kernels.bottlenecks import (
    LONGEST_FLOOR_S,
    Devices,
    Launches,
    carried,
    log_prior,
    normalise,
    tiled_s,
    time_s,
    traffic_probability,
    unit_times,
    work_s,
)
from app.predictors.auto.kernels.transfer import LITTLE_SHARED_BYTES, Rows, Variances, alike, predict
from app.predictors.launches import LAUNCH_FIELDS, RELATION
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.predictions import COMPUTE, LAUNCH, MEMORY

_FITTED = Coefficients("launches")

# Measured work of at least this multiple of the launch floor fully corrects a kernel's fitted costs.
TRUSTED_WORK = _FITTED.number("trusted_work")
# Weight of the fitted costs of a trained kernel; the rest goes to sources of the same kernel, if any.
FITTED_WEIGHT = _FITTED.number("fitted_weight")
# Extrapolation distance, in log size, above which an answer has the interval of another GPU and another size: more than
# 8 times, or less than an eighth of, every measured size.
EXTRAPOLATED_LOG_SIZE = np.log(8.0)
# Least time predicted from fitted costs, which may be 0, seconds.
_LEAST_S = 1e-12
_ROUNDING = 1e-9
# Weight of a source whose launch has nothing in common with the query's, in the prior of the hypotheses.
_LEAST_CLOSENESS = 1e-3
# Log-space standard deviations of what nobody measured: copies, and launches whose operands nobody counted.
COPY_SPREAD, UNCOUNTED_SPREAD = _FITTED.each("copy_spread", "uncounted_spread")
_FLOPS, _MECHANISM, _LANES, _LAUNCH = (
    FIELD_INDEX[name] for name in ("flops", "mechanism", "lane_operations", "launch")
)
_THREADS, _REGISTERS, _SHARED = (FIELD_INDEX[name] for name in LAUNCH_FIELDS)


class LaunchQueries(NamedTuple):
    """Queries and their source measurements.

    queries   the n launches to predict
    sources   the m measured launches
    source_s  float64 [m], measured seconds
    query     int [m], the query of each source, ascending
    """

    queries: Launches
    sources: Launches
    source_s: Floats
    query: Ints


class Parameters(NamedTuple):
    """Fitted parameters of `auto` for kernels.

    floor_share, traffic_share  app.predictors.auto.kernels.bottlenecks.Shares
    default_floor_s  launch floor of a GPU without a measured one, seconds
    prior_cost       float64 [5], costs of an unmeasured kernel
    label            int [k], trained kernels, sorted
    log_likelihood   float64 [5, k], of the bottleneck hypotheses per kernel
    cost             float64 [5, k], fitted costs per kernel
    variances        random effects on a kernel's log cost
    """

    floor_share: float
    traffic_share: float
    default_floor_s: float
    prior_cost: Floats
    label: Ints
    log_likelihood: Floats
    cost: Floats
    variances: Variances


class Times(NamedTuple):
    """Predictions to fill, [n] each: seconds, code into BOUNDS, code into GROUPS, hardware limit in seconds.

    half_width  of the interval at COVERAGE in log space; NaN: that of the group
    """

    latency_s: Floats
    bound: Ints
    group: Ints
    limit_s: Floats
    half_width: Floats

    @classmethod
    def empty(cls, n: int) -> Times:
        """Return arrays for n predictions."""
        return cls(np.empty(n), np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp), np.empty(n), np.empty(n))


class _Scratch(NamedTuple):
    """Buffers of one query.

    answer  float64 [5], log work under each hypothesis
    weight  float64 [5], log weights, then weights of the hypotheses
    source  float64 [5], unit times of one source
    misfit  float64 [5], of its sources under each hypothesis
    """

    answer: Floats
    weight: Floats
    source: Floats
    misfit: Floats


class _Sources(NamedTuple):
    """The m sources of one query, carried to it.

    rows   the query, then its sources
    work   float64 [5, m], log work of the query by each source under each hypothesis
    prior  float64 [5, m], log prior of the hypotheses by each source
    """

    rows: Rows
    work: Floats
    prior: Floats


class _Query(NamedTuple):
    """One query.

    at       its position
    first    position of its first source
    stop     position after its last source
    unit     float64 [5], unit times
    limit_s  hardware limit, seconds
    column   column in Parameters; -1: untrained kernel, or a GPU unlike those trained on
    tiled_s  work of operands that nobody counted, seconds
    """

    at: int
    first: int
    stop: int
    unit: Floats
    limit_s: float
    column: int
    tiled_s: float


class _Aggregates(NamedTuple):
    """Per-query aggregates over its sources.

    floor_s   launch floor, seconds
    group     closest relation, code into GROUPS
    nearest   least log-size distance among sources of the query's kernel
    residual  sum of their log residuals from the kernel's fitted costs
    own       their number
    """

    floor_s: float
    group: int
    nearest: float
    residual: float
    own: int


@compiled
def _column(known: Parameters, label: int) -> int:
    column = int(np.searchsorted(known.label, label))
    return column if column < len(known.label) and known.label[column] == label else -1


@compiled_per_row
def _relation(rows: Rows, k: int) -> int:
    """Return the relation of row `k` to the query, code into GROUPS."""
    code, launch = rows.code, rows.figure[0, 0] == rows.figure[k, 0]
    shared = 4 * int(code[0, 0] == code[k, 0]) + 2 * int(launch) + int(code[0, 1] == code[k, 1])
    return int(RELATION[shared])


@compiled_per_row
def _weigh(query: _Query, known: Parameters, answer: Floats, weight: Floats) -> float:
    """Normalise the log weights in place, with the kernel's log likelihood, and return the weighted mean log work."""
    if query.column >= 0:
        for h in range(5):
            weight[h] += known.log_likelihood[h, query.column]
    normalise(weight, weight)
    return _product(weight, answer)


@compiled_per_row
def _product(a: Floats, b: Floats) -> float:
    """Return the scalar product of two arrays [5]."""
    total = 0.0
    for h in range(5):
        total += a[h] * b[h]
    return total


@compiled_per_row
def _prior_log_work(query: _Query, mechanism: int, known: Parameters, answer: Floats, weight: Floats) -> float:
    """Return the log work of a launch without sources: prior costs, weighted by its described mechanism."""
    least = max(query.unit[0] * known.prior_cost[0], query.limit_s)
    for h in range(5):
        cost_s = query.tiled_s if 0 < h < 4 and mechanism == UNCOUNTED else query.unit[h] * known.prior_cost[h]
        answer[h] = np.log(max(cost_s, least))
    log_prior(mechanism, 1.0 if mechanism == COPY else 0.0, weight)
    return _weigh(query, known, answer, weight)


@compiled_per_row
def _floor_of_source(floor_s: float, latency_s: float, expected_s: float, known: Parameters) -> float:
    """Return the launch floor of a source: its GPU's, or else the excess of a short time over its expected work."""
    if not np.isnan(floor_s):
        return floor_s
    if latency_s > LONGEST_FLOOR_S:
        return known.default_floor_s
    return float(max(latency_s - expected_s, known.default_floor_s))


@compiled_per_row
def _log_residual(source: Floats, work: float, floor_s: float, column: int, known: Parameters) -> float:
    """Return the log of a source's work over its kernel's fitted costs, shrunk where the launch floor dominates."""
    expected = max(_product(known.cost[:, column], source), _LEAST_S)
    return float(min(work / (TRUSTED_WORK * floor_s), 1.0) * np.log(work / expected))


@compiled_per_row
def _bound(answer: Floats, weight: Floats, traffic_s: float, floor_s: float, latency_s: float) -> int:
    """Return the bound: launch if the floor is over half the time, else memory or compute by the hypotheses' weight."""
    if floor_s > 0.5 * latency_s:
        return LAUNCH
    moving = weight[0]
    for h in range(1, 5):
        if answer[h] <= np.log(traffic_s) + _ROUNDING:
            moving += weight[h]
    return MEMORY if moving >= 0.5 else COMPUTE


@compiled
def fill_times(question: LaunchQueries, devices: Devices, known: Parameters, times: Times) -> None:
    """Fill `times` for every query."""
    queries, unit, first = question.queries, np.empty(5), 0
    scratch = _Scratch(np.empty(5), np.empty(5), np.empty(5), np.zeros(5))
    for q in range(len(times.latency_s)):
        stop = first
        while stop < len(question.query) and question.query[stop] == q:
            stop += 1
        limit = unit_times(queries, q, devices, unit)
        learned = devices.alike[queries.gpu[q]] and len(known.label) > 0
        column = _column(known, queries.label[queries.row[q]]) if learned else -1
        tiled = tiled_s(queries, q, unit)
        query, m = _Query(q, first, stop, unit, limit, column, tiled), stop - first
        described = Rows(np.empty((1 + m, 4), np.int64), np.empty((1 + m, 5)))
        sources = _Sources(described, np.empty((5, m)), np.empty((5, m)))
        totals = _aggregate(question, devices, known, query, scratch, sources)
        log_work, group, spread = _log_work(queries, known, query, totals, sources, scratch)
        times.latency_s[q] = time_s(max(np.exp(log_work), limit), totals.floor_s, known.floor_share)
        computes = queries.dims[_FLOPS, queries.row[q]] > 0.0
        bound = _bound(scratch.answer, scratch.weight, unit[0], totals.floor_s, times.latency_s[q])
        times.bound[q] = bound if computes else MEMORY
        extrapolated = group < RELATED and m > 0 and totals.nearest > EXTRAPOLATED_LOG_SIZE
        times.group[q] = max(group, OTHER_GPU_AND_SIZE) if extrapolated else group
        times.limit_s[q], times.half_width[q] = limit, np.nan if learned else spread * DEVIATIONS
        first = stop


@compiled_per_row
def _describe(launches: Launches, at: int, devices: Devices, rows: Rows, k: int) -> None:
    """Fill row `k` from a launch."""
    dims, row, gpu, code, figure = launches.dims, launches.row[at], launches.gpu[at], rows.code, rows.figure
    code[k, 0], code[k, 1] = launches.label[row], gpu
    code[k, 2], code[k, 3] = devices.architecture[gpu], devices.vendor[gpu]
    figure[k, 0], figure[k, 1], figure[k, 2] = (
        dims[_LAUNCH, row],
        np.log(dims[_LANES, row]),
        np.log(dims[_THREADS, row]),
    )
    figure[k, 3] = np.log(max(dims[_REGISTERS, row], 1.0))
    figure[k, 4] = np.log(LITTLE_SHARED_BYTES + dims[_SHARED, row])


@compiled_per_row
def _aggregate(
    question: LaunchQueries, devices: Devices, known: Parameters, query: _Query, scratch: _Scratch, into: _Sources
) -> _Aggregates:
    """Fill `into` with a query's sources, and return the aggregates."""
    queries, sources, floor_s, q = question.queries, question.sources, devices.floor_s, query.at
    (answer, weight, source, _), rows = scratch, into.rows
    floor = floor_s[queries.gpu[q]]
    floor = known.default_floor_s if np.isnan(floor) else floor
    group, nearest_size, residual, own = NO_EVIDENCE, np.inf, 0.0, 0
    _describe(queries, q, devices, rows, 0)
    for k in range(query.first, query.stop):
        place = k - query.first
        limit = unit_times(sources, k, devices, source)
        mechanism = int(sources.dims[_MECHANISM, sources.row[k]])
        measured = _Query(q, k, k, source, limit, -1, tiled_s(sources, k, source))
        expected = np.exp(_prior_log_work(measured, mechanism, known, answer, weight))
        source_floor = _floor_of_source(floor_s[sources.gpu[k]], question.source_s[k], expected, known)
        if sources.gpu[k] == queries.gpu[q]:
            floor = max(floor, source_floor)
        work = work_s(question.source_s[k], source_floor, limit, known.floor_share)
        if devices.architecture[sources.gpu[k]] == devices.architecture[queries.gpu[q]]:
            for h in range(1, 5):
                source[h] *= devices.quoted_hz[sources.gpu[k]] / devices.quoted_hz[queries.gpu[q]]
        carried(work, source, query.unit, query.limit_s, answer)
        log_prior(mechanism, traffic_probability(source[0], work, known.traffic_share), weight)
        _describe(sources, k, devices, rows, 1 + place)
        relation = _relation(rows, 1 + place)
        for h in range(5):
            into.work[h, place], into.prior[h, place] = answer[h], weight[h]
        if query.column >= 0 and relation < RELATED:
            residual += _log_residual(source, work, source_floor, query.column, known)
            own += 1
        if relation < RELATED:
            nearest_size = min(nearest_size, abs(rows.figure[0, 1] - rows.figure[1 + place, 1]))
        group = min(group, relation)
    return _Aggregates(floor, group, nearest_size, residual, own)


@compiled
def _log_work(
    queries: Launches, known: Parameters, query: _Query, totals: _Aggregates, sources: _Sources, scratch: _Scratch
) -> tuple[float, int, float]:
    """Return the log of a query's work in seconds, its code into GROUPS, and the standard deviation of the log.

    Fills `scratch.answer` and `scratch.weight` with each hypothesis' log work and weight.
    """
    answer, weight, group, spread = scratch.answer, scratch.weight, totals.group, np.nan
    mechanism = int(queries.dims[_MECHANISM, queries.row[query.at]])
    log_work = _prior_log_work(query, mechanism, known, answer, weight)
    if group == NO_EVIDENCE and mechanism in (COPY, UNCOUNTED):
        spread = COPY_SPREAD if mechanism == COPY else UNCOUNTED_SPREAD
    if group < NO_EVIDENCE:
        log_work, spread = _transferred(known, query, sources, group, scratch)
    # Rows measured on the target GPU itself are better evidence than costs averaged over GPUs.
    if query.column >= 0 and group > SAME_GPU:
        fitted = np.log(max(_product(known.cost[:, query.column], query.unit), query.limit_s))
        fitted += totals.residual / max(totals.own, 1)
        share = 1.0 if group >= RELATED else FITTED_WEIGHT
        log_work = (1.0 - share) * log_work + share * fitted
        group = min(group, OTHER_GPU_AND_SIZE)
    return log_work, group, np.nan if group == RELATED else spread


@compiled
def _transferred(
    known: Parameters, query: _Query, sources: _Sources, group: int, scratch: _Scratch
) -> tuple[float, float]:
    """Return the log work of a query with sources, and its standard deviation.

    `scratch.answer` and `scratch.weight` have each hypothesis' prior log work and prior weight, and get the posterior.
    """
    v, (answer, weight, _, misfit) = known.variances, scratch
    m = query.stop - query.first
    deviation, prior, total, mean = np.empty((5, m)), np.zeros(5), 0.0, np.empty(5)
    for k in range(m):
        size, shape = alike(sources.rows, 0, 1 + k, v)
        closeness = size * shape + _LEAST_CLOSENESS
        total += closeness
        for h in range(5):
            deviation[h, k] = sources.work[h, k] - answer[h]
            prior[h] += closeness * sources.prior[h, k]
    variance = predict(sources.rows, deviation, v, mean, misfit)
    for h in range(5):
        answer[h] += mean[h]
        weight[h] = (np.log(weight[h]) if group == RELATED else prior[h] / total) - 0.5 * misfit[h]
    log_work = _weigh(query, known, answer, weight)
    # The level of the kernel takes one degree of freedom.
    scale = (v.freedom + _product(weight, misfit)) / (v.freedom + m - 1.0)
    return log_work, np.sqrt(scale * variance)
