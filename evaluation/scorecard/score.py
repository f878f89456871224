"""Predictions of the scorecard's cases, and errors of cells: cases of one source, GPU, model and mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow.parquet as pq

from app.config import SHIPPED_MODELS
from app.engine.curated import load_seed_specs
from app.engine.engine import Engine
from app.engine.gpu_rows import Snapshot
from app.engine.versions import Stores, shipped_or_untrained
from app.errors import GpucastError, NotFound
from app.services.compare.compare import compare
from app.services.compare.request import read_compare
from app.services.dispatch import predict_workload
from app.tables.arrays import Floats
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.wire.predict_body import read_request
from app.wire.prediction_form import PredictResponse
from evaluation.scorecard.case import Case, Row, Source

FOLDER = "whole_models"
PREDICTOR, COVERAGE = "auto", 0.8
_MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Scored:
    """A case and its prediction in its unit; NaN with a reason if it could not be asked."""

    source: str
    case: Case
    predicted: float = np.nan
    low: float = np.nan
    high: float = np.nan
    reason: str = ""

    @property
    def error(self) -> float:
        """Relative error, percent."""
        return 100.0 * (self.predicted / self.case.measured - 1.0)

    @property
    def held(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low <= self.case.measured <= self.high


class Cell(NamedTuple):
    """Errors of the answered cases of a group, percent: median of the magnitude, bias (median), and coverage.

    factor  largest of predicted / measured and its inverse, of the median case
    """

    name: str
    cases: int
    answered: int
    median: float
    bias: float
    held: float
    factor: float


def shipped_snapshot(models: Path = SHIPPED_MODELS) -> Snapshot:
    """Return what an installation without a database of its own answers from; `models` has the trained predictors."""
    specs = load_seed_specs()
    gpus = GpuTable.from_specs(specs)
    ready = shipped_or_untrained(Stores(models, models), gpus, None, only={PREDICTOR})
    return Snapshot.of(Engine(Catalog(specs), gpus, ready.served))


def read_rows(folder: Path, source: Source) -> list[Row]:
    """Return the rows of a source's file. Raises NotFound without the file."""
    path = folder / FOLDER / f"{source.name}.parquet"
    if not path.is_file():
        raise NotFound(f"No {FOLDER}/{source.name}.parquet in {folder}.")
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def evenly(cases: Sequence[Case], most: int) -> list[Case]:
    """Return every case that cannot be asked, and of the others at most `most`, evenly spaced."""
    askable = [k for k, case in enumerate(cases) if case.parts]
    if len(askable) > most:
        chosen = np.linspace(0, len(askable) - 1, most).round().astype(int)
        askable = [askable[k] for k in dict.fromkeys(chosen.tolist())]
    kept = set(askable)
    return [case for k, case in enumerate(cases) if k in kept or not case.parts]


def score(
    folder: Path,
    source: Source,
    snapshot: Snapshot,
    most: int,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Scored]:
    """Return the predictions of a source's cases, of at most `most` of them."""
    every = list(source.cases(read_rows(folder, source)))
    cases = evenly(every, most)
    asked, askable = (sum(bool(case.parts) for case in some) for some in (cases, every))
    progress(f"{source.name}: {len(every)} cases, {askable} can be asked, {asked} are")
    known: dict[bytes, tuple[Floats, bool]] = {}
    return [predicted(source.name, case, snapshot, known) for case in cases]


def predicted(
    source: str, case: Case, snapshot: Snapshot, known: dict[bytes, tuple[Floats, bool]] | None = None
) -> Scored:
    """Return the prediction of a case; `known` are answers to requests that came before, which this one joins."""
    known = {} if known is None else known
    if not case.parts:
        return Scored(source, case, reason=case.reason)
    total = np.zeros(3)
    try:
        for part in case.parts:
            seconds, fits = _answered(case, part.workload, snapshot, known)
            if case.at_once and not fits:
                return Scored(source, case, reason="it does not fit at once, so it ran in waves")
            total += part.times * seconds
    except GpucastError as error:
        return Scored(source, case, reason=str(error.detail))
    middle, low, high = total.tolist()
    return Scored(source, case, middle, low, high)


def _answered(
    case: Case, workload: Mapping[str, Any], snapshot: Snapshot, known: dict[bytes, tuple[Floats, bool]]
) -> tuple[Floats, bool]:
    """Return the prediction and the ends of its interval in the case's unit, [3], and whether it fits in the memory.

    Equal requests are answered once.
    """
    if case.unit == "J":
        return _joules(case.gpu, workload, snapshot)
    gpu = case.gpu
    body = msgspec.json.encode({"gpu": gpu, "workload": workload, "predictor": PREDICTOR, "coverage": COVERAGE})
    if body not in known:
        answer = predict_workload(snapshot, read_request(body), max_rows=_MOST_ROWS, advise=False)
        assert isinstance(answer, PredictResponse)
        found = answer.predictions[0]
        times = np.array([found.latency_ms, found.interval_ms.low, found.interval_ms.high]) / 1e3
        known[body] = times, found.memory.fits
    return known[body]


def _joules(gpu: str, workload: Mapping[str, Any], snapshot: Snapshot) -> tuple[Floats, bool]:
    """Return the energy of a step as POST /compare answers it, joules [3], and whether it fits. Raises NotFound."""
    asked = {"workload": workload, "gpus": [gpu], "rank_by": "energy", "predictor": PREDICTOR, "coverage": COVERAGE}
    row = compare(snapshot, read_compare(msgspec.json.encode(asked)), max_rows=_MOST_ROWS).ranking[0]
    if row.energy_j is None or row.energy_interval_j is None:
        raise NotFound(f"The power of {gpu} is unknown.")
    return np.array([row.energy_j, row.energy_interval_j.low, row.energy_interval_j.high]), row.memory.fits


def cells(found: Sequence[Scored], by: Callable[[Scored], str]) -> Iterator[Cell]:
    """Yield the errors of the cases alike in `by`, in order of their first case."""
    groups: dict[str, list[Scored]] = {}
    for each in found:
        groups.setdefault(by(each), []).append(each)
    for name, alike in groups.items():
        answered = [each for each in alike if not each.reason]
        if not answered:
            yield Cell(name, len(alike), 0, np.nan, np.nan, np.nan, np.nan)
            continue
        errors = np.array([each.error for each in answered])
        factor = float(np.exp(np.median(np.abs(np.log1p(errors / 100.0)))))
        held = 100.0 * float(np.mean([each.held for each in answered]))
        median, bias = float(np.median(np.abs(errors))), float(np.median(errors))
        yield Cell(name, len(alike), len(answered), median, bias, held, factor)
