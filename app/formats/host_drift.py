"""Estimate host drift: launch overhead that grows with the age of a measuring process.

In NeuSight's files of convolutions the shortest time rises steadily from the first row to the last, from 59 to 355 us
on the A100 and from 108 to 800 on the P100, while sizes come in random order: launching takes longer as the process
ages. No row is shorter than a launch at its time, and launch time never falls, so a launch takes at most the minimum of
all later rows. The growth of that minimum is subtracted.
"""

from __future__ import annotations

import numpy as np

from app.tables.arrays import Floats, Ints

# The last rows of a process share one estimate, because few later rows remain to bound it.
LAST_ROWS = 100


def host_drift(latency: Floats, process: Ints) -> Floats:
    """Return the growth since the first row of each `process` [n], for times [n] in measuring order."""
    host_drift = np.zeros(len(latency))
    for number in np.unique(process):
        # Invalid times are refused elsewhere.
        rows = np.flatnonzero((process == number) & (latency > 0.0) & np.isfinite(latency))
        host_drift[rows] = launch_growth(latency[rows])
    return host_drift


def launch_growth(latency: Floats) -> Floats:
    """Return by how much the minimum time has risen at each row of one process, float64 [n]."""
    least = np.minimum.accumulate(latency[::-1])[::-1]
    least[-LAST_ROWS:] = latency[-LAST_ROWS:].min(initial=np.inf)
    risen: Floats = least - least[:1]
    return risen
