"""Errors of ConvMeter on measured networks, as in the paper's tables 1 to 3: R2, RMSE, NRMSE and MAPE.

Each run (a device, software and phase; in timm's benchmarks also a layout and compilation) is a platform of its own,
as in the paper. There are three protocols: `family` holds out all ResNets, say (stricter than the paper), `network` one
network (as the paper does), and `gpu` fits to the other GPUs with the same layout and phase. Times are predicted as
served: not below the hardware limit, which also stands in where a predictor gives no time.
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
from app.predictors.papers.convmeter.predictor import ConvMeter, PlainConvMeter
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools, Floats
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from evaluation.measured_networks import Names, NetworkRuns
from evaluation.operators import NO_EVIDENCE

Result = dict[str, Any]

PREDICTORS = (ConvMeter, PlainConvMeter)
PROTOCOLS = ("family", "network", "gpu")
ALL = "all"
MS_PER_S = 1e3


class HeldOutTimes(NamedTuple):
    """Times of n held-out rows.

    measured_s   float64 [n], seconds
    predicted_s  float64 [n], seconds, as served
    unsupported  bool [n], rows whose time is the hardware limit, as the predictor gives none
    """

    measured_s: Floats
    predicted_s: Floats
    unsupported: Bools


def evaluate_convmeter(
    networks: Sequence[NetworkRuns],
    protocols: Sequence[str] = PROTOCOLS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Return a result per protocol, run, predictor and family (ALL: the families together)."""
    gpus = GpuTable.from_specs(load_seed_specs())
    cells: list[Result] = []
    for data in networks:
        for run in np.unique(data.batch_of).tolist():
            rows = np.flatnonzero(data.batch_of == run)
            progress(f"{run} {data.runs.dtype}: {len(rows)} rows")
            for protocol in protocols:
                for predictor in PREDICTORS:
                    times = _held_out(predictor, data, rows, protocol, gpus)
                    if times is not None:
                        about = {
                            "held_out": protocol,
                            "run": run,
                            "dtype": data.runs.dtype,
                            "predictor": predictor.name,
                        }
                        cells += [about | cell for cell in scored(times, data.family[rows])]
    return cells


def published() -> list[Result]:
    """Return the errors that the paper states in its text."""
    cells: list[Result] = json.loads((SEED_DATA / "papers" / "convmeter.json").read_text("utf-8"))["cells"]
    return cells


def _held_out(
    predictor: type[ConvMeter], data: NetworkRuns, rows: NDArray[np.intp], protocol: str, gpus: GpuTable
) -> HeldOutTimes | None:
    """Return the times of all rows of a run, each by a fit without it; None if there are no rows to fit to."""
    if protocol == "gpu":
        train = _other_gpus(data, rows)
        return _predicted(predictor, data.runs.take(train), data.runs.take(rows), gpus) if len(train) else None
    run = data.take(rows)
    fold = run.family if protocol == "family" else run.name
    times = HeldOutTimes(run.runs.rows.latency_s, np.empty(len(rows)), np.empty(len(rows), dtype=np.bool_))
    for name in np.unique(fold):
        out = fold == name
        test = _predicted(predictor, run.runs.take(np.flatnonzero(~out)), run.runs.take(np.flatnonzero(out)), gpus)
        times.predicted_s[out], times.unsupported[out] = test.predicted_s, test.unsupported
    return times


def _other_gpus(data: NetworkRuns, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of other GPUs with the layout, compilation and phase of `rows`, with any software."""
    configuration = _configuration(data.batch_of)
    gpu = data.runs.rows.gpu
    return np.flatnonzero((configuration == configuration[rows[0]]) & (gpu != gpu[rows[0]]))


def _configuration(batch_of: Names) -> Names:
    """Return the layout, compilation and phase of every row, str [n]."""
    return np.array([" ".join(words.split()[2:]) for words in batch_of.tolist()])


def _predicted(predictor: type[ConvMeter], train: OperatorRuns, test: OperatorRuns, gpus: GpuTable) -> HeldOutTimes:
    """Return the times of the rows `test` by a predictor fitted to `train`."""
    i, j = np.arange(len(test)), test.rows.gpu
    limit = hardware_limit(test.rows.ops, gpus, i, j).latency_s
    try:
        fitted = predictor().fit_operators([train], gpus)
        latency_s = fitted.predict(test.rows.ops, gpus, i, j, evidence=NO_EVIDENCE).latency_s
    except NotTrained:
        latency_s = np.full(len(test), np.nan)
    return HeldOutTimes(test.rows.latency_s, np.fmax(latency_s, limit), np.isnan(latency_s))


def scored(times: HeldOutTimes, family: Names) -> Iterator[Result]:
    """Return a result over all rows, then one per family; `family` is str [n]."""
    yield {"family": ALL, **scores(times)}
    for name in np.unique(family).tolist():
        members = family == name
        yield {"family": name, **scores(HeldOutTimes(*(column[members] for column in times)))}


def scores(times: HeldOutTimes) -> Result:
    """Return R2, RMSE in milliseconds, NRMSE (RMSE over the measured range), MAPE and median error in percent.

    R2 and NRMSE are None if all measured times are equal.
    """
    error = times.predicted_s - times.measured_s
    relative = np.abs(error / times.measured_s)
    spread = ((times.measured_s - times.measured_s.mean()) ** 2).sum()
    rmse, measured_range = float(np.sqrt((error**2).mean())), float(np.ptp(times.measured_s))
    return {
        "n": len(error),
        "r2": round(1.0 - float((error**2).sum() / spread), 3) if spread > 0 else None,
        "rmse_ms": round(MS_PER_S * rmse, 3),
        "nrmse": round(rmse / measured_range, 3) if measured_range > 0 else None,
        "mape": round(100.0 * float(relative.mean()), 2),
        "median_ape": round(100.0 * float(np.median(relative)), 2),
        "unanswered": int(times.unsupported.sum()),
    }
