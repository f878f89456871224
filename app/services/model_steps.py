"""A network timed: each distinct row predicted once over all GPUs, then put on a timeline.

Rows carry device time; the schedule adds what the host's launches, links and pipeline bubbles cost. Intervals follow
the rule of operators: within a line of the breakdown errors are one, between lines they are independent. How far the
sum of a device may be off, relative to it, moves all rows together, and the schedule says what becomes of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.graphs.build import Builder
from app.graphs.run import Run
from app.graphs.schedule import EAGER_GAP_S, EAGER_HOST_S, Schedule, schedule
from app.services.engine import Engine
from app.services.networks import Prepared
from app.services.operator_answers import answered
from app.tables.gpus import GpuTable
from app.tables.predictions import Predictions
from app.tables.workload import Workload

Floats = NDArray[np.float64]


class Step(NamedTuple):
    """A step on g GPUs.

    answer  Predictions of the u distinct rows, GPU by GPU [g u]
    middle, low, high  the step with the rows' times, and with all of them as far off as their sum may be
    """

    answer: Predictions
    middle: Schedule
    low: Schedule
    high: Schedule


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
    i, j = np.tile(np.arange(u), g), np.repeat(np.array(targets, dtype=np.intp), u)
    answer = answered(engine, table, gpus, i, j, predictor=predictor, coverage=coverage)
    middle, low, high = (
        np.ascontiguousarray(times.reshape(g, u).T[row]) for times in (answer.latency_s, answer.low_s, answer.high_s)
    )
    transfer = np.tile(_transfer_s(engine, rows.workload, run, gpus, targets, predictor), 3)
    below, above = _deviation(rows, middle, low), _deviation(rows, middle, high)
    stacked = np.concatenate([middle, middle * (1.0 - below), middle * (1.0 + above)], axis=1)
    host, gap = (EAGER_HOST_S, EAGER_GAP_S) if launched else (0.0, 0.0)
    whole = schedule(rows.workload, stacked, host, run, gap_s=gap, transfer_s=transfer)
    return Step(answer, *(Schedule(*(column[..., k * g : k * g + g] for column in whole)) for k in range(3)))


def _deviation(rows: Prepared, middle: Floats, end: Floats) -> Floats:
    """How far the sum over all rows may be off on that side, relative to it, float64 [g]."""
    off = rows.runs[:, None] * np.abs(end - middle)
    groups = np.stack([off[rows.group == group].sum(axis=0) for group in range(len(rows.groups))])
    total = (rows.runs[:, None] * middle).sum(axis=0)
    deviation: Floats = np.sqrt((groups**2).sum(axis=0)) / np.where(total > 0.0, total, 1.0)
    return deviation


def _transfer_s(
    engine: Engine, rows: Workload, run: Run, gpus: GpuTable, targets: Sequence[int], predictor: str
) -> Floats:
    """Seconds that a pipeline stage takes to pass a microbatch's activations on, float64 [g]."""
    g, split = len(targets), run.parallelism
    if split.pipeline == 1:
        return np.zeros(g)
    # Stages are cut between layers: what the longest run of layers hands from one to the next.
    last = np.flatnonzero(rows.block == int(rows.repeats[: rows.blocks].argmax()))[-1]
    message = max(float(rows.output_bytes[last]), 1.0)
    builder = Builder(run.dtype)
    builder.add("send_recv", outputs=0.0, message_bytes=message, devices=2.0, nodes=2.0 if split.nodes > 1 else 1.0)
    i, j = np.zeros(g, dtype=np.intp), np.array(targets, dtype=np.intp)
    return answered(engine, builder.build().ops, gpus, i, j, predictor=predictor, coverage=0.5).latency_s
