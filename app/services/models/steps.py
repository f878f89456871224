"""A network timed: each distinct row predicted once over all GPUs, then put on a timeline.

Rows carry device time; the schedule adds what the host's launches, links and pipeline bubbles cost. Intervals follow
the rule of operators: within a line of the breakdown errors are one, between lines they are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from app.engine.engine import Engine
from app.graphs.allocator import allocating
from app.graphs.batched import per_configuration, unique_rows
from app.graphs.build import Builder
from app.graphs.run import Run
from app.graphs.schedule import EAGER_GAP_S, EAGER_HOST_S, EAGER_HOST_SPREAD, Schedule, schedule
from app.graphs.step_interval import step_interval
from app.predictors.intervals.network_widths import network_widths
from app.predictors.intervals.prior import width_at
from app.services.models.networks import Prepared
from app.services.operators.between_nodes import answered_on
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions
from app.tables.workload import Workload


class Step(NamedTuple):
    """A step on g GPUs.

    answer  predictions of the u distinct rows, GPU by GPU [g u]
    done    the timeline
    low_s, high_s  ends of the step's interval [g]
    measured  bool [g], where the step is a measured one
    """

    answer: Predictions
    done: Schedule
    low_s: Floats
    high_s: Floats
    measured: Bools

    def with_measured(self, seconds: Floats, log_offsets: Floats) -> Step:
        """The step with measured times [g] in place of its own where they are not NaN, its parts in proportion.

        `log_offsets` [2] are the ends of a measured step's interval, in log space.
        """
        hit = np.isfinite(seconds)
        share = np.where(hit, seconds / self.done.step_s, 1.0)
        low, high = (np.where(hit, seconds * np.exp(off), end) for off, end in zip(log_offsets, self[2:4], strict=True))
        done = Schedule(*(part * share for part in self.done))._replace(launches=self.done.launches)
        return Step(self.answer, done, low, high, hit)


def timed(  # noqa: PLR0913  what is asked, and of whom
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
    """The network on GPU rows `targets`; `launched` says whether the host launches each operator."""
    table, row = rows.distinct.table, rows.distinct.row
    u, g = len(table), len(targets)

    def answered(ops: OpTable) -> Predictions:
        network = run.parallelism.network_bytes_per_s
        return answered_on(
            engine, ops, gpus, targets, predictor=predictor, coverage=coverage, network_bytes_per_s=network
        )

    answer = answered(table)
    of = row[:, None] + u * np.arange(g)
    transfer: Floats | float = 0.0
    if run.parallelism.pipeline > 1:
        transfer = answered(passed_on(rows.workload, run)).latency_s
    waits = allocating(rows.workload, run, gpus, targets) if run.emptied else (0.0, 0.0)
    line = timeline(
        rows.workload,
        rows.group,
        answer,
        of,
        run,
        launched=launched,
        coverage=coverage,
        transfer_s=transfer,
        waits_s=waits,
    )
    return Step(answer, *line, np.zeros(g, dtype=np.bool_))


def timeline(  # noqa: PLR0913  what is known of the rows, and how they run
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
    """The rows put on a timeline, and both ends of the step's interval; `line` [n] is each row's of the breakdown.

    `of` int [n, g] says which row of `answer` each of `w` is, on g GPUs, or in g configurations on one; `waits_s` are
    what host and device wait for besides, per launch, [n, g] each.
    """
    host, gap = (EAGER_HOST_S, EAGER_GAP_S) if launched else (0.0, 0.0)
    host_s, gap_s = host + waits_s[0], gap + waits_s[1]
    done = schedule(w, answer.latency_s[of], host_s, run, gap_s=gap_s, transfer_s=transfer_s)
    low, high = step_interval(done, answer, of, line, network_widths(answer.group, coverage))
    slow = host * np.exp(EAGER_HOST_SPREAD * width_at(coverage))  # of the host nothing is known but that it launches
    return done, low, np.maximum(high, slow * done.launches)


def passed_on(rows: Workload, run: Run) -> OpTable:
    """A stage of a pipeline passing a microbatch's activations on: one row, or one for each configuration.

    Stages are cut between layers: what the longest run of layers hands from one to the next.
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
