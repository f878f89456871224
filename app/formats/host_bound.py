"""Rows whose time the host set, not the device: a kernel's times then have a floor that no size falls below.

vLLM 0.24 quantises by blocks in eager Python: 150 us on a B200, where the same products of other stacks take 5 us.
"""

from __future__ import annotations

import numpy as np

from app.tables.arrays import Bools, Floats, Ints

# A kernel is bound by the host if its floor is this much above that of the GPU's quickest kernel, and its rows are up
# to NEAR of the floor.
_ABOVE, _NEAR = 8.0, 2.0
# The floor is a low quantile: single rows are faster by chance.
_FLOOR = 0.01
# How much longer than a row of larger sizes a row of such a kernel takes from which on it waits for the host: devices
# themselves take somewhat longer where another tile or number of splits begins.
_LATE = 1.5


def host_bound(gpu: Ints, kernel: Ints, latency: Floats, alike: Ints, sizes: Floats) -> Bools:
    """Return the rows of one operator that the host bounds, bool [n], by their GPU, kernel, time and sizes.

    `gpu`, `kernel`, `alike`: codes, int [n], `alike` of all that tells rows of equal sizes apart. `latency`: float64
    [n]. `sizes`: float64 [sizes, n], which a device's time grows with. The host also delays rows far above its floor,
    at random: these take longer than larger ones, or are no larger than rows near the floor.
    """
    bound, slow = (np.zeros(len(latency), dtype=np.bool_) for _ in range(2))
    for here in np.unique(gpu):
        floors = {
            code: float(np.quantile(latency[(gpu == here) & (kernel == code)], _FLOOR))
            for code in np.unique(kernel[gpu == here]).tolist()
        }
        least = min(floors.values())
        for code, floor in floors.items():
            if floor > _ABOVE * least:
                rows = (gpu == here) & (kernel == code)
                slow |= rows
                bound |= rows & (latency < _NEAR * floor)
    most = np.where(bound, 0.0, _LATE * latency)
    for code in np.unique(alike[slow]):
        rows = np.flatnonzero(slow & (alike == code))
        most[rows] = _least_of_larger(sizes[:, rows], most[rows])
    late: Bools = slow & (latency > most)
    return late


def _least_of_larger(sizes: Floats, value: Floats) -> Floats:
    """Return the least `value` [n] of all rows no smaller in any of `sizes` [sizes, n], float64 [n]."""
    place = tuple(np.unique(size, return_inverse=True)[1] for size in sizes)
    least = np.full([int(at.max()) + 1 for at in place], np.inf)
    np.minimum.at(least, place, value)
    for axis in range(least.ndim):
        least = np.flip(np.minimum.accumulate(np.flip(least, axis), axis), axis)
    found: Floats = least[place]
    return found
