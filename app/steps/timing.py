"""Time a network: distinct rows are predicted once for all configurations and GPUs, corrected, and scheduled.

Rows have device time; the schedule adds the cost of host launches, links and pipeline bubbles. Intervals follow the
rule of operators: errors are fully correlated within a line of the breakdown, and independent between lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from app.bands.band import width_at
from app.bands.group_widths import network_widths
from app.engine.engine import Engine
from app.graphs.batched import expanded
from app.graphs.run import Run
from app.ops import OP_CODE
from app.runtime.compiled import compiled
from app.stacks.release import plain_release
from app.steps.corrections import CORRECTIONS, Correction, Stage, Subject
from app.steps.networks import StepRows
from app.steps.predict_rows import predict_quickest
from app.steps.schedule import EAGER_GAP_S, EAGER_HOST_SPREAD, Schedule, schedule
from app.steps.stages import stage_transfer
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions
from app.tables.workload import Workload

# Width in log space of the interval of training with fused attention, over that of errors which all rows share. Fitted
# to Megatron-Bridge, MLPerf and MPT (80 % of their steps are within; `gpucast evaluate scorecard`).
_TRAINING_WIDTH, _FUSED_ATTENTION = 0.65, OP_CODE["attention_prefill"]
# The same of ConvNets, whose layers' errors cancel more than those of one kind of product. Fitted to torchvision's.
_CONVNET_WIDTH, _CONVOLUTION = 0.5, OP_CODE["conv2d"]
# Half-width of the host time's interval in log space where its version says it: twice as long at 80 %.
_VERSION_SPREAD = 0.7


class Step(NamedTuple):
    """A step on g GPUs; one of c configurations has g c figures, GPU by GPU, in place of g.

    answer  predictions of the u distinct rows, GPU by GPU, [g u]
    done    the schedule
    low_s, high_s  interval of the step, [g]
    measured  bool [g], whether the step was measured as a whole
    longer  float64 [g u], how many times as long the rows take in the network as alone
    """

    answer: Predictions
    done: Schedule
    low_s: Floats
    high_s: Floats
    measured: Bools
    longer: Floats

    def with_measured(self, seconds: Floats, log_offsets: Floats) -> Step:
        """Return the step with measured times [g] where not NaN, its parts scaled in proportion.

        `log_offsets` [2] is the interval of a measured step in log space.
        """
        hit = np.isfinite(seconds)
        share = np.where(hit, seconds / self.done.step_s, 1.0)
        low, high = (np.where(hit, seconds * np.exp(off), end) for off, end in zip(log_offsets, self[2:4], strict=True))
        done = Schedule(*(part * share for part in self.done))._replace(launches=self.done.launches)
        return Step(self.answer, done, low, high, hit, self.longer)

    def widened(self, width: float, coverage: float) -> Step:
        """Return the step with its interval widened by log-space `width` of 80 %, except where it was measured."""
        wide, middle = width * width_at(coverage), self.done.step_s
        below, above = (np.hypot(np.log(end / middle), wide) for end in (self.low_s, self.high_s))
        low, high = (
            np.where(self.measured, old, new)
            for old, new in ((self.low_s, middle * np.exp(-below)), (self.high_s, middle * np.exp(above)))
        )
        return self._replace(low_s=low, high_s=high)


class StepQuery(NamedTuple):
    """Who predicts, and on which g rows of which GPU table."""

    engine: Engine
    gpus: GpuTable
    targets: Sequence[int]
    predictor: str
    coverage: float = 0.8

    def predict(self, ops: OpTable, run: Run) -> Predictions:
        """Return the predictions of rows that run alone, GPU by GPU."""
        return predict_quickest(
            self.engine,
            ops,
            self.gpus,
            self.targets,
            predictor=self.predictor,
            coverage=self.coverage,
            network_bytes_per_s=run.parallelism.network_bytes_per_s,
        )


class RowTimes(NamedTuple):
    """Times of n rows in c configurations on g GPUs: g c of them, GPU by GPU.

    workload  the n rows, in g c configurations where there are several of both
    gpus      the GPU of each of the g c, a row each
    answer    predictions of the u distinct rows in the network, GPU by GPU, [g u]
    of        int [n, g c], into `answer`
    launch_s  float64 [n, g c], seconds of a launch
    host_s    float64 [n, g c] or 0, what the host adds to each
    longer    float64 [g u], how many times as long the rows take in the network as alone
    """

    workload: Workload
    gpus: GpuTable
    answer: Predictions
    of: Ints
    launch_s: Floats
    host_s: Floats | float
    longer: Floats


def corrected_rows(
    answer: Predictions, ops: OpTable, run: Run, gpus: GpuTable, corrections: Sequence[Correction] = CORRECTIONS
) -> Predictions:
    """Return predictions of a network's u distinct rows on g GPUs, GPU by GPU, as they run in it."""
    shape = len(gpus), len(ops)
    for correction in _of_stage("row", corrections):
        subject = Subject(run, gpus, ops, answer.latency_s.reshape(shape), answer.bound.reshape(shape))
        if (figure := correction.figure(subject)) is None:
            continue
        each, spread = np.broadcast_to(figure, shape).ravel(), correction.spread
        ends = answer.low_s, answer.latency_s, answer.high_s
        if correction.factor is not None:
            low, middle, high = (end * each for end in ends)
        else:
            low, middle, high = (end + each * by for end, by in zip(ends, (1.0 / spread, 1.0, spread), strict=True))
        answer = replace(answer, latency_s=middle, low_s=low, high_s=high)
    return answer


def corrected_launches(latency_s: Floats, w: Workload, run: Run, gpus: GpuTable) -> tuple[Floats, Floats | float]:
    """Return seconds per launch of the rows in the step, and what the host adds to each, [n, g] each."""
    subject = Subject(run, gpus, w.ops, workload=w)
    for correction in _of_stage("launch"):
        if (figure := correction.figure(subject)) is not None:
            latency_s = latency_s + figure if correction.factor is None else latency_s * figure
    host_s: Floats | float = 0.0
    for correction in _of_stage("host"):
        if (figure := correction.figure(subject)) is not None:
            host_s = host_s + figure
    return latency_s, host_s


def _of_stage(stage: Stage, corrections: Sequence[Correction] = CORRECTIONS) -> list[Correction]:
    return [correction for correction in corrections if correction.stage == stage]


def time_rows(query: StepQuery, rows: StepRows, run: Run) -> RowTimes:
    """Return the times of a network's rows: distinct ones are predicted once, by their quickest kernels, and corrected.

    run  batch, sequence and image size are numbers, or one per configuration
    """
    ops, g, c, n = rows.distinct.table, len(query.targets), rows.configurations, len(rows.workload)
    workload = rows.workload if c == 1 or g == 1 else expanded(rows.workload, np.tile(np.arange(c), g))
    gpus = query.gpus.take(np.asarray(query.targets, dtype=np.intp))
    alone = query.predict(ops, run)
    answer = corrected_rows(alone, ops, run, gpus)
    each = np.broadcast_to(rows.distinct.row.reshape(n, -1), (n, c))
    of = (each[:, None, :] + len(ops) * np.arange(g)[:, None]).reshape(n, g * c)
    gpus = gpus if c == 1 else gpus.take(np.repeat(np.arange(g), c))
    launch_s, host_s = corrected_launches(answer.latency_s[of], workload, run, gpus)
    longer = answer.latency_s / np.maximum(alone.latency_s, np.finfo(np.float64).tiny)
    return RowTimes(workload, gpus, answer, of, launch_s, host_s, longer)


def time_step(query: StepQuery, rows: StepRows, run: Run, *, launched: bool) -> Step:
    """Return the step of a network's c configurations on each of g GPUs, [g c] GPU by GPU.

    run       as in `time_rows`
    launched  whether the host launches each operator
    """
    times = time_rows(query, rows, run)
    w, size = times.workload, (len(query.targets), rows.configurations)
    transfer_s: Floats | float = 0.0
    if run.parallelism.pipeline > 1:
        sent = query.predict(stage_transfer(rows.workload, run), run).latency_s
        transfer_s = np.broadcast_to(sent.reshape(len(query.targets), -1), size).ravel()
    host, gap = (run.release.eager_host_s, EAGER_GAP_S) if launched else (0.0, 0.0)
    done = schedule(w, times.launch_s, host + times.host_s, run, gap_s=gap, transfer_s=transfer_s)
    low, high = step_interval(
        done, times.answer, times.of, rows.group, network_widths(times.answer.group, query.coverage)
    )
    if run.mode == "training" and (w.ops.kind == _FUSED_ATTENTION).any():
        low, high = (done.step_s * (end / done.step_s) ** _TRAINING_WIDTH for end in (low, high))
    if run.part is None and (w.ops.kind == _CONVOLUTION).any():
        low, high = (done.step_s * (end / done.step_s) ** _CONVNET_WIDTH for end in (low, high))
    # The host's speed is unknown, and less so where the software's version says how it launches.
    usual = run.release.eager_host_s == plain_release().eager_host_s
    spread = EAGER_HOST_SPREAD if usual else _VERSION_SPREAD
    high = np.maximum(high, host * np.exp(spread * width_at(query.coverage)) * done.launches)
    for correction in _of_stage("step"):
        if (waited := correction.figure(Subject(run, times.gpus, w.ops, workload=w))) is not None:
            low, high = low + waited / correction.spread, high + waited * correction.spread
            done = done.after(waited)
    return Step(times.answer, done, low, high, np.zeros(len(low), dtype=np.bool_), times.longer)


class _Rows(NamedTuple):
    """Rows of a step on g GPUs, and the u predictions they refer to.

    rows_s    float64 [n, g], seconds of each row in the step
    of        int [n, g], prediction of each row on each GPU
    group     int [n], interval group of each row
    relative  float64 [u, 4], per prediction and relative to its time: lower deviation (negative), upper deviation,
              log-space width, hardware limit
    """

    rows_s: Floats
    of: Ints
    group: Ints
    relative: Floats


def step_interval(done: Schedule, answer: Predictions, of: Ints, group: Ints, width: Floats) -> tuple[Floats, Floats]:
    """Return the lower and upper end of the step's interval, seconds, float64 [g] each.

    answer  predictions of u distinct rows
    of      int [n, g], the prediction of each row of the step on each GPU
    group   int [n], interval group of each row
    width   float64 [u], log-space half-width of the error that all rows share

    Errors within a group are fully correlated (a GPU that is slow at one product is slow at the next), so deviations
    add up linearly there; groups are independent, so theirs add up in squares, as does the shared error, averaged over
    time. The step deviates by its rows' relative deviation: waits (for the host, or another stage) are known no better.
    The lower end is at least the hardware limit.
    """
    known = answer.latency_s > 0
    least = np.where(known, answer.latency_s, 1.0)
    below, above = answer.low_s - answer.latency_s, answer.high_s - answer.latency_s
    relative = np.stack([below / least, above / least, width, np.where(known, answer.limit_s / least, 1.0)], axis=1)
    by_group = np.zeros((2, int(group.max(initial=0)) + 1, of.shape[1]))
    total = np.zeros((3, of.shape[1]))
    _add_up(_Rows(np.ascontiguousarray(done.rows_s), np.ascontiguousarray(of), group, relative), by_group, total)
    # A cumulative sum has a fixed order: np.sum's depends on the number of GPUs.
    squares = np.cumsum(by_group**2, axis=1)[:, -1]
    whole, wide, limit = total
    whole = np.maximum(whole, np.finfo(np.float64).tiny)
    below, above = (
        np.sqrt(square / whole**2 + np.expm1(sign * wide / whole) ** 2)
        for square, sign in zip(squares, (-1.0, 1.0), strict=True)
    )
    least_share = np.maximum(1.0 - np.minimum(below, 1.0), np.minimum(limit / whole, 1.0))
    return done.step_s * least_share, done.step_s * (1.0 + above)


@compiled
def _add_up(rows: _Rows, by_group: Floats, total: Floats) -> None:
    """Add the rows' deviations to `by_group` [2, groups, g]; their seconds, widths and limits to `total` [3, g].

    Rows are added in order, so that a GPU's sums do not depend on the other GPUs.
    """
    for k in range(rows.rows_s.shape[0]):
        group = rows.group[k]
        for q in range(rows.rows_s.shape[1]):
            seconds, row = rows.rows_s[k, q], rows.of[k, q]
            by_group[0, group, q] += seconds * rows.relative[row, 0]
            by_group[1, group, q] += seconds * rows.relative[row, 1]
            total[0, q] += seconds
            total[1, q] += seconds * rows.relative[row, 2]
            total[2, q] += seconds * rows.relative[row, 3]
