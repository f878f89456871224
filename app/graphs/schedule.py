"""From row latencies to the time of a step: launches, streams, microbatches, pipeline stages.

Within a block, over its repetitions and from block to block, time moves in closed form (`pace`). A step is

    microbatches - 1 passes forward and backward, one more whose gradients are exchanged beside its backward, the wait
    for that exchange, and the update.

A pipeline of P stages with M microbatches takes, in GPipe (Huang et al. 2019) as in 1F1B (PipeDream-flush, Narayanan
et al. 2021), once through all stages and M - 1 times the slowest one; they differ in what they keep in memory. A stage
waits for the activations (backward: their gradients) of its neighbour, `transfer_s` each way. Even stages then idle (P
- 1) / (M + P - 1) of the step.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from app.graphs.pace import Launches, Pace, State, pace_of, start, still
from app.graphs.run import Run
from app.graphs.stages import stage_repeats
from app.ops import OP_CODE
from app.ops.collective import COLLECTIVE_OPS
from app.tables.workload import BACKWARD, FORWARD, PHASES, UPDATE, Bools, Floats, Ints, Workload

STEP_PHASES = (*PHASES, "communication")
_COLLECTIVES = [OP_CODE[op.name] for op in COLLECTIVE_OPS]
_GATHER = OP_CODE["all_gather"]

# PyTorch eager: the host needs this long to launch an operator, and kernels that follow one another on the device have
# this gap between them. In a captured graph (CUDA graph) the host launches nothing, and gaps are in the measured rows.
EAGER_HOST_S, EAGER_GAP_S = 6e-6, 3e-6


class Schedule(NamedTuple):
    """A step on g GPUs.

    step_s    float64 [g], seconds
    phases_s  float64 [4, g], by STEP_PHASES; communication is what computation waits for; they sum to the step
    bubble_s  float64 [g], how long the average pipeline stage idles
    rows_s    float64 [n, g], device seconds of each row in a step, over all its runs and stages
    """

    step_s: Floats
    phases_s: Floats
    bubble_s: Floats
    rows_s: Floats


class _Stage(NamedTuple):
    """One stage, seconds, float64 [g] each.

    Its passes (forward and backward of its microbatches) and its update, what each waits for collectives, and what
    the exchange of gradients adds behind the last backward.
    """

    forward: Floats
    backward: Floats
    waited: Floats
    update: Floats
    waited_update: Floats
    exchange: Floats

    @property
    def passes(self) -> Floats:
        """Forward and backward with their collectives."""
        return self.forward + self.backward + self.waited


def schedule(
    w: Workload,
    latency_s: Floats,
    host_s: Floats | float,
    run: Run,
    *,
    gap_s: Floats | float = 0.0,
    transfer_s: Floats | float = 0.0,
) -> Schedule:
    """Time of a step.

    latency_s [n, g] is of one launch of a row on each GPU; host_s [g] what the host needs per launch (0: captured);
    gap_s [g] what a launch costs the device; transfer_s [g] passing activations from a stage to the next.
    """
    g = latency_s.shape[1]
    host, gap, transfer = (np.broadcast_to(np.asarray(s, dtype=np.float64), (g,)) for s in (host_s, gap_s, transfer_s))
    seconds = latency_s + gap
    micro = run.parallelism.microbatches * run.accumulation
    blocks = _Blocks(w, seconds, host)
    split = stage_repeats(w, run.parallelism.pipeline)
    every = run.parallelism.zero >= 2  # gradients are scattered as they come: no room to sum them up whole
    if len(split) == 1:
        one = _stage(w, blocks, split[0], passes=micro, every=every)
        phases, bubble = _phases([one], one.forward, one.backward, one.waited + one.exchange), np.zeros(g)
    else:
        stages = [_stage(w, blocks, repeats, passes=1, every=every) for repeats in split]
        phases, bubble = _piped(stages, transfer, micro, ways=2 if (w.phase == BACKWARD).any() else 1)
    once = np.where(w.phase == UPDATE, 1.0, micro)
    return Schedule(phases.sum(axis=0), phases, bubble, (w.runs * once)[:, None] * seconds)


class _Blocks:
    """Every block once: its pace with the exchange of gradients and without, and what it waits for collectives."""

    def __init__(self, w: Workload, seconds: Floats, host: Floats) -> None:
        count, gathers = w.ops.column("count"), w.ops.kind == _GATHER
        collective = np.isin(w.ops.kind, _COLLECTIVES) & ~w.overlapped
        waited = np.where(collective, count, 0.0)[:, None] * seconds
        bounds = np.searchsorted(w.block, np.arange(len(w.repeats) + 1)).tolist()
        self.g = len(host)
        self.parts: list[list[int]] = [[], [], []]
        self.full, self.alone, self.waited = [], [], []
        for block, (a, b) in enumerate(pairwise(bounds)):
            rows = Launches(seconds[a:b], host, count[a:b], w.overlapped[a:b], ~gathers[a:b])
            exchanged = rows.beside & rows.waits
            self.full.append(pace_of(rows))
            self.alone.append(pace_of(_kept(rows, ~exchanged)) if exchanged.any() else self.full[-1])
            self.waited.append(waited[a:b].sum(axis=0))
            if a < b:
                self.parts[w.phase[a]].append(block)


def _kept(rows: Launches, keep: Bools) -> Launches:
    return Launches(rows.seconds[keep], rows.host, rows.launches[keep], rows.beside[keep], rows.waits[keep])


def _sequence(blocks: _Blocks, paces: list[Pace], runs: list[float], phase: int) -> Pace:
    """A phase: its blocks in order, each as often as it runs."""
    pace = still(blocks.g)
    for block in blocks.parts[phase]:
        pace = pace.then(paces[block].times(runs[block]))
    return pace


def _stage(w: Workload, blocks: _Blocks, repeats: Floats, *, passes: int, every: bool) -> _Stage:
    """A stage that runs each forward block `repeats` times; gradients are exchanged in `every` pass or the last."""
    runs = repeats[w.origin].tolist()
    forward, backward, update = (_sequence(blocks, blocks.full, runs, phase) for phase in (FORWARD, BACKWARD, UPDATE))
    alone = backward if every else _sequence(blocks, blocks.alone, runs, BACKWARD)
    begun = forward.then(alone).times(passes - 1).move(start(blocks.g))
    between = forward.move(begun)
    done = backward.move(between)
    joined = State(done.host, np.maximum(done.device, done.link), done.link)
    ended = update.move(joined)
    waited = [
        sum((runs[block] * blocks.waited[block] for block in blocks.parts[phase]), np.zeros(blocks.g))
        for phase in (FORWARD, BACKWARD, UPDATE)
    ]
    # The passes before the last take their phases in the last one's proportion.
    last = done.device - begun.device
    scale = np.divide(done.device, last, out=np.ones_like(last), where=last > 0)
    return _Stage(
        (between.device - begun.device) * scale - passes * waited[FORWARD],
        (done.device - between.device) * scale - passes * waited[BACKWARD],
        passes * (waited[FORWARD] + waited[BACKWARD]),
        ended.device - joined.device - waited[UPDATE],
        waited[UPDATE],
        joined.device - done.device,
    )


def _phases(stages: list[_Stage], forward: Floats, backward: Floats, communication: Floats) -> Floats:
    """Phases [4, g]: the passes given, then the slowest update."""
    update = np.array([stage.update + stage.waited_update for stage in stages])
    slowest = update.argmax(axis=0)
    waited = _of([stage.waited_update for stage in stages], slowest)
    return np.array([forward, backward, update.max(axis=0) - waited, communication + waited])


def _of(values: list[Floats], which: Ints) -> Floats:
    """The value of one stage for each GPU."""
    chosen: Floats = np.array(values)[which, np.arange(len(which))]
    return chosen


def _piped(stages: list[_Stage], transfer: Floats, micro: int, *, ways: int) -> tuple[Floats, Floats]:
    """Phases [4, g] of a pipeline, and its average stage's bubble; `ways` 2: activations there, gradients back."""
    stages = [stage for stage in stages if stage.passes.any()]
    passes = np.array([stage.passes for stage in stages])
    slowest = passes.argmax(axis=0)
    forward, backward, waited = (
        sum(part, np.zeros_like(transfer)) + (micro - 1) * _of(list(part), slowest)
        for part in zip(*((stage.forward, stage.backward, stage.waited) for stage in stages), strict=True)
    )
    hops = (len(stages) - 1) + (micro - 1 if len(stages) > 1 else 0)
    # The first stage ends last; the others exchange gradients while those before them still run backward.
    ahead = np.cumsum([transfer * 0.0, *(stage.backward + transfer for stage in stages[:-1])], axis=0)
    exchange = np.array([stage.exchange for stage in stages]) - ahead
    communication = waited + ways * hops * transfer + np.maximum(exchange.max(axis=0), 0.0)
    bubble = passes.sum(axis=0) + (micro - 1) * passes.max(axis=0) - micro * passes.mean(axis=0)
    return _phases(stages, forward, backward, communication), bubble
