"""What a process that measures adds to its rows, more and more of it.

In NeuSight's files of convolutions the shortest time rises steadily from the first row to the last, from 59 to 355 us
on the A100 and from 108 to 800 on the P100, while sizes come in random order: launching takes longer as the process
grows old. No row is shorter than a launch at its time, which never falls, so a launch takes at most the least of all
later rows; what that has grown by is taken off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# The last rows of a process share what it had grown by: few rows to come tell too little.
LAST_ROWS = 100


def drift(latency: Floats, process: Ints) -> Floats:
    """What each `process` [n] grew slower by since its first row, of times [n] in the order measured, in their unit."""
    found = np.zeros(len(latency))
    for one in np.unique(process):
        # What cannot be a time is refused elsewhere.
        rows = np.flatnonzero((process == one) & (latency > 0.0) & np.isfinite(latency))
        found[rows] = grown(latency[rows])
    return found


def grown(latency: Floats) -> Floats:
    """By how much the shortest time possible has risen at each row of one process, float64 [n]."""
    least = np.minimum.accumulate(latency[::-1])[::-1]
    least[-LAST_ROWS:] = latency[-LAST_ROWS:].min(initial=np.inf)
    risen: Floats = least - least[:1]
    return risen
