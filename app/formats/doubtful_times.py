"""Rows whose measured time is not the device's: bound by the host, unsteady, or longer by host drift.

Host bound: a kernel's times then have a floor that no size falls below. vLLM 0.24 quantises by blocks in eager Python:
150 us on a B200, where the same products of other stacks take 5 us.

Unsteady: times fall as often as they grow with any of the sizes. TensorRT-LLM's sparse prefill on a B200 takes 44 ms
for 16 prompts with 2 heads, and 11 with 4.

Host drift: launch overhead that grows with the age of a measuring process. In NeuSight's files of convolutions the
shortest time rises steadily from the first row to the last, from 59 to 355 us on the A100 and from 108 to 800 on the
P100, while sizes come in random order. No row is shorter than a launch at its time, and launch time never falls, so a
launch takes at most the minimum of all later rows. The growth of that minimum is subtracted.
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
# A time that falls to less than this share of it where a size grows, and the share of such falls, of each size, from
# which on a kernel is unsteady.
_FALL, _OFTEN = 1.0 / 1.5, 0.1
# Least pairs of neighbours in a size for a share.
_LEAST_PAIRS = 20
# The last rows of a process share one estimate, because few later rows remain to bound it.
LAST_ROWS = 100


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
    least_of_larger: Floats = least[place]
    return least_of_larger


def unsteady(kernel: Ints, alike: Ints, sizes: Floats, latency: Floats) -> Bools:
    """Return the rows of unsteady kernels, bool [n], by their kernel, what else tells them apart, sizes and time.

    `kernel`, `alike`: codes, int [n]. `sizes`: float64 [sizes, n]. `latency`: float64 [n].
    """
    falls, pairs = (np.zeros((len(sizes), int(kernel.max(initial=0)) + 1)) for _ in range(2))
    for k, size in enumerate(sizes):
        fixed = [*np.delete(sizes, k, axis=0), alike, kernel]
        order = np.lexsort((size, *fixed))
        neighbours = np.ones(max(len(kernel) - 1, 0), dtype=np.bool_)
        for values in fixed:
            neighbours &= values[order[1:]] == values[order[:-1]]
        of, before, after = kernel[order[1:]][neighbours], order[:-1][neighbours], order[1:][neighbours]
        pairs[k] = np.bincount(of, minlength=pairs.shape[1])
        falls[k] = np.bincount(of, latency[after] < _FALL * latency[before], minlength=pairs.shape[1])
    compared = pairs >= _LEAST_PAIRS
    often = np.asarray(((falls > _OFTEN * pairs) | ~compared).all(axis=0) & compared.any(axis=0))
    rows: Bools = often[kernel]
    return rows


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
