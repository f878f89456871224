"""PM2Lat's tables II and VI, with our figures beside them where the data have the GPU, the layer and the dtype.

Of each GPU's rows a fifth is held out at random and the rest learned from, as in the paper, whose 1,000 samples are
random shapes too; only rows within its ranges of dimensions are asked. Its A100 has 40 GB; the BF16 rows are of an
80 GB one. The rows are of other software, and of other measurements: neighbours, not a repetition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config import SEED_DATA
from app.engine.curated import load_seed_specs
from app.evaluation.operator_cells import read_cells
from app.evaluation.operators import NO_EVIDENCE
from app.ops import OP_CODE, OPS
from app.predictors import BY_NAME
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import HELD_OUT, chosen

Result = dict[str, Any]

PREDICTORS = ("kernel_table", "auto")
NOT_MEASURED = "not measured"
# With fewer rows asked a mean says nothing.
LEAST_ROWS = 10
_VECTOR = tuple(op.name for op in OPS if op.group == "elementwise")


class Layer(NamedTuple):
    """A row of the paper's tables as our operators, the most that it asks of their dimensions, and where it is."""

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


def evaluate_pm2lat(folder: Path, progress: Callable[[str], None] = lambda line: None) -> list[Result]:
    """The cells of both tables: what was published, and `kernel_table` and `auto`, None where nothing was measured."""
    study: dict[str, Any] = json.loads((SEED_DATA / "papers" / "pm2lat.json").read_text("utf-8"))
    gpus = GpuTable.from_specs(load_seed_specs())
    runs = list(_runs(folder, gpus))
    held = [chosen(run.key, HELD_OUT) for run in runs]
    taught = [run.take(np.flatnonzero(~out)) for run, out in zip(runs, held, strict=True)]
    asked = [run.take(np.flatnonzero(out)) for run, out in zip(runs, held, strict=True)]
    errors: dict[str, list[NDArray[np.float64]]] = {}
    for name in PREDICTORS:
        progress(f"{name} learns {sum(map(len, taught)):,} rows")
        predictor: Any = BY_NAME[name]
        errors[name] = [
            _errors(fitted, run, gpus) for fitted in [predictor().fit_operators(taught, gpus)] for run in asked
        ]
    return [cell | _ours(cell, asked, errors, gpus) for cell in study["cells"]]


def _runs(folder: Path, gpus: GpuTable) -> Iterator[OperatorRuns]:
    """Rows of the tables' operators on the paper's GPUs."""
    wanted = {(op, dtype) for layer in LAYERS.values() for op in layer.ops for dtype in layer.dtypes}
    rows = [gpus.ids.index(gpu) for names in GPUS.values() for gpu in names]
    for cell in read_cells(folder):
        here = np.flatnonzero(np.isin(cell.runs.rows.gpu, rows))
        if (cell.runs.op, cell.runs.dtype) in wanted and len(here):
            yield cell.runs.take(here)


def _errors(predictor: Any, run: OperatorRuns, gpus: GpuTable) -> NDArray[np.float64]:
    """Relative errors in percent, [n]; rows not supported are at the hardware limit, as they are served."""
    i = np.arange(len(run))
    limit = hardware_limit(run.rows.ops, gpus, i, run.rows.gpu).latency_s
    found = predictor.predict(run.rows.ops, gpus, i, run.rows.gpu, evidence=NO_EVIDENCE).latency_s
    answer = np.where(np.isnan(found), limit, np.maximum(found, limit))
    return 100.0 * np.abs(answer / run.rows.latency_s - 1.0)


def _ours(
    cell: Result, asked: Sequence[OperatorRuns], errors: Mapping[str, Sequence[NDArray[np.float64]]], gpus: GpuTable
) -> Result:
    """Our figures for one cell of the paper's."""
    layer, names = LAYERS.get((cell["table"], cell["layer"])), GPUS.get(cell["gpu"], ())
    rows = [gpus.ids.index(gpu) for gpu in names]
    used = [
        _within(run, layer) & np.isin(run.rows.gpu, rows)
        if layer and run.op in layer.ops and run.dtype == cell.get("dtype", run.dtype)
        else np.zeros(len(run), dtype=bool)
        for run in asked
    ]
    n = int(sum(mine.sum() for mine in used))
    if n < LEAST_ROWS:
        return {"n": 0, "on": None, **dict.fromkeys(PREDICTORS)}
    on = sorted({gpus.ids[gpu] for run, mine in zip(asked, used, strict=True) for gpu in run.rows.gpu[mine]})
    figures = {
        name: round(float(np.concatenate([one[mine] for one, mine in zip(errors[name], used, strict=True)]).mean()), 1)
        for name in PREDICTORS
    }
    return {"n": n, "on": ", ".join(on), **figures}


def _within(run: OperatorRuns, layer: Layer) -> Bools:
    """Rows in the paper's range of dimensions."""
    fields = OPS[OP_CODE[run.op]].fields
    inside = np.ones(len(run), dtype=bool)
    for name, most in layer.most.items():
        inside &= (run.rows.ops.column(name) <= most) if name in fields else True
    return inside


def lines(cells: Sequence[Result]) -> list[str]:
    """Both tables as text."""
    columns = ("neusight", "pm2lat", *PREDICTORS)
    head = f"{'table':<7}{'dtype':<7}{'layer':<19}{'gpu':<7}" + "".join(f"{name:>14}" for name in columns)
    return [f"{head}{'n':>7}  measured on", *(_line(cell, columns) for cell in cells)]


def _line(cell: Result, columns: Sequence[str]) -> str:
    where = f"{cell['table']:<7}{cell.get('dtype', '-'):<7}{cell['layer']:<19}{cell['gpu']:<7}"
    return where + "".join(f"{_figure(cell, name):>14}" for name in columns) + f"{cell['n']:>7}  {cell['on'] or ''}"


def _figure(cell: Result, name: str) -> str:
    figure = cell.get(name)
    if figure is None:
        return NOT_MEASURED if name in PREDICTORS else "-"
    return f"{figure:.1f}"
