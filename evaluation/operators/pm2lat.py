"""PM2Lat's tables II and VI, with our errors beside them where the data have the GPU, the layer and the dtype.

A random fifth of each GPU's rows is held out and the rest is for training, as in the paper, whose 1,000 samples are
random shapes too; test rows are within its ranges of dimensions. The paper's A100 has 40 GB; our BF16 rows are of an
80 GB one. The rows come from other software and other measurements, so this is no replication of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.catalogue import load_seed_specs
from app.ops import OP_CODE, OPS
from app.predictors import BY_NAME
from app.tables.arrays import Bools
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from evaluation.data import read_cells
from evaluation.operators.evaluate import served_s
from evaluation.operators.folds import HELD_OUT, sampled
from evaluation.render import Report, Table
from evaluation.study import Progress, Result, paper

PREDICTORS = ("kernel_table", "auto")
NOT_MEASURED = "not measured"
# Least number of test rows of a mean.
LEAST_ROWS = 10
_VECTOR = tuple(op.name for op in OPS if op.group == "elementwise")


class Layer(NamedTuple):
    """A row of the paper's tables: our operators for it, their largest dimensions, and the dtypes."""

    ops: tuple[str, ...]
    most: Mapping[str, float]
    dtypes: tuple[str, ...]


LAYERS = {
    ("II", "bmm"): Layer(("bmm",), dict.fromkeys("bmnk", 1024.0), ("fp32", "bf16")),
    ("II", "linear"): Layer(("linear",), {"m": 8192.0, "n": 8192.0, "k": 2000.0}, ("fp32", "bf16")),
    ("II", "softmax"): Layer(("softmax",), dict.fromkeys("bh", 16384.0), ("fp32", "bf16")),
    ("II", "vector"): Layer(_VECTOR, dict.fromkeys("bh", 16384.0), ("fp32", "bf16")),
    ("VI", "flash attention"): Layer(("attention_prefill",), {}, ("bf16",)),
}
GPUS = {"T4": ("tesla-t4",), "L4": ("nvidia-l4",), "A100": ("a100-pcie-40gb", "a100-sxm4-80gb")}


def evaluate_pm2lat(folder: Path, progress: Progress = lambda line: None) -> list[Result]:
    """Return the cells of both tables with the errors of PREDICTORS, None where there are too few measured rows."""
    gpus = GpuTable.from_specs(load_seed_specs())
    runs = list(_runs(folder, gpus))
    held = [sampled(run.key, HELD_OUT) for run in runs]
    train = [run.take(np.flatnonzero(~out)) for run, out in zip(runs, held, strict=True)]
    test = [run.take(np.flatnonzero(out)) for run, out in zip(runs, held, strict=True)]
    errors: dict[str, list[NDArray[np.float64]]] = {}
    for name in PREDICTORS:
        progress(f"{name} trains on {sum(map(len, train)):,} rows")
        predictor: Any = BY_NAME[name]
        fitted = predictor().fit_operators(train, gpus)
        errors[name] = [100.0 * np.abs(served_s(fitted, run, gpus)[0] / run.rows.latency_s - 1.0) for run in test]
    return [cell | _ours(cell, test, errors, gpus) for cell in paper("pm2lat")["cells"]]


def _runs(folder: Path, gpus: GpuTable) -> Iterator[OperatorRuns]:
    """Return the rows of the tables' operators on the paper's GPUs."""
    in_tables = {(op, dtype) for layer in LAYERS.values() for op in layer.ops for dtype in layer.dtypes}
    rows = [gpus.ids.index(gpu) for names in GPUS.values() for gpu in names]
    for cell in read_cells(folder, {op for op, _ in in_tables}):
        here = np.flatnonzero(np.isin(cell.runs.rows.gpu, rows))
        if (cell.runs.op, cell.runs.dtype) in in_tables and len(here):
            yield cell.runs.take(here)


def _ours(
    cell: Result, test: Sequence[OperatorRuns], errors: Mapping[str, Sequence[NDArray[np.float64]]], gpus: GpuTable
) -> dict[str, Any]:
    """Return our side of one cell of the paper's tables: number of test rows, their GPUs and mean errors, percent."""
    layer, names = LAYERS.get((cell["table"], cell["layer"])), GPUS.get(cell["gpu"], ())
    rows = [gpus.ids.index(gpu) for gpu in names]
    used = [
        _within(run, layer) & np.isin(run.rows.gpu, rows)
        if layer and run.op in layer.ops and run.dtype == cell.get("dtype", run.dtype)
        else np.zeros(len(run), dtype=bool)
        for run in test
    ]
    n = int(sum(mine.sum() for mine in used))
    if n < LEAST_ROWS:
        return {"n": 0, "on": None, **dict.fromkeys(PREDICTORS)}
    on = sorted({gpus.ids[gpu] for run, mine in zip(test, used, strict=True) for gpu in run.rows.gpu[mine]})
    figures = {
        name: round(
            float(np.concatenate([error[mine] for error, mine in zip(errors[name], used, strict=True)]).mean()), 1
        )
        for name in PREDICTORS
    }
    return {"n": n, "on": ", ".join(on), **figures}


def _within(run: OperatorRuns, layer: Layer) -> Bools:
    """Return whether each row is in the paper's range of dimensions, bool [n]."""
    fields = OPS[OP_CODE[run.op]].fields
    inside = np.ones(len(run), dtype=bool)
    for name, most in layer.most.items():
        inside &= (run.rows.ops.column(name) <= most) if name in fields else True
    return inside


def report(cells: Sequence[Result]) -> Report:
    """Return both tables, the paper's errors beside ours."""
    columns = {
        **dict.fromkeys(("table", "dtype", "layer", "gpu"), ""),
        **dict.fromkeys(("neusight", "pm2lat", *PREDICTORS), ".1f"),
        "n": "d",
        "measured on": "",
    }
    rows = [
        [NOT_MEASURED if name in PREDICTORS and cell[name] is None else cell.get(name) for name in columns]
        for cell in ({**cell, "measured on": cell["on"] or ""} for cell in cells)
    ]
    return Report(blocks=[Table("", columns, rows)], body={"study": "pm2lat", "cells": cells})
