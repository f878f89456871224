"""Made-up measured operators: OperatorRuns from shapes, GPUs and a rule for the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, OperatorRuns
from app.tables.ops import OpTable
from tests.unit.operators import operators

Time = Callable[[OpTable, GpuTable, Any], Any]
Names = Callable[[OpTable, Any], Sequence[str]]


def measured(
    op: str,
    shapes: Any,
    gpus: GpuTable,
    on: Sequence[int],
    time: Time,
    *,
    dtype: str = "fp32",
    kernel: Names | None = None,
) -> OperatorRuns:
    """Every shape on every GPU row of `on`; `kernel` names the kernel of every row."""
    table = operators(op, *shapes, dtype=dtype)
    rows = np.tile(np.arange(len(table)), len(on))
    gpu = np.repeat(np.array(on, dtype=np.intp), len(table))
    ops = table.take(rows)
    latency = np.asarray(time(ops, gpus, gpu), dtype=np.float64)
    n = len(rows)
    found = kernel(ops, gpu) if kernel else []
    names = tuple(dict.fromkeys(found))
    code = np.array([names.index(name) for name in found], dtype=np.intp) if found else np.full(n, -1)
    blank = np.full((3, n), np.nan)
    return OperatorRuns(
        op, dtype, Measurements(ops, gpu, latency), np.zeros(n, dtype=np.intp), code, blank, blank,
        np.arange(n, dtype=np.uint64), ("made up",), names,
    )  # fmt: skip


def no_evidence(ops: OpTable) -> Evidence:
    """Nothing measured."""
    none = np.empty(0, dtype=np.intp)
    return Evidence(Measurements(ops.take(none), none, np.empty(0)), none)


def random_shapes(
    names: Sequence[str], count: int, *, low: int = 32, high: int = 4096, seed: int = 0, step: int = 1
) -> list[dict[str, float]]:
    """Dimensions log-uniform between `low` and `high`, whole multiples of `step`, which divides `low`."""
    draw = np.random.default_rng(seed)
    drawn = step * np.rint(np.exp(draw.uniform(np.log(low), np.log(high), (count, len(names)))) / step)
    return [dict(zip(names, row, strict=True)) for row in drawn.tolist()]
