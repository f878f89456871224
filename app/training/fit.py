"""Training of a version on kernel measurements: fit, validation on held-out rows, and the gate before serving.

Three splits, each as folds of (training rows, queries with their evidence):
gpu_held_out     one GPU's rows are not trained on; they are predicted from one row on another GPU at a time
size_held_out    every kernel's largest size on each GPU is predicted from its smaller sizes there
kernel_held_out  one kernel's rows are not trained on; they are predicted without evidence, and from another
                 kernel's row on the same GPU
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import LEAST_RESIDUALS, Intervals
from app.bands.coverage import COVERAGE
from app.errors import NotTrained
from app.ops.kernel import FIELD_INDEX
from app.predictors import PREDICTORS
from app.predictors.base import LaunchLearner, Predictor
from app.predictors.launches import launch_ids
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements

_LANES = FIELD_INDEX["lane_operations"]
SPLITS = ("gpu_held_out", "size_held_out", "kernel_held_out")


@dataclass(frozen=True, slots=True)
class Fold:
    """One fold over the rows of a Measurements table.

    train  int [t], rows to fit on
    query  int [n], rows to predict, repeats allowed
    source, position  int [e] each: measured row `source[k]` is evidence for query `position[k]`
    """

    split: str
    train: Ints
    query: Ints
    source: Ints
    position: Ints

    def evidence(self, measurements: Measurements) -> Evidence:
        """Return the evidence of the queries."""
        return Evidence(measurements.take(self.source), self.position)


def folds(measurements: Measurements, launch: Ints) -> Iterator[Fold]:
    """Yield all folds; `launch` int [rows] is equal for rows of the same launch on any GPU."""
    yield from _by_gpu(measurements, launch)
    yield from _by_size(measurements)
    yield from _by_kernel(measurements)


def _by_gpu(measurements: Measurements, launch: Ints) -> Iterator[Fold]:
    label, gpu = measurements.ops.label, measurements.gpu
    size = np.log(measurements.ops.dims[_LANES])
    for held in np.unique(gpu):
        train = np.flatnonzero(gpu != held)
        query: list[int] = []
        source: list[int] = []
        for row in np.flatnonzero(gpu == held).tolist():
            same = train[launch[train] == launch[row]]
            others = train[(label[train] == label[row]) & (launch[train] != launch[row])]
            nearest = others[np.argsort(np.abs(size[others] - size[row]), kind="stable")[:1]]
            source += [*same.tolist(), *nearest.tolist()]
            query += [row] * (len(same) + len(nearest))
        yield _single("gpu_held_out", train, query, source)


def _single(split: str, train: Ints, query: list[int], source: list[int]) -> Fold:
    """Return a fold with one source per query."""
    rows, sources = np.array(query, dtype=np.intp), np.array(source, dtype=np.intp)
    return Fold(split, train, rows, sources, np.arange(len(rows)))


def _by_size(measurements: Measurements) -> Iterator[Fold]:
    size = measurements.ops.dims[_LANES]
    held: list[int] = []
    source: list[int] = []
    position: list[int] = []
    for label, gpu in np.unique(np.stack([measurements.ops.label, measurements.gpu]), axis=1).T:
        rows = np.flatnonzero((measurements.ops.label == label) & (measurements.gpu == gpu))
        largest = rows[np.argmax(size[rows])]
        smaller = rows[size[rows] < size[largest]]
        if len(smaller):
            position += [len(held)] * len(smaller)
            source += smaller.tolist()
            held.append(int(largest))
    query = np.array(held, dtype=np.intp)
    train = np.setdiff1d(np.arange(len(measurements)), query)
    yield Fold("size_held_out", train, query, np.array(source, dtype=np.intp), np.array(position, dtype=np.intp))


def _by_kernel(measurements: Measurements) -> Iterator[Fold]:
    label, gpu = measurements.ops.label, measurements.gpu
    size = np.log(measurements.ops.dims[_LANES])
    for held in np.unique(label):
        train, rows = np.flatnonzero(label != held), np.flatnonzero(label == held)
        source: list[int] = []
        position: list[int] = []
        for k, row in enumerate(rows):
            others = train[gpu[train] == gpu[row]]
            source += others[np.argsort(np.abs(size[others] - size[row]), kind="stable")[:1]].tolist()
            position += [len(rows) + k] * min(len(others), 1)
        query = np.concatenate([rows, rows])
        yield Fold("kernel_held_out", train, query, np.array(source, dtype=np.intp), np.array(position, dtype=np.intp))


@dataclass(frozen=True, slots=True)
class Residuals:
    """Held-out answers, n of them.

    log_ratio  float64 [n], log(measured / predicted)
    row        int [n], row of the Measurements table
    gpu        int [n], its GPU
    kernel     int [n], its kernel's label
    group      int [n], code into app.bands.groups.GROUPS
    split      int [n], code into the requested `splits`
    """

    log_ratio: Floats
    row: Ints
    gpu: Ints
    kernel: Ints
    group: Ints
    split: Ints

    def take(self, rows: NDArray[Any]) -> Residuals:
        """Return the given answers."""
        return Residuals(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def intervals(self) -> Intervals:
        """Return conformal intervals of these answers."""
        return Intervals.from_residuals(self.log_ratio, self.group, self.kernel)


def residuals(
    fit: Callable[[Measurements], Predictor | None],
    measurements: Measurements,
    gpus: GpuTable,
    folds: Sequence[Fold],
    splits: Sequence[str],
) -> Residuals:
    """Return the answers of a predictor refitted on each fold's training rows, without unsupported queries.

    `fit` returns None for a fold with too few rows.
    """
    parts = []
    for fold in folds:
        if not len(fold.query) or not len(fold.train):
            continue
        if (predictor := fit(measurements.take(fold.train))) is None:
            continue
        gpu = measurements.gpu[fold.query]
        ops = measurements.ops
        estimate = predictor.predict(ops, gpus, fold.query, gpu, evidence=fold.evidence(measurements))
        floor = hardware_limit(ops, gpus, fold.query, gpu).latency_s
        log_ratio = np.log(measurements.latency_s[fold.query] / np.maximum(estimate.latency_s, floor))
        split = np.full(len(gpu), splits.index(fold.split))
        part = Residuals(log_ratio, fold.query, gpu, ops.label[fold.query], estimate.group, split)
        parts.append(part.take(np.isfinite(log_ratio)))
    columns = Residuals.__dataclass_fields__
    empty = Residuals(np.empty(0), *(np.empty(0, dtype=np.intp) for _ in range(5)))
    return Residuals(*(np.concatenate([getattr(part, name) for part in [empty, *parts]]) for name in columns))


def covered(held: Any, coverage: float) -> NDArray[np.bool_]:
    """Return True for held-out answers inside the interval of the other GPUs' residuals, bool [n].

    held  Residuals, or the HeldOut of operators
    """
    inside = np.zeros(len(held.log_ratio), dtype=np.bool_)
    for gpu in np.unique(held.gpu):
        mine = held.gpu == gpu
        low, high = held.take(~mine).intervals().log_offsets(coverage)
        group, error = held.group[mine], held.log_ratio[mine]
        inside[mine] = (error >= low[group]) & (error <= high[group])
    return inside


def few(rows: int) -> dict[str, str]:
    """Return the card's note for figures of too few answers."""
    return {"note": "too few rows"} if rows < LEAST_RESIDUALS else {}


def summary(log_ratio: Floats, inside: NDArray[np.bool_]) -> dict[str, float | int | str]:
    """Return MAPE, median APE and coverage of the 80 % interval, in percent, and the number of answers."""
    error = np.abs(np.expm1(-log_ratio))
    return {
        "mape": round(100.0 * float(error.mean()), 3),
        "median_ape": round(100.0 * float(np.median(error)), 3),
        "coverage_80": round(100.0 * float(inside.mean()), 1),
        "n": len(error),
    } | few(len(error))


def worse(new: Floats, old: Floats, tolerance: float, rows: str) -> str | None:
    """Return why a candidate is kept back whose log errors `new` [n] exceed the served version's `old` by too much.

    None if they do not, or if there are none. `rows` says which they are.
    """
    if not len(new):
        return None
    mine, theirs = 100.0 * float(np.mean(new)), 100.0 * float(np.mean(old))
    if mine <= theirs * (1.0 + tolerance) + 1e-6:
        return None
    return (
        f"kept back: mean held-out log error {mine:.2f} % against {theirs:.2f} % of the served version "
        f"on {len(new)} {rows}"
    )


def card_rows(held: Residuals, gpus: GpuTable, splits: Sequence[str], family: str) -> list[dict[str, Any]]:
    """Return the accuracy card: a row per split and GPU, and a row per split over all GPUs."""
    inside = covered(held, COVERAGE)
    rows = []
    for code, split in enumerate(splits):
        for gpu in [None, *np.unique(held.gpu)]:
            mine = (held.split == code) & (True if gpu is None else held.gpu == gpu)
            if mine.any():
                name = "all" if gpu is None else gpus.ids[gpu]
                rows.append(
                    {"split": split, "family": family, "gpu": name, **summary(held.log_ratio[mine], inside[mine])}
                )
    return rows


FAMILY = "kernel"
# Least number of rows for training and validation.
LEAST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """A candidate version.

    payload  {"predictor", "state", "intervals", "out_of_fold": {"<split> <row id>": mean absolute log error}}; of one
             that learned operators also "operators", see app.training.candidate
    card     {"trained_on", "validation", "software"}, see `train`
    """

    payload: dict[str, Any]
    card: dict[str, Any]


def train(
    name: str,
    measurements: Measurements,
    gpus: GpuTable,
    row_ids: Sequence[str],
    *,
    target_gpu: str | None = None,
    base: LaunchLearner | None = None,
) -> Trained:
    """Return predictor `name` fitted to all rows and validated on held-out GPUs, sizes and kernels.

    What `base` knows besides kernels is kept. With `target_gpu` the version is for that GPU only: its intervals and
    errors are those of the GPU's rows. Raises NotTrained if there are too few rows to train or to hold out.
    """
    chosen = _class_of(name)
    if len(row_ids) < LEAST_ROWS:
        raise NotTrained(f"{len(row_ids)} kernel measurements are too few to train on: at least {LEAST_ROWS}.")

    def fit(rows: Measurements) -> LaunchLearner:
        return chosen().fit(rows, gpus, target_gpu=target_gpu)

    residuals = _validate(fit, measurements, gpus)
    if target_gpu is not None:
        residuals = residuals.take(np.array([gpus.ids[g] == target_gpu for g in residuals.gpu], dtype=bool))
    if not len(residuals.log_ratio):
        raise NotTrained(f"No measured row can be held out to validate {name}: measure kernels on more GPUs or sizes.")
    payload = {
        "predictor": name,
        "state": (base or chosen()).fit(measurements, gpus, target_gpu=target_gpu).state(),
        "intervals": residuals.intervals().state(),
        "out_of_fold": _per_row(residuals, row_ids),
    }
    return Trained(payload, _card(residuals, measurements, gpus))


def _class_of(name: str) -> type[LaunchLearner]:
    learners: dict[str, Any] = {predictor.name: predictor for predictor in PREDICTORS if predictor.can.learns_launches}
    if name in learners:
        learner: type[LaunchLearner] = learners[name]
        return learner
    raise NotTrained(f"{name} does not learn from measurements.")


def _validate(fit: Callable[[Measurements], Predictor], measurements: Measurements, gpus: GpuTable) -> Residuals:
    """Return the residuals of every fold that the predictor can be fitted on."""
    return residuals(
        _or_unsupported(fit), measurements, gpus, list(folds(measurements, launch_ids(measurements.ops))), SPLITS
    )


def _or_unsupported(fit: Callable[[Measurements], Predictor]) -> Callable[[Measurements], Predictor | None]:
    """Return `fit` with None, which means unsupported, for folds with too few rows."""

    def attempt(rows: Measurements) -> Predictor | None:
        try:
            return fit(rows)
        except NotTrained:
            return None

    return attempt


def _per_row(residuals: Residuals, row_ids: Sequence[str]) -> dict[str, float]:
    """Return the mean absolute log error of every held-out row, by split and row id."""
    key = np.stack([residuals.split, residuals.row])
    keys, inverse, count = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    error = np.bincount(inverse.ravel(), np.abs(residuals.log_ratio)) / count
    return {f"{SPLITS[split]} {row_ids[row]}": float(e) for (split, row), e in zip(keys.T, error, strict=True)}


def _card(residuals: Residuals, measurements: Measurements, gpus: GpuTable) -> dict[str, Any]:
    used = np.unique(measurements.gpu)
    return {
        "trained_on": {"rows": len(measurements), "gpus": [gpus.ids[g] for g in used]},
        "validation": card_rows(residuals, gpus, SPLITS, FAMILY),
        "software": software(),
    }


def software() -> dict[str, str]:
    """Return the versions of the libraries that a fit depends on."""
    return {name: version(name) for name in ("numpy", "scikit-learn", "joblib")}


def gate(
    candidate: Trained,
    served: Mapping[str, Any] | None,
    measurements: Measurements,
    gpus: GpuTable,
    row_ids: Sequence[str],
    tolerance: float,
) -> str | None:
    """Return why the candidate must not replace the served version; None if it may.

    Both are compared on the same rows, held out of each: rows in both training sets by their held-out errors; rows of
    GPUs, kernels or sizes new to the served version by its plain answers. On either, the candidate may be worse by at
    most the relative `tolerance`.
    """
    if served is None:
        return None
    mine, theirs = candidate.payload["out_of_fold"], dict(served["out_of_fold"])
    known = sorted(set(mine) & set(theirs))
    fresh = _fresh_errors(served, measurements, gpus, row_ids)
    unseen = sorted((set(mine) - set(theirs)) & set(fresh))
    for rows, theirs_on, what in ((known, theirs, "rows both know"), (unseen, fresh, "new rows")):
        new, old = (np.array([errors[row] for row in rows]) for errors in (mine, theirs_on))
        if reason := worse(new, old, tolerance, what):
            return reason
    return None


def _fresh_errors(
    served: Mapping[str, Any], measurements: Measurements, gpus: GpuTable, row_ids: Sequence[str]
) -> dict[str, float]:
    """Return the absolute log error of the served version on GPUs, kernels and sizes that are new to it, by row."""
    trained_on = {key.split(" ", 1)[1] for key in served["out_of_fold"]}
    seen = np.array([row in trained_on for row in row_ids], dtype=bool)
    if seen.all():
        return {}
    frozen = _class_of(served["predictor"]).from_state(served["state"])
    launch = launch_ids(measurements.ops)
    unseen = _unseen(measurements, launch, seen)
    parts = [_only(fold, unseen[fold.split]) for fold in folds(measurements, launch)]
    return _per_row(residuals(lambda _: frozen, measurements, gpus, parts, SPLITS), row_ids)


def _unseen(measurements: Measurements, launch: Ints, seen: NDArray[np.bool_]) -> dict[str, Ints]:
    """Return the rows of each split that are as new to a version trained on rows `seen` as to a refit on the fold."""
    by_split = {
        "gpu_held_out": measurements.gpu,
        "size_held_out": launch * (1 + int(measurements.gpu.max())) + measurements.gpu,
        "kernel_held_out": measurements.ops.label,
    }
    return {split: np.flatnonzero(~np.isin(of, of[seen])) for split, of in by_split.items()}


def _only(fold: Fold, rows: Ints) -> Fold:
    """Return the fold with only the queries among `rows`."""
    mine = np.flatnonzero(np.isin(fold.query, rows))
    used = np.isin(fold.position, mine)
    return Fold(fold.split, fold.train, fold.query[mine], fold.source[used], np.searchsorted(mine, fold.position[used]))
