"""Design of the operator suite: a Sobol sequence per operator over the logarithm of its sizes.

Half of the sizes are multiples of 64, as in networks, the others arbitrary. Rows too large for the device's memory, or
too long at its peaks, are dropped. Rows are ordered in rounds: a round has every operator (a third of the similar
element-wise ones), with dtypes and phases alternating between rounds, and one step of each K sweep (products of fixed m
and n, hence fixed waves, with doubling K, to which PM2Lat fits throughput). Any prefix covers the operators, and a few
rounds their dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from app.measure.device import Device
from app.measure.operators.op_table import table_of
from app.ops import OP_CODE, OPS
from app.ops.kinds import kinds_of, work_of
from app.ops.suite import SWEEP_DEPTHS, SWEEP_SIDES, Axis, Log, Sizes, Space
from app.tables.complete import complete
from app.tables.gpus import GpuSpec
from app.tables.ops import DTYPES

DRAWS = 256
ALIGNED, FP8_ALIGNED = 64, 16
# Largest working set as a share of the device's memory, and longest time at its peaks, seconds.
MEMORY_SHARE, LONGEST_S = 0.2, 0.03
Row = dict[str, Any]
# Those with most points first.
SPACES: Mapping[str, Space] = {
    op.name: op.suite for op in sorted(OPS, key=lambda op: -op.suite.share if op.suite else 0) if op.suite is not None
}


def rows(device: Device) -> list[Row]:
    """Return the workloads, in the measurements form, in measuring order."""
    dealt = [(space.share, space.every, _drawn(op, space, device.dtypes)) for op, space in SPACES.items()]
    dealt += [(1, 1, _swept(op, space, device.dtypes)) for op, space in SPACES.items() if space.swept is not None]
    kept = iter(fits([row for _, _, series in dealt for row in series], device).tolist())
    queues = [(share, every, [row for row in series if next(kept)]) for share, every, series in dealt]
    turns = [
        (k % every + i // share * every, k, i)  # round, queue, place in it
        for k, (share, every, queue) in enumerate(queues)
        for i in range(len(queue))
    ]
    return [queues[k][2][i] for _, k, i in sorted(turns)]


def _drawn(op: str, space: Space, dtypes: Sequence[str]) -> list[Row]:
    """Return the rows of one operator, with alternating dtypes and phases that start differently per operator."""
    phases = ("forward", "backward") if space.back else ("forward",)
    turns = [(dtype, phase) for phase in phases for dtype in dtypes if dtype in space.dtypes]
    turns = [turn for turn in turns if turn != ("fp8", "backward")]
    seed = OP_CODE[op]
    points = qmc.Sobol(len(space.axes), rng=seed).random(DRAWS)
    found = []
    for k, point in enumerate(points if turns else ()):
        dtype, phase = turns[(k + seed) % len(turns)]
        # The alignment alternates with every pass over dtypes and phases, so that each gets both.
        step = ALIGNED if (k // len(turns)) % 2 else 1
        at = zip(space.axes.items(), point, strict=True)
        sizes = space.finish({name: _size(axis, share, step) for (name, axis), share in at})
        if sizes is not None and dtype == "fp8":
            sizes |= {side: -(-sizes[side] // FP8_ALIGNED) * FP8_ALIGNED for side in space.aligned}
        if sizes is not None:
            found.append(_row(op, dtype, phase, sizes))
    return found


def _size(axis: Axis, at: float, step: int) -> Any:
    """Return the value at `at` (0 to 1) of an axis, a multiple of `step` if the axis allows."""
    if not isinstance(axis, Log):
        return axis.options[int(at * len(axis.options))]
    raw = axis.low * (axis.high / axis.low) ** at
    step = max(step, axis.step) if raw >= step else axis.step
    return max(step, round(raw / step) * step)


def _swept(op: str, space: Space, dtypes: Sequence[str]) -> list[Row]:
    """Return K sweeps of products, one square size per dtype."""
    batch: Sizes = dict(space.swept or {})
    known = [dtype for dtype in dtypes if dtype in space.dtypes]
    return [
        _row(op, dtype, "forward", batch | {"m": side, "n": side, "k": depth})
        for side in SWEEP_SIDES
        for dtype in known
        for depth in SWEEP_DEPTHS
    ]


def _row(op: str, dtype: str, phase: str, sizes: Sizes) -> Row:
    return {"kind": "operator", "op": op, **sizes, "dtype": dtype, "phase": phase}


def fits(wanted: Sequence[Row], device: Device) -> NDArray[np.bool_]:
    """Return True for rows that fit into the device's memory and time limit, bool [rows]."""
    spec, table = complete(device.description), table_of(wanted)
    work = work_of(table, kinds_of(table))
    rates = np.array([_rate(device, spec, dtype) for dtype in DTYPES])[table.dtype]
    seconds = np.maximum(work.flops / rates, work.bytes / spec.memory_bandwidth_bytes_per_s)
    possible: NDArray[np.bool_] = seconds <= LONGEST_S
    return possible & (work.working_set_bytes <= MEMORY_SHARE * device.memory_bytes)


def _rate(device: Device, spec: GpuSpec, dtype: str) -> float:
    """Return FLOP/s in a format: measured, else the peak of its fastest pipe, else infinite."""
    peaks = [rate for pipe, rate in spec.peak_flops.items() if pipe.removesuffix("_tensor") == dtype]
    return device.rates.get(dtype) or max(peaks, default=np.inf)
