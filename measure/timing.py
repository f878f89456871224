"""Timing of one point: warm-up, repetitions in trials, and the spread between trials.

CUDA graphs capture calls once and replay them at little host cost, as in serving stacks.

On CUDA it uses device events. Before each repetition the L2 is flushed by writing a buffer of twice its size. For an
eager stack the device then idles until the host launches, so that the launch counts; for others the host runs ahead
during the flush, and only device time counts, without what events add to the launch of a graph. On a CPU it uses the
process clock, with warm caches as between the layers of a network.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from measure.device import Device
from measure.point import Prepared

_WARM_UPS = 3


def replayed(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that replays `run` on the current stream; `run` must not depend on the host."""
    for _ in range(_WARM_UPS):
        run()
    _raise_if_waits(run)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()

    def replay() -> object:
        # The graph uses the tensors of `run`, which must stay alive.
        return graph.replay(), run

    return replay


def _raise_if_waits(run: Callable[[], Any]) -> None:
    """Raise RuntimeError if `run` synchronises the host with the device, as grouped products do on many GPUs.

    Its capture would fail half way, and leave the process unusable.
    """
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Least and most warm-ups, and seconds: an idle GPU takes some milliseconds to reach its clock.
WARM_UPS, WARM_UP_S = (1, 20), (0.02, 0.3)
TRIALS = (3, 10)
# Seconds per trial, and of all trials if a repetition takes longer than a trial. A GPU's repetitions vary less than
# those of a CPU, which other processes share.
TRIAL_S, LONGEST_S = {"cpu": 0.01, "cuda": 0.005}, 2.0
MOST_REPETITIONS = 100
# Launches, in one graph, of the operator that shows what events add, and repetitions.
_CHAIN, _CHAIN_REPETITIONS = 50, 100
_NS = 1e9
_PER_EVENT = 1e3


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured time, seconds.

    latency_s  median over trials of the median repetition
    std_s      standard deviation between trials
    spread     interquartile range of the trials over their median
    runs       launches of the workload in total
    phases_s   median per phase
    """

    latency_s: float
    std_s: float
    spread: float
    runs: int
    phases_s: Mapping[str, float]


class Clock:
    """Times repetitions on one device, in seconds."""

    def __init__(self, device: Device) -> None:
        self.kind, self.is_cuda = device.kind, device.kind == "cuda"
        if self.is_cuda:
            cache = torch.cuda.get_device_properties(0).L2_cache_size
            self._flushed = torch.empty(2 * cache, dtype=torch.int8, device=device.handle)

    def repetitions(self, prepared: Prepared, count: int, *, eager: bool) -> list[list[float]]:
        """Return the seconds of every phase of `count` repetitions, [count][phases]."""
        if not self.is_cuda:
            return [_on_host(prepared) for _ in range(count)]
        events = [self._on_device(prepared, eager) for _ in range(count)]
        torch.cuda.synchronize()
        added_s = 0.0 if eager else self.events_s
        seconds = [[a.elapsed_time(b) / _PER_EVENT - added_s for a, b in pairwise(row)] for row in events]
        return [[each / prepared.launches for each in row] for row in seconds]

    @cached_property
    def events_s(self) -> float:
        """Seconds that the events around a graph add to it: 2 us on an H200, where the smallest operator takes 1 us."""
        one = torch.ones(1, device=self._flushed.device)

        def median_s(count: int) -> float:
            replay = replayed(lambda: [one + one for _ in range(count)])
            return statistics.median(self._between_events(replay) for _ in range(_CHAIN_REPETITIONS))

        return added_by_events_s(median_s(1), median_s(_CHAIN), _CHAIN)

    def _between_events(self, run: Callable[[], object]) -> float:
        """Return the seconds of a run that was just run, hence from warm caches, while the host runs ahead."""
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()
        run()
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        return float(before.elapsed_time(after)) / _PER_EVENT

    def _on_device(self, prepared: Prepared, eager: bool) -> list[torch.cuda.Event]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(prepared.phases) + 1)]
        if prepared.rest_s:  # even a sleep of no time lets another process run
            time.sleep(prepared.rest_s)
        if prepared.cold:
            self._flushed.zero_()
        if eager:
            torch.cuda.synchronize()
        events[0].record()
        for event, run in zip(events[1:], prepared.phases.values(), strict=True):
            run()
            event.record()
        return events


def added_by_events_s(single_s: float, chain_s: float, count: int) -> float:
    """Return what events add to a graph, from the seconds of graphs with one launch and with `count` of the same."""
    return (count * single_s - chain_s) / (count - 1)


def _on_host(prepared: Prepared) -> list[float]:
    time.sleep(prepared.rest_s)
    stamps = [time.perf_counter_ns()]
    for run in prepared.phases.values():
        run()
        stamps.append(time.perf_counter_ns())
    return [(after - before) / (_NS * prepared.launches) for before, after in pairwise(stamps)]


def measure(clock: Clock, prepared: Prepared, *, eager: bool) -> Timing:
    """Warm up, run the trials, and return the timing; raises any error of a phase."""
    once = _warmed_up(clock, prepared, eager)
    count = max(1, min(MOST_REPETITIONS, round(TRIAL_S[clock.kind] / once)))
    trials = max(TRIALS[0], min(TRIALS[1], round(LONGEST_S / (once * count))))
    rows: list[list[float]] = []
    began = time.perf_counter()
    # Stop early on a machine that turns out slower than its warm-up.
    while len(rows) < trials and (len(rows) < TRIALS[0] or time.perf_counter() - began < LONGEST_S):
        rows.append(_medians(clock.repetitions(prepared, count, eager=eager)))
    totals = [row[-1] for row in rows]
    latency = statistics.median(totals)
    quarter, _, three_quarters = statistics.quantiles(totals, n=4, method="inclusive")
    phases = dict(zip(prepared.phases, _columns(rows), strict=False))
    return Timing(
        latency,
        statistics.stdev(totals),
        (three_quarters - quarter) / latency,
        len(rows) * count * prepared.launches,
        {name: statistics.median(times) for name, times in phases.items()},
    )


def _warmed_up(clock: Clock, prepared: Prepared, eager: bool) -> float:
    """Warm up, and return the seconds of one repetition including flush and wait."""
    began = lap = time.perf_counter()
    count = 0
    while not _is_warm(count, lap - began):
        before = lap
        clock.repetitions(prepared, 1, eager=eager)
        lap, count = time.perf_counter(), count + 1
    return max(lap - before, 1e-9)


def _is_warm(count: int, seconds: float) -> bool:
    least, most = zip(WARM_UPS, WARM_UP_S, strict=True)
    return (count >= least[0] and seconds >= most[1]) or (count >= most[0] and seconds >= least[1])


def _medians(repetitions: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of every phase, then that of their sum."""
    return [statistics.median(column) for column in (*_columns(repetitions), [sum(row) for row in repetitions])]


def _columns(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]
