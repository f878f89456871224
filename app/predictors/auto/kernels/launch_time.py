"""Times of kernel launches from their source measurements: `auto`'s arithmetic, compiled, row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.bands.groups import NO_EVIDENCE, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU
from app.coefficients import Coefficients
from app.ops.kernel import FIELD_INDEX
from app.predictors.auto.kernels.bottlenecks import (
    LONGEST_FLOOR_S,
    SPREAD,
    SPREAD_PER_LOG_SIZE,
    Devices,
    Launches,
    carried,
    log_prior,
    normalise,
    time_s,
    traffic_probability,
    unit_times,
    work_s,
)
from app.predictors.launches import RELATION
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats, Ints
from app.tables.predictions import COMPUTE, LAUNCH, MEMORY

_FITTED = Coefficients("launches")

# Measured work of at least this multiple of the launch floor fully corrects a kernel's fitted costs.
TRUSTED_WORK = _FITTED.number("trusted_work")
# Weight of sources that are all of other kernels; the rest goes to the prior costs.
RELATED_WEIGHT = _FITTED.number("related_weight")
# Weight of the fitted costs of a trained kernel; the rest goes to sources of the same kernel, if any.
FITTED_WEIGHT = _FITTED.number("fitted_weight")
# Extrapolation distance, in log size, above which an answer has the interval of another GPU and another size: more than
# 8 times, or less than an eighth of, every measured size.
EXTRAPOLATED_LOG_SIZE = np.log(8.0)
# Least time predicted from fitted costs, which may be 0, seconds.
_LEAST_S = 1e-12
_ROUNDING = 1e-9
_MECHANISM, _LANES, _LAUNCH = FIELD_INDEX["mechanism"], FIELD_INDEX["lane_operations"], FIELD_INDEX["launch"]
# Rows of _Scratch.sums; all but the first are weighted by precision.
_PRECISION, _ANSWER, _SQUARE, _PRIOR = range(4)


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
    """

    floor_share: float
    traffic_share: float
    default_floor_s: float
    prior_cost: Floats
    label: Ints
    log_likelihood: Floats
    cost: Floats


class Times(NamedTuple):
    """Predictions to fill, [n] each: seconds, code into BOUNDS, code into GROUPS, hardware limit in seconds."""

    latency_s: Floats
    bound: Ints
    group: Ints
    limit_s: Floats

    @classmethod
    def empty(cls, n: int) -> Times:
        """Return arrays for n predictions."""
        return cls(np.empty(n), np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp), np.empty(n))


class _Scratch(NamedTuple):
    """Buffers of one query.

    answer  float64 [5], log work under each hypothesis
    weight  float64 [5], log weights, then weights of the hypotheses
    source  float64 [5], unit times of one source
    sums    float64 [4, 5], running sums over the query's sources per hypothesis
    """

    answer: Floats
    weight: Floats
    source: Floats
    sums: Floats


class _Query(NamedTuple):
    """One query.

    at       its position
    first    position of its first source
    unit     float64 [5], unit times
    limit_s  hardware limit, seconds
    column   column in Parameters; -1: untrained kernel, or a GPU unlike those trained on
    """

    at: int
    first: int
    unit: Floats
    limit_s: float
    column: int


class _Aggregates(NamedTuple):
    """Per-query aggregates over its sources, beside the running sums.

    stop      position after the query's last source
    floor_s   launch floor, seconds
    group     closest relation, code into GROUPS
    nearest   least log-size distance among sources of the query's kernel
    residual  sum of their log residuals from the kernel's fitted costs
    own       their number
    """

    stop: int
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
def _relation(question: LaunchQueries, q: int, k: int) -> int:
    """Return the relation of source `k` to query `q`, code into GROUPS."""
    queries, sources = question.queries, question.sources
    mine, theirs = queries.row[q], sources.row[k]
    code = 4 * int(queries.label[mine] == sources.label[theirs])
    code += 2 * int(queries.dims[_LAUNCH, mine] == sources.dims[_LAUNCH, theirs])
    return int(RELATION[code + int(queries.gpu[q] == sources.gpu[k])])


@compiled_per_row
def _distance(question: LaunchQueries, q: int, k: int) -> float:
    """Return the distance between the sizes of source `k` and query `q`, in log lane operations."""
    mine = question.queries.dims[_LANES, question.queries.row[q]]
    theirs = question.sources.dims[_LANES, question.sources.row[k]]
    return float(abs(np.log(mine / theirs)))


@compiled_per_row
def _add(answer: Floats, prior: Floats, spread: float, sums: Floats) -> None:
    precision = 1.0 / (spread * spread)
    for h in range(5):  # array expressions would allocate
        sums[_PRECISION, h] += precision
        sums[_ANSWER, h] += precision * answer[h]
        sums[_SQUARE, h] += precision * answer[h] * answer[h]
        sums[_PRIOR, h] += precision * prior[h]


@compiled_per_row
def _combine(sums: Floats, sources: int, answer: Floats, log_weight: Floats) -> None:
    """Fill in the sources' mean answer, and as log weights their mean prior minus half their squared disagreement."""
    for h in range(5):
        answer[h] = sums[_ANSWER, h] / sums[_PRECISION, h]
        log_weight[h] = sums[_PRIOR, h] / sums[_PRECISION, h]
        if sources > 1:
            log_weight[h] -= 0.5 * max(sums[_SQUARE, h] - sums[_ANSWER, h] * answer[h], 0.0)


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
        answer[h] = np.log(max(query.unit[h] * known.prior_cost[h], least))
    log_prior(mechanism, 0.0, weight)
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
    scratch = _Scratch(np.empty(5), np.empty(5), np.empty(5), np.empty((4, 5)))
    for q in range(len(times.latency_s)):
        limit = unit_times(queries, q, devices, unit)
        column = _column(known, queries.label[queries.row[q]]) if devices.alike[queries.gpu[q]] else -1
        query = _Query(q, first, unit, limit, column)
        sources = _aggregate(question, devices, known, query, scratch)
        log_work, group = _log_work(queries, known, query, sources, scratch)
        times.latency_s[q] = time_s(max(np.exp(log_work), limit), sources.floor_s, known.floor_share)
        times.bound[q] = _bound(scratch.answer, scratch.weight, unit[0], sources.floor_s, times.latency_s[q])
        extrapolated = group < RELATED and first < sources.stop and sources.nearest > EXTRAPOLATED_LOG_SIZE
        times.group[q] = max(group, OTHER_GPU_AND_SIZE) if extrapolated else group
        times.limit_s[q] = limit
        first = sources.stop


@compiled_per_row
def _aggregate(
    question: LaunchQueries, devices: Devices, known: Parameters, query: _Query, scratch: _Scratch
) -> _Aggregates:
    """Fill `scratch.sums` with the sums over a query's sources, and return the aggregates."""
    queries, sources, floor_s, q, k = question.queries, question.sources, devices.floor_s, query.at, query.first
    answer, weight, source, sums = scratch
    sums[:] = 0.0
    floor = floor_s[queries.gpu[q]]
    floor = known.default_floor_s if np.isnan(floor) else floor
    group, nearest, residual, own = NO_EVIDENCE, np.inf, 0.0, 0
    while k < len(question.query) and question.query[k] == q:
        limit = unit_times(sources, k, devices, source)
        mechanism = int(sources.dims[_MECHANISM, sources.row[k]])
        expected = np.exp(_prior_log_work(_Query(q, k, source, limit, -1), mechanism, known, answer, weight))
        source_floor = _floor_of_source(floor_s[sources.gpu[k]], question.source_s[k], expected, known)
        if sources.gpu[k] == queries.gpu[q]:
            floor = max(floor, source_floor)
        work, relation = work_s(question.source_s[k], source_floor, limit, known.floor_share), _relation(question, q, k)
        carried(work, source, query.unit, query.limit_s, answer)
        log_prior(mechanism, traffic_probability(source[0], work, known.traffic_share), weight)
        distance = _distance(question, q, k)
        _add(answer, weight, np.hypot(SPREAD[relation], SPREAD_PER_LOG_SIZE * distance), sums)
        if query.column >= 0 and relation < RELATED:
            residual += _log_residual(source, work, source_floor, query.column, known)
            own += 1
        if relation < RELATED:
            nearest = min(nearest, distance)
        group = min(group, relation)
        k += 1
    return _Aggregates(k, floor, group, nearest, residual, own)


@compiled_per_row
def _log_work(
    queries: Launches, known: Parameters, query: _Query, sources: _Aggregates, scratch: _Scratch
) -> tuple[float, int]:
    """Return the log of a query's work in seconds, and its code into GROUPS.

    Fills `scratch.answer` and `scratch.weight` with each hypothesis' log work and weight.
    """
    answer, weight, group, log_work = scratch.answer, scratch.weight, sources.group, 0.0
    if group < NO_EVIDENCE:
        _combine(scratch.sums, sources.stop - query.first, answer, weight)
        log_work = _weigh(query, known, answer, weight)
    if group >= RELATED:
        share = RELATED_WEIGHT if group == RELATED else 0.0
        mechanism = int(queries.dims[_MECHANISM, queries.row[query.at]])
        log_work = share * log_work + (1.0 - share) * _prior_log_work(query, mechanism, known, answer, weight)
    # Rows measured on the target GPU itself are better evidence than costs averaged over GPUs.
    if query.column >= 0 and group > SAME_GPU:
        fitted = np.log(max(_product(known.cost[:, query.column], query.unit), query.limit_s))
        fitted += sources.residual / max(sources.own, 1)
        share = 1.0 if group >= RELATED else FITTED_WEIGHT
        log_work = (1.0 - share) * log_work + share * fitted
        group = min(group, OTHER_GPU_AND_SIZE)
    return log_work, group
