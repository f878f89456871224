"""The time of launches from their evidence: `auto`'s arithmetic, row by row, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import FIELD_INDEX
from app.predictors.auto.kernels.bottlenecks import Devices, Launches, unit_times
from app.predictors.auto.kernels.transfer import (
    LONGEST_FLOOR_S,
    SPREAD,
    SPREAD_PER_LOG_SIZE,
    carried,
    log_prior,
    normalise,
    time_s,
    traffic_probability,
    work_s,
)
from app.predictors.intervals.groups import NO_EVIDENCE, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU
from app.predictors.launches.relations import RELATION
from app.runtime.compiled import compiled
from app.tables.predictions import COMPUTE, LAUNCH, MEMORY

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# A kernel's own measured work outweighs its fitted costs from this multiple of the launch floor.
TRUSTED_WORK = 6.0
# Weight of the sources where the only ones are other kernels; the rest goes to the prior costs.
RELATED_WEIGHT = 0.5
# Weight of the fitted costs where the kernel was trained on; the rest goes to sources of the same kernel, if any.
FITTED_WEIGHT = 0.5
# Beyond eight times or an eighth of every measured size (in the log), an answer counts as one from another size on
# another GPU.
FAR = np.log(8.0)
# A fitted cost of nothing still predicts a time, seconds.
_LEAST_S = 1e-12
_ROUNDING = 1e-9
_MECHANISM, _LANES, _LAUNCH = FIELD_INDEX["mechanism"], FIELD_INDEX["lane_operations"], FIELD_INDEX["launch"]
# Where each hypothesis' answer and weight, and a source's unit times, are written to, [5] each.
_Room = tuple[Floats, Floats, Floats]
# Rows of the running sums over a query's sources, each per hypothesis; all but the first weighted by precision.
_PRECISION, _ANSWER, _SQUARE, _PRIOR = range(4)


class Question(NamedTuple):
    """Queries and their sources: measured `source_s` [m], seconds, of query `query` [m], ascending."""

    queries: Launches
    sources: Launches
    source_s: Floats
    query: Ints


class Knowledge(NamedTuple):
    """What `auto` knows.

    The two shares, the launch floor of a GPU without one of its own, prior costs [5], and per trained kernel
    (`label` [k], sorted) the log likelihood [5, k] of the hypotheses and its fitted costs [5, k].
    """

    floor_share: float
    traffic_share: float
    default_floor_s: float
    prior_cost: Floats
    label: Ints
    log_likelihood: Floats
    cost: Floats


class Times(NamedTuple):
    """Answers to fill, [n] each: seconds, code into BOUNDS, code into GROUPS."""

    latency_s: Floats
    bound: Ints
    group: Ints

    @classmethod
    def empty(cls, n: int) -> Times:
        """Room for n answers."""
        return cls(np.empty(n), *(np.empty(n, dtype=np.intp) for _ in range(2)))


class _Query(NamedTuple):
    """One query while it is answered: its unit times [5], hardware limit, and column in Knowledge or -1."""

    at: int
    unit: Floats
    limit_s: float
    column: int


class _Heard(NamedTuple):
    """What a query's sources say beside the running sums over them.

    `stop` is the place after the last one, `floor_s` the launch floor, `group` the closest relation, code into GROUPS.
    Of the sources of the query's own kernel: the distance of the `nearest`; their `surprise` together, and of how many.
    """

    stop: int
    floor_s: float
    group: int
    nearest: float
    surprise: float
    own: int


@compiled
def _column(known: Knowledge, label: int) -> int:
    column = int(np.searchsorted(known.label, label))
    return column if column < len(known.label) and known.label[column] == label else -1


@compiled
def _relation(question: Question, q: int, k: int) -> int:
    """How source `k` relates to query `q`: code into GROUPS."""
    queries, sources = question.queries, question.sources
    mine, theirs = queries.row[q], sources.row[k]
    code = 4 * int(queries.label[mine] == sources.label[theirs])
    code += 2 * int(queries.dims[_LAUNCH, mine] == sources.dims[_LAUNCH, theirs])
    return int(RELATION[code + int(queries.gpu[q] == sources.gpu[k])])


@compiled
def _distance(question: Question, q: int, k: int) -> float:
    """How far a source's size is from the query's, in the log of lane operations."""
    mine = question.queries.dims[_LANES, question.queries.row[q]]
    theirs = question.sources.dims[_LANES, question.sources.row[k]]
    return float(abs(np.log(mine / theirs)))


@compiled
def _add(answer: Floats, prior: Floats, spread: float, sums: Floats) -> None:
    precision = 1.0 / (spread * spread)
    sums[_PRECISION] += precision
    sums[_ANSWER] += precision * answer
    sums[_SQUARE] += precision * answer * answer
    sums[_PRIOR] += precision * prior


@compiled
def _combine(sums: Floats, sources: int, answer: Floats, log_weight: Floats) -> None:
    """Mean answer of the sources, and their mean prior less half their squared disagreement."""
    for h in range(5):
        answer[h] = sums[_ANSWER, h] / sums[_PRECISION, h]
        log_weight[h] = sums[_PRIOR, h] / sums[_PRECISION, h]
        if sources > 1:
            log_weight[h] -= 0.5 * max(sums[_SQUARE, h] - sums[_ANSWER, h] * answer[h], 0.0)


@compiled
def _weigh(query: _Query, known: Knowledge, answer: Floats, weight: Floats) -> float:
    """Normalise log weights in place, with what training says of the kernel; the weighted mean log work."""
    if query.column >= 0:
        weight += known.log_likelihood[:, query.column]
    normalise(weight, weight)
    return float((weight * answer).sum())


@compiled
def _unmeasured(query: _Query, mechanism: int, known: Knowledge, answer: Floats, weight: Floats) -> float:
    """What a launch without any source takes: prior costs, its mechanism by its own description."""
    least = max(query.unit[0] * known.prior_cost[0], query.limit_s)
    for h in range(5):
        answer[h] = np.log(max(query.unit[h] * known.prior_cost[h], least))
    log_prior(mechanism, 0.0, weight)
    return _weigh(query, known, answer, weight)


@compiled
def _floor_of_source(floor_s: float, latency_s: float, expected_s: float, known: Knowledge) -> float:
    """The launch floor in a source's time: its GPU's own, or else what a short time has beyond its expected work."""
    if not np.isnan(floor_s):
        return floor_s
    if latency_s > LONGEST_FLOOR_S:
        return known.default_floor_s
    return float(max(latency_s - expected_s, known.default_floor_s))


@compiled
def _surprise(source: Floats, work: float, floor_s: float, column: int, known: Knowledge) -> float:
    """Log of a source's work over what its kernel's fitted costs expect, trusted as it exceeds the launch floor."""
    expected = max((known.cost[:, column] * source).sum(), _LEAST_S)
    return float(min(work / (TRUSTED_WORK * floor_s), 1.0) * np.log(work / expected))


@compiled
def _bound(answer: Floats, weight: Floats, traffic_s: float, floor_s: float, latency_s: float) -> int:
    """Launch when the floor is over half the time, else memory or compute by the weight of the hypotheses."""
    if floor_s > 0.5 * latency_s:
        return LAUNCH
    moving = weight[0]
    for h in range(1, 5):
        if answer[h] <= np.log(traffic_s) + _ROUNDING:
            moving += weight[h]
    return MEMORY if moving >= 0.5 else COMPUTE


@compiled
def fill_times(question: Question, devices: Devices, floor_s: Floats, known: Knowledge, times: Times) -> None:
    """Fill `times` for every query; `floor_s` [g] are the GPUs' launch floors, NaN where none is known."""
    queries, unit, first = question.queries, np.empty(5), 0
    room = (np.empty(5), np.empty(5), np.empty(5))
    for q in range(len(times.latency_s)):
        limit, sums = unit_times(queries, q, devices, unit), np.zeros((4, 5))
        query = _Query(q, unit, limit, _column(known, queries.label[queries.row[q]]))
        heard = _hear(question, query, first, devices, floor_s, known, room, sums)
        log_work, group = _log_work(question, query, heard, heard.stop - first, known, room, sums)
        times.latency_s[q] = time_s(max(np.exp(log_work), limit), heard.floor_s, known.floor_share)
        times.bound[q] = _bound(room[0], room[1], unit[0], heard.floor_s, times.latency_s[q])
        far = group < RELATED and first < heard.stop and heard.nearest > FAR
        times.group[q] = max(group, OTHER_GPU_AND_SIZE) if far else group
        first = heard.stop


@compiled
def _hear(  # noqa: PLR0913, PLR0917  (compiled code takes arrays, not tables)
    question: Question,
    query: _Query,
    first: int,
    devices: Devices,
    floor_s: Floats,
    known: Knowledge,
    room: _Room,
    sums: Floats,
) -> _Heard:
    """Add the sources of a query, of which the first is at `first`, to `sums`."""
    queries, sources, q, k = question.queries, question.sources, query.at, first
    answer, weight, source = room
    floor = floor_s[queries.gpu[q]]
    floor = known.default_floor_s if np.isnan(floor) else floor
    group, nearest, surprise, own = NO_EVIDENCE, np.inf, 0.0, 0
    while k < len(question.query) and question.query[k] == q:
        limit = unit_times(sources, k, devices, source)
        mechanism = int(sources.dims[_MECHANISM, sources.row[k]])
        expected = np.exp(_unmeasured(_Query(q, source, limit, -1), mechanism, known, answer, weight))
        source_floor = _floor_of_source(floor_s[sources.gpu[k]], question.source_s[k], expected, known)
        if sources.gpu[k] == queries.gpu[q]:
            floor = max(floor, source_floor)
        work, relation = work_s(question.source_s[k], source_floor, limit, known.floor_share), _relation(question, q, k)
        carried(work, source, query.unit, query.limit_s, answer)
        log_prior(mechanism, traffic_probability(source[0], work, known.traffic_share), weight)
        distance = _distance(question, q, k)
        _add(answer, weight, np.hypot(SPREAD[relation], SPREAD_PER_LOG_SIZE * distance), sums)
        if query.column >= 0 and relation < RELATED:
            surprise += _surprise(source, work, source_floor, query.column, known)
            own += 1
        if relation < RELATED:
            nearest = min(nearest, distance)
        group = min(group, relation)
        k += 1
    return _Heard(k, floor, group, nearest, surprise, own)


@compiled
def _log_work(
    question: Question,
    query: _Query,
    heard: _Heard,
    sources: int,
    known: Knowledge,
    room: _Room,
    sums: Floats,
) -> tuple[float, int]:
    """The log of a query's work, seconds, and its code into GROUPS; into `room` each hypothesis' answer and weight."""
    (answer, weight, _), queries, group, log_work = room, question.queries, heard.group, 0.0
    if group < NO_EVIDENCE:
        _combine(sums, sources, answer, weight)
        log_work = _weigh(query, known, answer, weight)
    if group >= RELATED:
        share = RELATED_WEIGHT if group == RELATED else 0.0
        mechanism = int(queries.dims[_MECHANISM, queries.row[query.at]])
        log_work = share * log_work + (1.0 - share) * _unmeasured(query, mechanism, known, answer, weight)
    # Rows of the target GPU itself say more than costs averaged over GPUs.
    if query.column >= 0 and group > SAME_GPU:
        fitted = np.log(max((known.cost[:, query.column] * query.unit).sum(), query.limit_s))
        fitted += heard.surprise / max(heard.own, 1)
        share = 1.0 if group >= RELATED else FITTED_WEIGHT
        log_work = (1.0 - share) * log_work + share * fitted
        group = min(group, OTHER_GPU_AND_SIZE)
    return log_work, group
