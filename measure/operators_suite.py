"""The suite `operators`: every operator of the API in PyTorch, over a space-filling design of its sizes.

The design is a Sobol sequence per operator over the logarithm of its sizes. Half of the sizes are multiples of 64, as
in networks, the others arbitrary. Rows too large for the device's memory, or too long at its peaks, are dropped. Rows
are ordered in rounds: a round has every operator (a third of the similar element-wise ones), with dtypes and phases
alternating between rounds, and one step of each K sweep (products of fixed m and n, hence fixed waves, with doubling K,
to which PM2Lat fits throughput). Any prefix covers the operators, and a few rounds their dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.attention.bias  # which `torch` alone does not bring
from numpy.typing import NDArray
from scipy.stats import qmc

from app.errors import BadInput
from app.ops import MIXED_FIELDS, OP_CODE, OPS, kinds_of, work_of
from app.ops.base import Dim
from app.ops.suite import SWEEP_DEPTHS, SWEEP_SIDES, Axis, Family, Log, Made, Sizes, Space
from app.tables.complete import complete
from app.tables.gpus import GpuSpec
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from measure.device import Device, torch_dtypes
from measure.point import Point, Prepared
from measure.timing import replayed

Row = dict[str, Any]


def table_of(rows: Sequence[Row]) -> OpTable:
    """Return the rows as an OpTable, in order."""
    kind = np.array([OP_CODE[row["op"]] for row in rows], dtype=np.intp)
    dtype = np.array([DTYPE_CODE[row["dtype"]] for row in rows], dtype=np.intp)
    dims = np.full((len(MIXED_FIELDS), len(rows)), np.nan)
    for k, row in enumerate(rows):
        for dim in OPS[kind[k]].dims:
            dims[[MIXED_FIELDS[name] for name in dim.columns], k] = _cell(dim, row)
    return OpTable(kind, dtype, np.zeros(len(rows), dtype=np.intp), MIXED_FIELDS, dims)


def _cell(dim: Dim, row: Row) -> Any:
    """Return the value of a field's columns: one number, or both of a pair."""
    if dim.name == "backward":
        return float(row.get("phase") == "backward")
    if dim.name == "burst":
        return float(row.get("run_state") == "burst")
    value = row.get(dim.name, dim.default)
    if isinstance(value, str):
        return dim.choices.index(value) if dim.choices else dim.read(value)  # type: ignore[misc]
    return value


DRAWS = 256
ALIGNED, FP8_ALIGNED = 64, 16
# Largest working set as a share of the device's memory, and longest time at its peaks, seconds.
MEMORY_SHARE, LONGEST_S = 0.2, 0.03
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
    drawn = []
    for k, point in enumerate(points if turns else ()):
        dtype, phase = turns[(k + seed) % len(turns)]
        # The alignment alternates with every pass over dtypes and phases, so that each gets both.
        step = ALIGNED if (k // len(turns)) % 2 else 1
        at = zip(space.axes.items(), point, strict=True)
        sizes = space.finish({name: _size(axis, share, step) for (name, axis), share in at})
        if sizes is not None and dtype == "fp8":
            sizes |= {side: -(-sizes[side] // FP8_ALIGNED) * FP8_ALIGNED for side in space.aligned}
        if sizes is not None:
            drawn.append(_row(op, dtype, phase, sizes))
    return drawn


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


def fits(candidates: Sequence[Row], device: Device) -> NDArray[np.bool_]:
    """Return True for rows that fit into the device's memory and time limit, bool [rows]."""
    spec, table = complete(device.description), table_of(candidates)
    work = work_of(table, kinds_of(table))
    rates = np.array([_rate(device, spec, dtype) for dtype in DTYPES])[table.dtype]
    seconds = np.maximum(work.flops / rates, work.bytes / spec.memory_bandwidth_bytes_per_s)
    possible: NDArray[np.bool_] = seconds <= LONGEST_S
    return possible & (work.working_set_bytes <= MEMORY_SHARE * device.memory_bytes)


def _rate(device: Device, spec: GpuSpec, dtype: str) -> float:
    """Return FLOP/s in a format: measured, else the peak of its fastest pipe, else infinite."""
    peaks = [rate for pipe, rate in spec.peak_flops.items() if pipe.removesuffix("_tensor") == dtype]
    return device.rates.get(dtype) or max(peaks, default=np.inf)


@dataclass(frozen=True, slots=True)
class Tensors:
    """Random tensors on one device in one format: zeros would draw less power, and run faster, than real data."""

    device: torch.device
    dtype: Any
    torch: Any = torch

    @classmethod
    def of(cls, device: Device, dtype: str) -> Tensors:
        """Return the tensors of an API dtype; tf32 is fp32 with rounded products."""
        is_tf32 = dtype == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32
        return cls(device.handle, torch_dtypes()[dtype])

    def normal(self, *shape: int) -> Any:
        """Return normally distributed numbers."""
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def positive(self, *shape: int) -> Any:
        """Return numbers between 0.5 and 1.5."""
        return torch.rand(shape, dtype=self.dtype, device=self.device) + 0.5

    def whole(self, below: int, *shape: int) -> Any:
        """Return int64 numbers from 0 to below `below`."""
        return torch.randint(below, shape, device=self.device)


def backward(made: Made) -> Callable[[], Any]:
    """Return a call that computes the gradients of a forward pass, which runs once, here."""
    for tensor in made.learned:
        tensor.requires_grad_()
    result = made.forward()
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, made.learned, gradient, retain_graph=True)


_REPLAYED = ("bf16", "fp16", "fp8")


def points(device: Device) -> Sequence[Point]:
    """Return all points of the suite, the most useful first."""
    return [point_of(device, row) for row in rows(device)]


def is_measured(workload: Mapping[str, Any]) -> bool:
    """Return True if PyTorch supports the operator in its format."""
    return workload["dtype"] in torch_dtypes() and _family(workload["op"], workload["dtype"]) is not None


def _family(op: str, dtype: str) -> Family | None:
    """Return the builder of the operator's rows in a format; None if PyTorch does not support it."""
    if op not in SPACES:
        return None
    return SPACES[op].build_fp8 if dtype == "fp8" else SPACES[op].build


def point_of(device: Device, workload: Mapping[str, Any]) -> Point:
    """Return an operator row as a point; raises BadInput for an unsupported one.

    Forward in narrow formats runs in a CUDA graph, as in serving stacks; the rest runs as PyTorch launches it, unless
    the device runs all in graphs.
    """
    family = _family(workload["op"], workload["dtype"])
    if family is None or not is_measured(workload):
        raise BadInput(f"{workload['op']} in {workload['dtype']} is not measured here.")
    is_served = workload["dtype"] in _REPLAYED and workload.get("phase") != "backward"
    software = device.replayed if is_served or device.in_graphs else device.software
    return Point("operators", workload, partial(_prepared, device, workload, family, software), software)


def _prepared(device: Device, workload: Mapping[str, Any], family: Family, software: str) -> Prepared:
    made = family(Tensors.of(device, workload["dtype"]), workload)
    run = backward(made) if workload.get("phase") == "backward" else made.forward
    return Prepared({"": run if software == device.software else replayed(run)})
