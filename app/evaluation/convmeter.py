"""ConvMeter on measured networks, in the form of the paper's tables 1 to 3: R2, RMSE, NRMSE and MAPE.

Every run (a device, software and phase; of timm's benchmarks also a layout and compilation) is a platform of its own,
as in the paper. Three ways to hold out: `family` (all ResNets, say: stricter than the paper), `network` (the paper's
way) and `gpu` (fitted to the other GPUs with the same layout and phase). An answer is as it would be served: at the
hardware limit where there is none (plain least squares below zero).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.config import SEED_DATA
from app.engine.curated import load_seed_specs
from app.errors import NotTrained
from app.evaluation.measured_networks import Names, NetworkRuns
from app.evaluation.operators import NO_EVIDENCE
from app.predictors.papers.convmeter.predictor import ConvMeter, PlainConvMeter
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools, Floats
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns

Result = dict[str, Any]

PREDICTORS = (ConvMeter, PlainConvMeter)
PROTOCOLS = ("family", "network", "gpu")
ALL = "all"
MS_PER_S = 1e3


class Asked(NamedTuple):
    """Rows that were held out, seconds measured and answered, float64 [n], and where there was no answer."""

    measured_s: Floats
    answered_s: Floats
    unanswered: Bools


def evaluate_convmeter(
    networks: Sequence[NetworkRuns],
    protocols: Sequence[str] = PROTOCOLS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """A cell per protocol, run, predictor and family (`all` of them together)."""
    gpus = GpuTable.from_specs(load_seed_specs())
    cells: list[Result] = []
    for data in networks:
        for run in np.unique(data.batch_of).tolist():
            rows = np.flatnonzero(data.batch_of == run)
            progress(f"{run} {data.runs.dtype}: {len(rows)} rows")
            for protocol in protocols:
                for predictor in PREDICTORS:
                    asked = _held_out(predictor, data, rows, protocol, gpus)
                    if asked is not None:
                        about = {
                            "held_out": protocol,
                            "run": run,
                            "dtype": data.runs.dtype,
                            "predictor": predictor.name,
                        }
                        cells += [about | cell for cell in scored(asked, data.family[rows])]
    return cells


def published() -> list[Result]:
    """The paper's own figures that its text has."""
    cells: list[Result] = json.loads((SEED_DATA / "papers" / "convmeter.json").read_text("utf-8"))["cells"]
    return cells


def _held_out(
    predictor: type[ConvMeter], data: NetworkRuns, rows: NDArray[np.intp], protocol: str, gpus: GpuTable
) -> Asked | None:
    """Every row of a run answered by what did not see it; None where nothing else was measured."""
    if protocol == "gpu":
        taught = _elsewhere(data, rows)
        return _answers(predictor, data.runs.take(taught), data.runs.take(rows), gpus) if len(taught) else None
    run = data.take(rows)
    of = run.family if protocol == "family" else run.name
    answers = Asked(run.runs.rows.latency_s, np.empty(len(rows)), np.empty(len(rows), dtype=np.bool_))
    for one in np.unique(of):
        out = of == one
        found = _answers(predictor, run.runs.take(np.flatnonzero(~out)), run.runs.take(np.flatnonzero(out)), gpus)
        answers.answered_s[out], answers.unanswered[out] = found.answered_s, found.unanswered
    return answers


def _elsewhere(data: NetworkRuns, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of other GPUs that were run alike, whatever their software."""
    alike = _alike(data.batch_of)
    gpu = data.runs.rows.gpu
    return np.flatnonzero((alike == alike[rows[0]]) & (gpu != gpu[rows[0]]))


def _alike(batch_of: Names) -> Names:
    """Layout, compilation and phase of every row."""
    return np.array([" ".join(words.split()[2:]) for words in batch_of.tolist()])


def _answers(predictor: type[ConvMeter], taught: OperatorRuns, asked: OperatorRuns, gpus: GpuTable) -> Asked:
    i, j = np.arange(len(asked)), asked.rows.gpu
    limit = hardware_limit(asked.rows.ops, gpus, i, j).latency_s
    try:
        fitted = predictor().fit_operators([taught], gpus)
        found = fitted.predict(asked.rows.ops, gpus, i, j, evidence=NO_EVIDENCE).latency_s
    except NotTrained:
        found = np.full(len(asked), np.nan)
    return Asked(asked.rows.latency_s, np.fmax(found, limit), np.isnan(found))


def scored(asked: Asked, family: Names) -> Iterator[Result]:
    """A cell of all rows, then one per family."""
    yield {"family": ALL, **scores(asked)}
    for one in np.unique(family).tolist():
        mine = family == one
        yield {"family": one, **scores(Asked(*(column[mine] for column in asked)))}


def scores(asked: Asked) -> Result:
    """R2, RMSE in milliseconds, the same over the range measured, MAPE and median in percent.

    R2 and NRMSE are None where nothing differs.
    """
    error = asked.answered_s - asked.measured_s
    relative = np.abs(error / asked.measured_s)
    spread = ((asked.measured_s - asked.measured_s.mean()) ** 2).sum()
    rmse, reach = float(np.sqrt((error**2).mean())), float(np.ptp(asked.measured_s))
    return {
        "n": len(error),
        "r2": round(1.0 - float((error**2).sum() / spread), 3) if spread > 0 else None,
        "rmse_ms": round(MS_PER_S * rmse, 3),
        "nrmse": round(rmse / reach, 3) if reach > 0 else None,
        "mape": round(100.0 * float(relative.mean()), 2),
        "median_ape": round(100.0 * float(np.median(relative)), 2),
        "unanswered": int(asked.unanswered.sum()),
    }
