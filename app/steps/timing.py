"""Time a network: predict each distinct row once for all GPUs, then schedule all rows.

Rows have device time; the schedule adds the cost of host launches, links and pipeline bubbles. Intervals follow the
rule
of operators: errors are fully correlated within a line of the breakdown, and independent between lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from app.bands.band import width_at
from app.bands.group_widths import network_widths
from app.engine.engine import Engine
from app.graphs.batched import expanded, per_configuration, unique_rows
from app.graphs.build import Builder
from app.graphs.run import Run
from app.ops import OP_CODE
from app.ops.stacks import EAGER_HOST_S, NO_WAIT
from app.steps.allocator import allocating
from app.steps.early_launch import with_early_launches
from app.steps.input_copy import COPY_SPREAD, input_copy_s
from app.steps.network_rows import in_network
from app.steps.networks import Prepared
from app.steps.predict_rows import CHUNK, predict_on
from app.steps.quickest_kernels import quickest_kernels
from app.steps.schedule import EAGER_GAP_S, EAGER_HOST_SPREAD, Schedule, schedule
from app.steps.step_interval import step_interval
from app.steps.stragglers import in_step
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions
from app.tables.workload import FORWARD, Workload

# Width in log space of the interval of training with fused attention, over that of errors which all rows share. Fitted
# to Megatron-Bridge, MLPerf and MPT (80 % of their steps are within; `gpucast evaluate scorecard`).
_TRAINING_WIDTH, _FUSED_ATTENTION = 0.65, OP_CODE["attention_prefill"]
# The same of ConvNets, whose layers' errors cancel more than those of one kind of product. Fitted to torchvision's.
_CONVNET_WIDTH, _CONVOLUTION = 0.5, OP_CODE["conv2d"]
# Half-width of the host time's interval in log space where its version says it: twice as long at 80 %.
_VERSION_SPREAD = 0.7
# An engine's host may be that many times as fast, or as slow.
_HOST_SPREAD = 1.6


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


def time_step(  # noqa: PLR0913  what is asked, and of whom  # (the query, and its options)
    engine: Engine,
    rows: Prepared,
    run: Run,
    gpus: GpuTable,
    targets: Sequence[int],
    *,
    predictor: str,
    coverage: float,
    launched: bool,
) -> Step:
    """Return the step of a network's c configurations on each of g GPU rows `targets`, [g c] GPU by GPU.

    run       batch, sequence and image size are numbers, or one per configuration
    launched  whether the host launches each operator
    """
    table, u, g, c = rows.distinct.table, len(rows.distinct.table), len(targets), rows.configurations
    workload = rows.workload if c == 1 or g == 1 else expanded(rows.workload, np.tile(np.arange(c), g))

    def predict_rows(ops: OpTable) -> Predictions:
        network = run.parallelism.network_bytes_per_s
        return quickest_kernels(
            ops,
            g,
            lambda rows: _predict_in_chunks(
                rows,
                g,
                partial(
                    predict_on,
                    engine,
                    gpus=gpus,
                    targets=targets,
                    predictor=predictor,
                    coverage=coverage,
                    network_bytes_per_s=network,
                ),
            ),
        )

    alone = predict_rows(table)
    answer = with_early_launches(in_network(alone, table, run, gpus, targets), run, gpus, targets)
    each = np.broadcast_to(rows.distinct.row.reshape(len(workload), -1), (len(workload), c))
    of = (each[:, None, :] + u * np.arange(g)[:, None]).reshape(len(workload), g * c)
    transfer: Floats | float = 0.0
    if run.parallelism.pipeline > 1:
        transfer_s = predict_rows(stage_transfer(rows.workload, run)).latency_s
        transfer = np.broadcast_to(transfer_s.reshape(g, -1), (g, c)).ravel()
    line = _timeline(
        workload,
        rows.group,
        answer,
        of,
        run,
        launched=launched,
        coverage=coverage,
        transfer_s=transfer,
        waits_s=allocating(workload, run, gpus, np.repeat(targets, c).tolist()) if run.emptied else (0.0, 0.0),
    )
    if run.input_copy != "none":
        line = _after_wait(*line, np.broadcast_to(input_copy_s(run, gpus, targets), (g, c)).ravel(), COPY_SPREAD)
    longer = answer.latency_s / np.maximum(alone.latency_s, np.finfo(np.float64).tiny)
    return Step(answer, *line, np.zeros(g * c, dtype=np.bool_), longer)


def _predict_in_chunks(ops: OpTable, g: int, predict: Callable[[OpTable], Predictions]) -> Predictions:
    """Return the predictions of rows on g GPUs, GPU by GPU, in chunks that fit the cache."""
    if len(ops) <= CHUNK:
        return predict(ops)
    parts = [predict(ops.slice(first, first + CHUNK)) for first in range(0, len(ops), CHUNK)]
    return Predictions(
        *(
            np.concatenate([getattr(part, name).reshape(g, -1) for part in parts], axis=1).ravel()
            for name in Predictions.__dataclass_fields__
        )
    )


def _timeline(  # noqa: PLR0913  what is known of the rows, and how they run  # (rows and run options)
    w: Workload,
    line: Ints,
    answer: Predictions,
    of: Ints,
    run: Run,
    *,
    launched: bool,
    coverage: float,
    transfer_s: Floats | float,
    waits_s: tuple[Floats | float, Floats | float] = (0.0, 0.0),
) -> tuple[Schedule, Floats, Floats]:
    """Return the schedule of the rows, and the interval of the step; `line` [n] is each row's line of the breakdown.

    `of` int [n, g] is the row of `answer` for each row of `w`, on g GPUs, or in g configurations on one; `waits_s` are
    additional waits of host and device per launch, [n, g] each.
    """
    host, gap = (run.eager_host_s, EAGER_GAP_S) if launched else (0.0, 0.0)
    host_s, gap_s = host + waits_s[0], gap + waits_s[1]
    done = schedule(w, in_step(w, answer.latency_s[of], run), host_s, run, gap_s=gap_s, transfer_s=transfer_s)
    low, high = step_interval(done, answer, of, line, network_widths(answer.group, coverage))
    if run.mode == "training" and (w.ops.kind == _FUSED_ATTENTION).any():
        low, high = (done.step_s * (end / done.step_s) ** _TRAINING_WIDTH for end in (low, high))
    if run.part is None and (w.ops.kind == _CONVOLUTION).any():
        low, high = (done.step_s * (end / done.step_s) ** _CONVNET_WIDTH for end in (low, high))
    if run.engine_host != NO_WAIT:
        wait, each = run.engine_host
        waited = np.asarray(wait + each * run.batch / run.parallelism.data, dtype=np.float64).ravel()
        waited = np.tile(waited, of.shape[1] // len(waited))
        done, low, high = _after_wait(done, low, high, waited, _HOST_SPREAD)
    # The host's speed is unknown, and less so where the software's version says how it launches.
    spread = EAGER_HOST_SPREAD if run.eager_host_s == EAGER_HOST_S else _VERSION_SPREAD
    slow = host * np.exp(spread * width_at(coverage))
    return done, low, np.maximum(high, slow * done.launches)


def _after_wait(
    done: Schedule, low: Floats, high: Floats, waited: Floats, spread: float
) -> tuple[Schedule, Floats, Floats]:
    """Return a step and its interval after a wait, which is part of the forward phase.

    It takes `waited` seconds, [g] or one number; that many times `spread` at most, and as many times less at least.
    """
    phases = done.phases_s.copy()
    phases[FORWARD] += waited
    done = done._replace(step_s=done.step_s + waited, phases_s=phases)
    return done, low + waited / spread, high + waited * spread


def stage_transfer(rows: Workload, run: Run) -> OpTable:
    """Return the transfer of a microbatch's activations between pipeline stages: one row, or one per configuration.

    Stages are cut between layers; the transfer is the output of the most repeated layer.
    """
    longest = np.atleast_1d(rows.repeats[..., : rows.blocks].argmax(axis=-1))
    last = np.searchsorted(rows.block, longest, side="right") - 1
    written = np.atleast_2d(rows.output_bytes)
    message = np.maximum(written[np.arange(len(written)), last], 1.0)
    builder = Builder(run.dtype)
    split = run.parallelism
    nodes, spread = 2.0 if split.nodes > 1 else 1.0, float(split.devices)
    builder.add(
        "send_recv", outputs=0.0, message_bytes=per_configuration(message), devices=2.0, nodes=nodes, spread=spread
    )
    return unique_rows(builder.build().ops).table
