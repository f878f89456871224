"""Kernels whose measured times say nothing: they fall as often as they grow with any of the sizes.

TensorRT-LLM's sparse prefill on a B200 takes 44 ms for 16 prompts with 2 heads, and 11 with 4.
"""

from __future__ import annotations

import numpy as np

from app.tables.arrays import Bools, Floats, Ints

# A time that falls to less than this share of it where a size grows, and the share of such falls, of each size, from
# which on a kernel is unsteady.
_FALL, _OFTEN = 1.0 / 1.5, 0.1
# Least pairs of neighbours in a size for a share.
_LEAST_PAIRS = 20


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
