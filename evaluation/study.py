"""A study of measured workloads: its cases, their mapping to requests, the errors of groups of them, and its goals.

A result is a JSON object: what identifies the case, then what was measured and predicted. It is the record that a
command writes, and what tables are made from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from app.bands.conformal import Intervals
from app.bands.coverage import COVERAGE
from app.bootstrap import warm
from app.config import SEED_DATA, SHIPPED_MODELS
from app.engine.engine import Engine
from app.engine.snapshot import Snapshot
from app.engine.versions import Stores
from app.errors import BadInput, GpucastError, NotFound
from app.services.compare.compare import compare
from app.services.compare.request import read_compare
from app.services.dispatch import predict_workload
from app.tables.arrays import Floats
from app.wire.predict_body import read_request
from app.wire.prediction_form import PredictResponse

Result = Mapping[str, Any]
Row = Mapping[str, Any]
Progress = Callable[[str], None]
Key = TypeVar("Key", bound=Hashable)
Place = TypeVar("Place")
Value = TypeVar("Value")

PREDICTOR = "auto"
_MOST_ROWS = 100_000


class Part(NamedTuple):
    """A workload of POST /predict that a measured time contains `times` times."""

    times: float
    workload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One measured time or energy and the requests whose sum it is.

    gpu         id in the catalogue, or the source's name of a device that is not in it
    model       network, by the source's name
    mode        what was measured: the kind of step, and what else results are split by (format, stack)
    row         what identifies the measurement within its source
    measured    seconds or joules, as `unit` says
    parts       the requests; empty if it cannot be asked
    reason      why it cannot be asked
    at_once     True if it cannot be asked where it does not fit in the memory: it was run in waves
    """

    gpu: str
    model: str
    mode: str
    row: str
    measured: float
    parts: tuple[Part, ...] = ()
    reason: str = ""
    at_once: bool = False
    unit: Literal["s", "J"] = "s"


class Goal(NamedTuple, Generic[Place]):
    """Largest error of a group of results, percent; None: no goal is set. `where` says which results it is about."""

    label: str
    where: Place
    most: float | None


@dataclass(frozen=True, slots=True)
class Study:
    """Measurements of one origin.

    name         name of the file of rows, without its ending
    title        what it is, with its origin and licence
    assumptions  what the source does not say, as it is asked
    goals        largest median errors by what modes begin with, registered before the first run
    cases        the cases of the file's rows
    """

    name: str
    title: str
    assumptions: tuple[str, ...]
    goals: tuple[Goal[str], ...]
    cases: Callable[[Sequence[Row]], Iterator[Case]] = field(repr=False)


class Errors(NamedTuple):
    """Errors of the answered results of a group, percent: mean and median of the magnitude, mean and median bias.

    cases, answered  number of results, and of those that were answered
    held    share of measured values inside their interval
    factor  largest of predicted / measured and its inverse, of the median result
    """

    cases: int
    answered: int
    mape: float
    median: float
    mean_bias: float
    bias: float
    held: float
    factor: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Errors:
        """Return the errors of results with `error` in percent and `held`; others could not be asked."""
        answered = [result for result in results if "error" in result]
        if not answered:
            return cls(len(results), 0, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan)
        error = np.array([result["error"] for result in answered])
        size = np.abs(error)
        return cls(
            cases=len(results),
            answered=len(answered),
            mape=float(size.mean()),
            median=float(np.median(size)),
            mean_bias=float(error.mean()),
            bias=float(np.median(error)),
            held=100.0 * float(np.mean([result["held"] for result in answered])),
            factor=float(np.exp(np.median(np.abs(np.log1p(error / 100.0))))),
        )


def compared(measured: float, predicted: float, low: float, high: float) -> dict[str, Any]:
    """Return the error in percent, and whether the interval holds the measured value."""
    return {"error": 100.0 * (predicted / measured - 1.0), "held": bool(low <= measured <= high)}


def paper(name: str) -> dict[str, Any]:
    """Return what a paper published, and what its authors' files and ours call the same."""
    content: dict[str, Any] = json.loads((SEED_DATA / "papers" / f"{name}.json").read_text("utf-8"))
    return content


def grouped(values: Iterable[Value], by: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Return the values alike in `by`, in order of their first."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(by(value), []).append(value)
    return groups


def chosen(kind: str, known: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
    """Return the entries of `known` under `names` (empty: all). Raises BadInput for an unknown name of this kind."""
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"Unknown {kind} {unknown[0]!r}: use one of {', '.join(known)}.")
    return {name: value for name, value in known.items() if not names or name in names}


def shipped_snapshot(models: Path = SHIPPED_MODELS) -> Snapshot:
    """Return what an installation without a database of its own answers from; `models` has the trained predictors."""
    return warm.shipped_snapshot(Stores(models, models), only={PREDICTOR})


def shipped_engine() -> Engine:
    """Return the same engine with the documented intervals, which know no residuals of the trained operators."""
    engine = shipped_snapshot().engine
    served = {key: replace(version, intervals=Intervals.prior()) for key, version in engine.served.items()}
    return Engine(engine.catalog, engine.gpus, served)


class Answers:
    """Predictions of cases, each equal request asked once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[bytes, tuple[Floats, bool]] = {}

    def result(self, case: Case) -> dict[str, Any]:
        """Return the result of a case: predicted, low and high in its unit, error and held; or the reason for none."""
        about = {name: getattr(case, name) for name in ("gpu", "model", "mode", "row", "unit", "measured")}
        if not case.parts:
            return about | {"reason": case.reason}
        total = np.zeros(3)
        try:
            for part in case.parts:
                figures, fits = self._answer(case, part.workload)
                if case.at_once and not fits:
                    return about | {"reason": "it does not fit at once, so it ran in waves"}
                total += part.times * figures
        except GpucastError as error:
            return about | {"reason": str(error.detail)}
        predicted = dict(zip(("predicted", "low", "high"), total.tolist(), strict=True))
        return about | predicted | compared(case.measured, **predicted)

    def _answer(self, case: Case, workload: Mapping[str, Any]) -> tuple[Floats, bool]:
        """Return the prediction and the ends of its interval in the case's unit, [3], and whether it fits in memory."""
        options = {"workload": workload, "predictor": PREDICTOR, "coverage": COVERAGE}
        body = msgspec.json.encode(options | {"gpu": case.gpu, "unit": case.unit})
        if body not in self._known:
            ask = self._joules if case.unit == "J" else self._seconds
            self._known[body] = ask(case.gpu, options)
        return self._known[body]

    def _seconds(self, gpu: str, options: Mapping[str, Any]) -> tuple[Floats, bool]:
        request = read_request(msgspec.json.encode({"gpu": gpu, **options}))
        answer = predict_workload(self._snapshot, request, max_rows=_MOST_ROWS, advise=False)
        assert isinstance(answer, PredictResponse)
        row = answer.predictions[0]
        return np.array([row.latency_ms, row.interval_ms.low, row.interval_ms.high]) / 1e3, row.memory.fits

    def _joules(self, gpu: str, options: Mapping[str, Any]) -> tuple[Floats, bool]:
        """Return the energy as POST /compare answers it. Raises NotFound where the GPU's power is unknown."""
        request = read_compare(msgspec.json.encode({"gpus": [gpu], "rank_by": "energy", **options}))
        row = compare(self._snapshot, request, max_rows=_MOST_ROWS).ranking[0]
        if row.energy_j is None or row.energy_interval_j is None:
            raise NotFound(f"The power of {gpu} is unknown.")
        return np.array([row.energy_j, row.energy_interval_j.low, row.energy_interval_j.high]), row.memory.fits
