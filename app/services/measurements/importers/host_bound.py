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


def host_bound(gpu: Ints, kernel: Ints, latency: Floats) -> Bools:
    """Return the rows of one operator that the host bounds, bool [n], by their GPU, kernel and time, [n] each."""
    bound = np.zeros(len(latency), dtype=np.bool_)
    for here in np.unique(gpu):
        floors = {
            code: float(np.quantile(latency[(gpu == here) & (kernel == code)], _FLOOR))
            for code in np.unique(kernel[gpu == here]).tolist()
        }
        least = min(floors.values())
        for code, floor in floors.items():
            if floor > _ABOVE * least:
                bound |= (gpu == here) & (kernel == code) & (latency < _NEAR * floor)
    return bound
