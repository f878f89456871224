"""Waits and times that hold on a machine that does other things too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Far more than anything takes on an idle machine, and less than a test may.
PATIENCE_S = 90.0
# Measurements of which the least counts.
TRIES = 6


def until(holds: Callable[[], Any], within_s: float = PATIENCE_S, every_s: float = 0.05) -> Any:
    """Return what `holds` returns once it is true."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{found!r} after {within_s} s"
        time.sleep(every_s)
    return found


def least(measure: Callable[[], float], enough: float) -> float:
    """Return the least of some measurements, the first that is under `enough` if there is one.

    Other work on the machine makes one measurement larger; what is wrong in the code makes all of them larger.
    """
    taken: list[float] = []
    while len(taken) < TRIES and not (taken and min(taken) < enough):
        taken.append(measure())
    return min(taken)


def cpu_s(work: Callable[[], Any]) -> float:
    """Return the time that this process computes for `work`, on all of its threads: others do not lengthen it."""
    began = time.process_time()
    work()
    return time.process_time() - began
