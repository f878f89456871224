"""Training of a version on kernel measurements: fit, validation on held-out rows, and the gate before serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import NotTrained
from app.predictors import PREDICTORS
from app.predictors.base import LaunchLearner, Predictor
from app.predictors.launches.identity import launch_ids
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.training.kernel_validation import SPLITS, Fold, Residuals, card_rows, folds, residuals

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
        if not rows:
            continue
        new, old = (100.0 * float(np.mean([errors[row] for row in rows])) for errors in (mine, theirs_on))
        if new > old * (1.0 + tolerance) + 1e-6:
            return (
                f"kept back: mean held-out log error {new:.2f} % against {old:.2f} % of the served version "
                f"on {len(rows)} {what}"
            )
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
