"""From row latencies to the time of a step: launches, streams, microbatches, pipeline stages.

Within a block, over its repetitions and from block to block, time moves in closed form (`pace`). A step is

    microbatches - 1 passes forward and backward, one more whose gradients are exchanged beside its backward, the wait
    for that exchange, and the update.

A pipeline of P stages with M microbatches takes, in GPipe (Huang et al. 2019) as in 1F1B (PipeDream-flush, Narayanan
et al. 2021), once through all stages and M - 1 times the slowest one (GPipe: the slowest forward and the slowest
backward); they differ in what they keep in memory. Activations (backward: their gradients) take `transfer_s` from a
stage to the next: GPipe waits for them on the way there and back only, 1F1B also in between, where neighbours work for
one another in turn. Even stages idle (P - 1) / (M + P - 1) of the step. Simulated microbatch by microbatch, GPipe takes
just that, and 1F1B on uneven stages a few percent less.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from app.graphs.many import by_row
from app.graphs.pace import Launches, Pace, State, pace_of, paces_of, start, still
from app.graphs.run import Run
from app.graphs.stages import stage_repeats
from app.ops import OP_CODE, OPS
from app.ops.collective import COLLECTIVE_OPS
from app.tables.workload import BACKWARD, FORWARD, PHASES, UPDATE, Bools, Floats, Workload

STEP_PHASES = (*PHASES, "communication")
_IS_COLLECTIVE = np.array([op in COLLECTIVE_OPS for op in OPS])
_GATHER = OP_CODE["all_gather"]

# PyTorch eager: the host needs this long to launch an operator, and kernels that follow one another on the device have
# this gap between them. In a captured graph (CUDA graph) the host launches nothing, and gaps are in the measured rows.
EAGER_HOST_S, EAGER_GAP_S = 6e-6, 3e-6
# Half-width in log space of what a host needs: a slow one, or one behind much Python, takes five times as long. People
# report 10 to 45 us a kernel of small networks (pytorch/benchmark 706, sam2 768).
EAGER_HOST_SPREAD = 1.6


class Schedule(NamedTuple):
    """A step on g GPUs.

    step_s    float64 [g], seconds
    phases_s  float64 [4, g], by STEP_PHASES; communication is what computation waits for; they sum to the step
    bubble_s  float64 [g], how long the average pipeline stage idles
    rows_s    float64 [n, g], device seconds of each row in a step, over all its runs and stages
    launches  float64 [1 or g], operators that the host of the average pipeline stage launches
    """

    step_s: Floats
    phases_s: Floats
    bubble_s: Floats
    rows_s: Floats
    launches: Floats


class _Stage(NamedTuple):
    """One stage, seconds.

    spent     float64 [3, g], by PHASES: its microbatches' passes and its update, waiting for collectives included
    waited    float64 [3, g], that waiting
    exchange  float64 [g], what the exchange of gradients adds behind the last backward
    """

    spent: Floats
    waited: Floats
    exchange: Floats


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

    latency_s [n, g] is of one launch of a row on each GPU (on one of `w` in c configurations: g = c); host_s [g] or
    [n, g] what the host needs per launch (0: captured); gap_s alike what a launch costs the device; transfer_s [g]
    passing activations from a stage to the next.
    """
    g = latency_s.shape[1]
    host = np.broadcast_to(np.asarray(host_s, dtype=np.float64), latency_s.shape)
    transfer = np.broadcast_to(np.asarray(transfer_s, dtype=np.float64), (g,))
    seconds = latency_s + gap_s
    micro = run.parallelism.microbatches * run.accumulation
    blocks = _Blocks(w, seconds, host)
    split = stage_repeats(w, run.parallelism.pipeline)
    every = run.parallelism.zero >= 2  # gradients are scattered as they come: no room to sum them up whole
    if len(split) == 1:
        one = _stage(w, blocks, split[0], passes=micro, every=every)
        phases, bubble = _phases(*one), np.zeros(g)
    else:
        alike, which = np.unique(split, axis=0, return_inverse=True)
        distinct = [_stage(w, blocks, repeats, passes=1, every=every) for repeats in alike]
        stages = [distinct[k] for k in which.ravel().tolist()]
        both = bool((w.phase == BACKWARD).any())
        in_turn = both and run.parallelism.schedule == "1f1b"
        phases, bubble = _piped(stages, transfer, micro, ways=1 + both, in_turn=in_turn)
    once = np.where(w.phase == UPDATE, 1.0, micro)
    runs = by_row(w.runs * once)
    return Schedule(phases.sum(axis=0), phases, bubble, runs * seconds, runs.sum(axis=0) / len(split))


class _Blocks:
    """Every block once: its pace with the exchange of gradients and without, and what it waits for collectives.

    full, alone  float64 [6, blocks, g], as Pace has them; a block without rows does nothing
    waited       float64 [blocks, g]; None where nothing waits
    phase        int [blocks], code into PHASES
    """

    def __init__(self, w: Workload, seconds: Floats, host: Floats) -> None:
        count, gathers = by_row(w.ops.column("count")), w.ops.kind == _GATHER
        rows = Launches(seconds, host, count, w.overlapped, ~gathers)
        blocks, self.g = w.repeats.shape[-1], host.shape[1]
        used, starts = np.unique(w.block, return_index=True)
        self.phase = np.full(blocks, -1)
        self.phase[used] = w.phase[starts]
        self.full = np.repeat(np.array(still(self.g))[:, None], blocks, axis=1)
        if len(used):
            self.full[:, used] = paces_of(rows, starts)
        self.alone = self.full
        if w.overlapped.any():
            self.alone = self.full.copy()
            for block in np.unique(w.block[w.overlapped]).tolist():
                here = w.block == block
                self.full[:, block] = pace_of(_kept(rows, here))
                self.alone[:, block] = pace_of(_kept(rows, here & ~(rows.beside & rows.waits)))
        collective = _IS_COLLECTIVE[w.ops.kind] & ~w.overlapped
        self.waited = None
        if collective.any():
            self.waited = np.zeros((blocks, self.g))
            np.add.at(self.waited, w.block[collective], (count * seconds)[collective])


def _kept(rows: Launches, keep: Bools) -> Launches:
    return Launches(rows.seconds[keep], rows.host[keep], rows.launches[keep], rows.beside[keep], rows.waits[keep])


def _sequence(blocks: _Blocks, paces: Floats, runs: Floats, phase: int) -> Pace:
    """A phase: its blocks in order, each as often as it runs, [blocks, 1 or g]."""
    here = blocks.phase == phase
    if not here.any():
        return still(blocks.g)
    each = np.array(Pace(*paces[:, here]).times(runs[here]))
    return reduce(Pace.then, (Pace(*each[:, k]) for k in range(each.shape[1])))


def _waited(blocks: _Blocks, runs: Floats, phase: int) -> Floats:
    """What a phase waits for collectives, [g]."""
    here = blocks.phase == phase
    if blocks.waited is None or not here.any():
        return np.zeros(blocks.g)
    waited: Floats = np.cumsum(runs[here] * blocks.waited[here], axis=0)[-1]
    return waited


def _stage(w: Workload, blocks: _Blocks, repeats: Floats, *, passes: int, every: bool) -> _Stage:
    """A stage that runs each forward block `repeats` times; gradients are exchanged in `every` pass or the last."""
    runs = by_row(repeats[..., w.origin])
    forward, backward, update = (_sequence(blocks, blocks.full, runs, phase) for phase in (FORWARD, BACKWARD, UPDATE))
    begun = start(blocks.g)
    if passes > 1:
        alone = backward if every else _sequence(blocks, blocks.alone, runs, BACKWARD)
        begun = forward.then(alone).times(passes - 1).move(begun)
    between = forward.move(begun)
    done = backward.move(between)
    joined = State(done.host, np.maximum(done.device, done.link), done.link)
    ended = update.move(joined)
    waited = [_waited(blocks, runs, phase) for phase in (FORWARD, BACKWARD, UPDATE)]
    # The passes before the last take their phases in the last one's proportion.
    last = done.device - begun.device
    scale = np.divide(done.device, last, out=np.ones_like(last), where=last > 0)
    spent = [
        (between.device - begun.device) * scale,
        (done.device - between.device) * scale,
        ended.device - joined.device,
    ]
    waits = np.array([passes * waited[FORWARD], passes * waited[BACKWARD], waited[UPDATE]])
    return _Stage(np.array(spent), waits, joined.device - done.device)


def _phases(spent: Floats, waited: Floats, communication: Floats) -> Floats:
    """Phases [4, g]: waiting for collectives [3, g] is taken out of the others [3, g]."""
    return np.concatenate([spent - waited, (waited.sum(axis=0) + communication)[None]])


def _piped(stages: list[_Stage], transfer: Floats, micro: int, *, ways: int, in_turn: bool) -> tuple[Floats, Floats]:
    """Phases [4, g] of a pipeline, and its average stage's bubble.

    `ways` 2: activations there, gradients back; `in_turn`: forward and backward of microbatches alternate.
    """
    spent, waited = (np.array(part) for part in zip(*((stage.spent, stage.waited) for stage in stages), strict=True))
    passes = spent[:, FORWARD] + spent[:, BACKWARD]
    used = (spent > 0).any(axis=1).sum(axis=0)  # too few layers leave some empty
    slowest = spent.argmax(axis=0)
    if in_turn:
        slowest[[FORWARD, BACKWARD]] = passes.argmax(axis=0)
    # Once through all stages and again through the slowest; updates run side by side.
    again = np.array([micro - 1.0, micro - 1.0, 1.0])[:, None]
    through = np.array([1.0, 1.0, 0.0])[:, None]
    phase, gpu = np.indices(slowest.shape)
    spent, waited = (through * part.sum(axis=0) + again * part[slowest, phase, gpu] for part in (spent, waited))
    hops = used - 1 + np.where(in_turn and used > 1, micro - 1, 0)
    # The first stage ends last; the others exchange gradients while those before them still run backward.
    ahead = np.cumsum([transfer * 0.0, *(stage.spent[BACKWARD] + transfer for stage in stages[:-1])], axis=0)
    exchange = np.maximum((np.array([stage.exchange for stage in stages]) - ahead).max(axis=0), 0.0)
    bubble = spent[FORWARD] + spent[BACKWARD] - micro * passes.sum(axis=0) / used
    return _phases(spent, waited, ways * hops * transfer + exchange), bubble
