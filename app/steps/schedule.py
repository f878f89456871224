"""Time of a step from row latencies: launches, streams, microbatches, pipeline stages.

Within a block, over its repetitions and from block to block, time advances in closed form (`pace`). A step consists of

    microbatches - 1 forward and backward passes, one more whose gradient exchange overlaps its backward, the wait for
    that exchange, and the update.

A pipeline of P stages with M microbatches takes one pass through all stages plus M - 1 times the slowest stage, in
GPipe (Huang et al. 2019; the slowest forward plus the slowest backward) as in 1F1B (PipeDream-flush, Narayanan et al.
2021); they differ in memory. With V chunks of layers per stage, interleaved, the first pass takes a V-th of the idle
time: stages wait for one chunk, not for a whole stage. Activations, and in backward their gradients, take `transfer_s`
between stages. GPipe waits for transfers only while the pipeline fills and drains; 1F1B also in between, where
neighbours alternate. Equal stages idle (P - 1) / (M + P - 1) of the step. In a simulation of every microbatch, GPipe
takes exactly this time and 1F1B on unequal stages a few percent less.

Progress of host, compute stream and communication stream over a sequence of rows, in closed form.

The state (h, d, c) is when the host, the device's compute stream and its communication stream become free. A row has
`count` launches of t seconds each, which the host issues `host` seconds apart. It advances the state as follows:

    compute row:          h' = h + count host; d' = d, then max(d', its launch) + t for each launch
    overlapped transfer:  the same on c, and not before d (a reduction sends computed data; a gather does not wait)

This is linear in (max, +) algebra (Baccelli et al. 1992), and so is any sequence of rows: a `Pace` of six numbers,

    h' = h + host;  d' = max(d + device, h + drain);  c' = max(c + link, d + send, h + push).

Compositions of paces are paces, and R repetitions of one have a closed form: a path through the repetitions spends some
on the host, then some on the device, then some on the link; its length is linear in these numbers, so the longest path
spends all repetitions on one of them.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.networks.exchanges import sends_gradients
from app.networks.run import Run
from app.ops import OP_CODE
from app.predictors.priors import SENDS
from app.steps.stages import stage_repeats
from app.tables.arrays import Bools, Floats, Ints
from app.tables.workload import BACKWARD, FORWARD, PHASES, UPDATE, Workload

_FITTED = Coefficients("steps")

NEVER = -np.inf


class State(NamedTuple):
    """Times at which host, device and communication stream become free, seconds, float64 [g] each."""

    host: Floats
    device: Floats
    link: Floats


class Pace(NamedTuple):
    """Advance of the state by a sequence of rows, seconds, float64 [g] each (the module's equations)."""

    host: Floats
    device: Floats
    link: Floats
    drain: Floats
    send: Floats
    push: Floats

    def then(self, after: Pace) -> Pace:
        """Return the pace of this sequence followed by `after`."""
        return Pace(
            self.host + after.host,
            self.device + after.device,
            self.link + after.link,
            np.maximum(self.drain + after.device, self.host + after.drain),
            np.maximum(self.send + after.link, self.device + after.send),
            np.maximum.reduce([self.push + after.link, self.drain + after.send, self.host + after.push]),
        )

    def times(self, repeats: float | Floats) -> Pace:
        """Return the pace of `repeats` repetitions, whole numbers that broadcast; 0 repetitions have the empty pace."""
        again = np.asarray(repeats) - 1.0
        never = np.where(again < 0.0, NEVER, 0.0)
        push = self.push + again * np.maximum(self.host, self.link)
        if (again > 0.0).any():
            slowest = np.maximum(np.maximum(self.host, self.device), self.link)
            push = np.maximum(push, np.where(again > 0.0, self.drain + self.send + (again - 1.0) * slowest, NEVER))
        return Pace(
            repeats * self.host,
            repeats * self.device,
            repeats * self.link,
            self.drain + again * np.maximum(self.host, self.device) + never,
            self.send + again * np.maximum(self.device, self.link) + never,
            push + never,
        )

    def move(self, state: State) -> State:
        """Return the state after these rows."""
        h, d, c = state
        return State(
            h + self.host,
            np.maximum(d + self.device, h + self.drain),
            np.maximum.reduce([c + self.link, d + self.send, h + self.push]),
        )


def start(g: int) -> State:
    """Return the initial state: all free at 0."""
    return State(*np.zeros((3, g)))


def still(g: int) -> Pace:
    """Return the pace of an empty sequence."""
    zero, never = np.zeros(g), np.full(g, NEVER)
    return Pace(zero, zero, zero, never, never, never)


class Launches(NamedTuple):
    """k rows of one block.

    seconds     float64 [k, g], device seconds per launch
    host        float64 [k, g] or [g], host seconds per launch
    launches    float64 [k, 1] or [k, g]
    overlapped  bool [k], True for communication that overlaps computation
    waits       bool [k], True if such communication waits for the computation before it
    """

    seconds: Floats
    host: Floats
    launches: Floats
    overlapped: Bools
    waits: Bools


def _ends(rows: Launches) -> tuple[Floats, Floats, Floats]:
    """Return when each row's last launch is issued, its device time and its earliest end, seconds, [k, g] each.

    A row's earliest end follows from its first launch and all device time, or from its last launch and one of them.
    """
    launched = np.cumsum(rows.launches * rows.host, axis=0)
    first = launched - np.maximum(rows.launches - 1.0, 0.0) * rows.host
    each = rows.launches * rows.seconds
    return launched, each, np.maximum(first + each, launched + np.minimum(each, rows.seconds))


def paces_of(rows: Launches, starts: Ints) -> Floats:
    """Return the paces of runs of compute rows, [6, runs, g] in the order of Pace; `starts`, int [runs], first rows."""
    launched, each, ends = _ends(rows)
    done = np.cumsum(each, axis=0)
    last = np.append(starts[1:], len(each)) - 1
    drain = np.maximum.reduceat(ends - done, starts)
    host, device = (np.diff(total[last], axis=0, prepend=0.0) for total in (launched, done))
    # Count from each run's first row.
    drain -= (launched - done)[last] - (host - device)
    zero, never = np.zeros_like(host), np.full_like(host, NEVER)
    return np.array([host, device, zero, device + drain, never, never])


def pace_of(rows: Launches) -> Pace:
    """Return the pace of rows some of which overlap the others."""
    launched, each, ends = _ends(rows)
    overlapped = rows.overlapped[:, None]
    sends = overlapped & (rows.launches > 0)  # with several configurations, some send nothing here
    done, sent = np.cumsum(np.where(overlapped, 0.0, each), axis=0), np.cumsum(np.where(overlapped, each, 0.0), axis=0)
    ready = np.maximum.accumulate(np.where(overlapped, NEVER, ends - done), axis=0)
    rest = np.where(sends, sent[-1] - sent, NEVER)  # link time that follows a row
    behind = np.where(sends & rows.waits[:, None], rest + each + done, NEVER)
    return Pace(
        launched[-1],
        done[-1],
        sent[-1],
        done[-1] + ready[-1],
        behind.max(axis=0),
        np.maximum((ends + rest).max(axis=0), (behind + ready).max(axis=0)),
    )


STEP_PHASES = (*PHASES, "communication")
_GATHER = OP_CODE["all_gather"]

# PyTorch eager: the gap between consecutive kernels, seconds. In a captured CUDA graph measured rows include the gaps.
EAGER_GAP_S = _FITTED.number("eager_gap_s")


class Schedule(NamedTuple):
    """Time of a step on g GPUs, seconds.

    step_s    float64 [g]
    phases_s  float64 [4, g], by STEP_PHASES, which sum to the step; communication: the time computation waits for it
    bubble_s  float64 [g], idle time of the average pipeline stage
    rows_s    float64 [n, g], device time of each row in a step, over all its runs and stages
    launches  float64 [1 or g], operators that the host of the average pipeline stage launches
    """

    step_s: Floats
    phases_s: Floats
    bubble_s: Floats
    rows_s: Floats
    launches: Floats

    def times(self, factor: Floats) -> Schedule:
        """Return the step with all its times so many times as long, [g]."""
        return Schedule(*(part * factor for part in self))._replace(launches=self.launches)

    def after(self, waited_s: Floats) -> Schedule:
        """Return the step after a wait of so many seconds, [g], which is part of its forward phase."""
        phases = self.phases_s.copy()
        phases[FORWARD] += waited_s
        return self._replace(step_s=self.step_s + waited_s, phases_s=phases)


class _Stage(NamedTuple):
    """Times of one pipeline stage, seconds.

    spent     float64 [3, g], by PHASES: passes of its microbatches and its update, including waits for collectives
    waited    float64 [3, g], these waits
    exchange  float64 [g], time of the gradient exchange that is not hidden by the last backward
    """

    spent: Floats
    waited: Floats
    exchange: Floats


def by_row(column: Floats) -> Floats:
    """Return row figures [n] or [c, n] as [n, 1] or [n, c], to broadcast with times [n, g] or [n, c]."""
    return np.atleast_2d(column).T


def schedule(
    w: Workload,
    latency_s: Floats,
    host_s: Floats | float,
    run: Run,
    *,
    gap_s: Floats | float = 0.0,
    transfer_s: Floats | float = 0.0,
) -> Schedule:
    """Return the time of a step.

    latency_s   float64 [n, g], seconds per launch of each row on each GPU; for c configurations on one GPU, g = c
    host_s      float64 [g] or [n, g], host seconds per launch (0: captured graph)
    gap_s       float64 [g] or [n, g], device seconds between launches
    transfer_s  float64 [g], seconds to pass activations to the next stage
    """
    g = latency_s.shape[1]
    host = np.broadcast_to(np.asarray(host_s, dtype=np.float64), latency_s.shape)
    transfer = np.broadcast_to(np.asarray(transfer_s, dtype=np.float64), (g,))
    seconds = latency_s + gap_s
    micro = run.parallelism.microbatches * run.accumulation
    blocks = _Blocks(w, seconds, host)
    split = stage_repeats(w, run.parallelism.pipeline)
    every = _scatters_always(run)
    if len(split) == 1:
        stage = _stage(w, blocks, split[0], passes=micro, every=every)
        phases, bubble = _phases(*stage), np.zeros(g)
    else:
        distinct, which = np.unique(split, axis=0, return_inverse=True)
        by_kind = [_stage(w, blocks, repeats, passes=1, every=every) for repeats in distinct]
        stages = [by_kind[k] for k in which.ravel().tolist()]
        both = bool((w.phase == BACKWARD).any())
        in_turn = both and run.parallelism.schedule == "1f1b"
        chunks = run.parallelism.virtual_pipeline if in_turn else 1
        phases, bubble = _piped(stages, transfer, micro, ways=1 + both, in_turn=in_turn, chunks=chunks)
    runs = by_row(runs_in_step(w, run))
    return Schedule(phases.sum(axis=0), phases, bubble, runs * seconds, runs.sum(axis=0) / len(split))


def runs_in_step(w: Workload, run: Run) -> Floats:
    """Return how often each row runs in a whole step over all pipeline stages, float64 [n] or [c, n]."""
    micro = run.parallelism.microbatches * run.accumulation
    last = (w.phase == UPDATE) | (sends_gradients(w) & (not _scatters_always(run)))
    runs: Floats = w.runs * np.where(last, 1.0, micro)
    return runs


def _scatters_always(run: Run) -> bool:
    """Whether gradients are exchanged in every pass, as no device holds all of them, and not in the last one alone."""
    return run.parallelism.zero >= 2


class _Blocks:
    """Pace and waits of one repetition of every block.

    full    float64 [6, blocks, g], paces in the order of Pace, with the gradient exchange
    alone   the same without the gradient exchange
    waited  float64 [blocks, g], seconds spent waiting for collectives; None if there are none
    phase   int [blocks], code into PHASES; -1 for a block without rows, which takes no time
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
            self.alone, sends = self.full.copy(), sends_gradients(w)
            for block in np.unique(w.block[w.overlapped]).tolist():
                here = w.block == block
                self.full[:, block] = pace_of(_select(rows, here))
                self.alone[:, block] = pace_of(_select(rows, here & ~sends))
        collective = SENDS[w.ops.kind] & ~w.overlapped
        self.waited = None
        if collective.any():
            self.waited = np.zeros((blocks, self.g))
            np.add.at(self.waited, w.block[collective], (count * seconds)[collective])


def _select(rows: Launches, keep: Bools) -> Launches:
    return Launches(rows.seconds[keep], rows.host[keep], rows.launches[keep], rows.overlapped[keep], rows.waits[keep])


def _sequence(blocks: _Blocks, paces: Floats, runs: Floats, phase: int) -> Pace:
    """Return the pace of a phase: its blocks in order, each repeated `runs` times, [blocks, 1 or g]."""
    here = blocks.phase == phase
    if not here.any():
        return still(blocks.g)
    each = np.array(Pace(*paces[:, here]).times(runs[here]))
    return reduce(Pace.then, (Pace(*each[:, k]) for k in range(each.shape[1])))


def _waited(blocks: _Blocks, runs: Floats, phase: int) -> Floats:
    """Return the seconds that a phase waits for collectives, [g]."""
    here = blocks.phase == phase
    if blocks.waited is None or not here.any():
        return np.zeros(blocks.g)
    waited: Floats = np.cumsum(runs[here] * blocks.waited[here], axis=0)[-1]
    return waited


def _stage(w: Workload, blocks: _Blocks, repeats: Floats, *, passes: int, every: bool) -> _Stage:
    """Return the times of a stage that runs each forward block `repeats` times.

    Gradients are exchanged in `every` pass, or only in the last one.
    """
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
    # Earlier passes split into phases in the proportion of the last one.
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
    """Return the phases [4, g]: waits for collectives [3, g] move from the others [3, g] to communication."""
    return np.concatenate([spent - waited, (waited.sum(axis=0) + communication)[None]])


def _piped(
    stages: list[_Stage], transfer: Floats, micro: int, *, ways: int, in_turn: bool, chunks: int
) -> tuple[Floats, Floats]:
    """Return the phases [4, g] of a pipeline, and the bubble [g] of its average stage, seconds.

    `ways` is 2 if gradients return as activations go; `in_turn`: forward and backward of microbatches alternate, and
    with several `chunks` of layers per stage transfers run beside the computation of another chunk.
    """
    spent, waited = (np.array(part) for part in zip(*((stage.spent, stage.waited) for stage in stages), strict=True))
    passes = spent[:, FORWARD] + spent[:, BACKWARD]
    used = (spent > 0).any(axis=1).sum(axis=0)  # with fewer layers than stages some are empty
    slowest = spent.argmax(axis=0)
    if in_turn:
        slowest[[FORWARD, BACKWARD]] = passes.argmax(axis=0)
    # One pass through all stages and micro - 1 through the slowest; with several chunks a stage waits for one of each
    # of the others. Updates run concurrently.
    again = np.array([micro - 1.0 / chunks, micro - 1.0 / chunks, 1.0])[:, None]
    through = np.array([1.0 / chunks, 1.0 / chunks, 0.0])[:, None]
    phase, gpu = np.indices(slowest.shape)
    spent, waited = (through * part.sum(axis=0) + again * part[slowest, phase, gpu] for part in (spent, waited))
    alternating = in_turn and chunks == 1
    hops = used - 1 + np.where(alternating & (used > 1), micro - 1, 0)
    # The first stage ends last; the others exchange gradients while the stages before them still run backward.
    ahead = np.cumsum([transfer * 0.0, *(stage.spent[BACKWARD] + transfer for stage in stages[:-1])], axis=0)
    exchange = np.maximum((np.array([stage.exchange for stage in stages]) - ahead).max(axis=0), 0.0)
    bubble = spent[FORWARD] + spent[BACKWARD] - micro * passes.sum(axis=0) / used
    return _phases(spent, waited, ways * hops * transfer + exchange), bubble
