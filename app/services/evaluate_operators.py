"""How far untrained `auto` is from measured operators.

Its constants were set by hand while looking at the same data sets, so the figures are in-sample (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.services.engine import Engine
from app.services.operator_files import Measured, read_operators
from app.services.seed import load_seed_specs
from app.services.workloads import NOTHING_MEASURED
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence

Cell = Mapping[str, Any]
Floats = NDArray[np.float64]
NO_EVIDENCE = Evidence(NOTHING_MEASURED, np.empty(0, dtype=np.intp))
COVERAGE = 0.8


class Answers(NamedTuple):
    """What was asked of one operator in one dtype, [n] each; `over` is log(measured / predicted)."""

    op: str
    dtype: str
    gpu: NDArray[np.str_]
    over: Floats
    over_roofline: Floats
    inside: NDArray[np.bool_]


def evaluate_untrained(folder: Path) -> list[Cell]:
    """One cell per operator, dtype and GPU, and one over all GPUs, of the files that `folder` holds."""
    catalog = Catalog(load_seed_specs())
    engine = Engine(catalog, GpuTable.from_specs(catalog.specs))
    return [cell for measured in read_operators(folder) for cell in _cells(_answers(engine, measured))]


def _answers(engine: Engine, measured: Measured) -> Answers:
    ids = {name: engine.catalog.resolve(name).id for name in set(measured.gpu)}
    row = {name: engine.gpus.ids.index(gpu) for name, gpu in ids.items()}
    on = np.array([row[name] for name in measured.gpu], dtype=np.intp)
    i = np.arange(len(on))
    auto = engine.predict(measured.table, engine.gpus, i, on, predictor="auto", coverage=COVERAGE, evidence=NO_EVIDENCE)
    return Answers(
        measured.op,
        measured.dtype,
        np.array([ids[name] for name in measured.gpu]),
        np.log(measured.latency_s / auto.latency_s),
        np.log(measured.latency_s / auto.limit_s),
        (auto.low_s <= measured.latency_s) & (measured.latency_s <= auto.high_s),
    )


def _cells(answers: Answers) -> Iterator[Cell]:
    for gpu in ["all", *np.unique(answers.gpu).tolist()]:
        rows = np.flatnonzero((answers.gpu == gpu) | (gpu == "all"))
        error, roofline = (100.0 * np.abs(np.expm1(-over[rows])) for over in (answers.over, answers.over_roofline))
        yield {
            "op": answers.op,
            "dtype": answers.dtype,
            "gpu": gpu,
            "n": len(rows),
            "mape": float(error.mean()),
            "median_ape": float(np.median(error)),
            "median_ratio": float(np.exp(-np.median(answers.over[rows]))),
            "coverage_80": float(100.0 * answers.inside[rows].mean()),
            "roofline_mape": float(roofline.mean()),
        }


def lines(cells: Sequence[Cell]) -> list[str]:
    """The cells as a table."""
    names = ("mape", "median_ape", "median_ratio", "coverage_80", "roofline_mape")
    head = f"{'operator':<18}{'dtype':<18}{'gpu':<24}{'n':>8}" + "".join(f"{name:>15}" for name in names)
    return [
        head,
        *(
            f"{cell['op']:<18}{cell['dtype']:<18}{cell['gpu']:<24}{cell['n']:>8}"
            + "".join(f"{cell[name]:>15.2f}" for name in names)
            for cell in cells
        ),
    ]
