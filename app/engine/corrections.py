"""Corrections of served versions by measured rows that they were not trained on: fitted apart, then put in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from app.engine.engine import Engine, Served
from app.engine.power import PowerModel
from app.engine.trial import tried_on
from app.engine.unlearned import Correction, Group, GroupKey
from app.store.artifacts import ArtifactRefused
from app.tables.gpus import GpuTable

Key = tuple[str, str]


class Failure(NamedTuple):
    """Why a group has no corrections."""

    reason: str


class Trial(NamedTuple):
    """Operators in dtypes, and rows of the GPU table, that a corrected version must answer for."""

    cells: Sequence[tuple[str, str]]
    on: Sequence[int]


class Fitter(Protocol):
    """Fits corrections, and tries versions that have them."""

    def fit(self, version: Served, groups: Sequence[Group], gpus: GpuTable) -> Iterable[Any | Failure]:
        """Yield the corrections of a version, as it was trained, by each group."""
        ...

    def prepared(self, version: Served, models: Sequence[Any], gpus: GpuTable, trials: Sequence[Trial]) -> Any:
        """Return what the version with the corrections `models` derives from them.

        Raises ArtifactRefused unless it passes the trials.
        """
        ...


class Corrected(NamedTuple):
    """What to put in place of an engine's parts, as of a revision; `problems`: a message per group that failed."""

    revision: int
    served: Mapping[Key, Served]
    power: PowerModel
    problems: tuple[str, ...]


class FitHere:
    """A Fitter that works in this process: takes up to a second for each group."""

    def fit(self, version: Served, groups: Sequence[Group], gpus: GpuTable) -> Iterable[Any | Failure]:
        """Yield the corrections of a version by each group."""
        return (fitted(plain_of(version), group, gpus) for group in groups)

    def prepared(self, version: Served, models: Sequence[Any], gpus: GpuTable, trials: Sequence[Trial]) -> Any:
        """Return what the version derives from `models`; raises ArtifactRefused unless it passes the trials."""
        return prepared_by(plain_of(version), models, gpus, trials)


def prepared_by(plain: Any, models: Sequence[Any], gpus: GpuTable, trials: Sequence[Trial]) -> Any:
    """Return what a predictor derives from corrections; raises ArtifactRefused unless it then passes the trials."""
    predictor = plain.with_corrections(models, gpus)
    for trial in trials:
        tried_on(predictor, gpus, trial.cells, trial.on)
    return predictor.prepared(gpus)


def fitted(plain: Any, group: Group, gpus: GpuTable) -> Any | Failure:
    """Return the corrections of a predictor for a group, or why there are none."""
    try:
        return plain.corrections(group.runs(gpus), gpus)
    except Exception as error:
        return Failure(repr(error))


def plain_of(version: Served) -> Any:
    """Return the predictor as it was trained."""
    return version.uncalibrated or version.predictor


def outdated(version: Served) -> dict[GroupKey, Group]:
    """Return the groups whose rows have changed since they were fitted."""
    return {
        key: group
        for key, group in version.unlearned.items()
        if key not in version.corrections or version.corrections[key].group is not group
    }


def corrected(name: str, version: Served, gpus: GpuTable, fitter: Fitter) -> tuple[Served, list[str]]:
    """Return the version corrected by all of its groups, of which the outdated ones are fitted, and messages."""
    new, problems = outdated(version), list[str]()
    corrections = {key: item for key, item in version.corrections.items() if key in version.unlearned}
    if not new and len(corrections) == len(version.corrections):
        return version, []
    for (key, group), models in zip(new.items(), fitter.fit(version, list(new.values()), gpus), strict=True):
        if isinstance(models, Failure):
            problems.append(f"{name} {version.version} is not corrected by {key[0]} on {key[1]}: {models.reason}")
        corrections[key] = Correction(group, None if isinstance(models, Failure) else models)
    try:
        return _with(version, corrections, new, gpus, fitter), problems
    except ArtifactRefused as error:
        problems.append(f"{name} {version.version} is not corrected: {error.detail}")
        refused = {key: Correction(group, None) for key, group in new.items()}
        return _with(version, {**corrections, **refused}, {}, gpus, fitter), problems


def _with(
    version: Served,
    corrections: Mapping[GroupKey, Correction],
    new: Mapping[GroupKey, Group],
    gpus: GpuTable,
    fitter: Fitter,
) -> Served:
    """The version with these corrections, tried where they are new."""
    plain = plain_of(version)
    models = [item.models for item in corrections.values() if item.models is not None]
    if not models:
        return replace(version, predictor=plain, uncalibrated=None, corrections=corrections)
    trials = [
        Trial([(op, dtype) for dtype in group.dtypes()], [gpus.ids.index(gpu)]) for (op, gpu), group in new.items()
    ]
    prepared = fitter.prepared(version, models, gpus, trials)
    predictor = plain.with_corrections(models, gpus, prepared)
    return replace(version, predictor=predictor, uncalibrated=plain, corrections=corrections)


def amended(engine: Engine, corrected_versions: Corrected) -> Engine:
    """Return an engine, perhaps newer than the one that was corrected, with its corrections."""
    served = dict(engine.served)
    for key, item in corrected_versions.served.items():
        if key in served and served[key].version == item.version:
            served[key] = replace(
                served[key], predictor=item.predictor, uncalibrated=item.uncalibrated, corrections=item.corrections
            )
    return replace(engine, served=served, power=corrected_versions.power, corrected=corrected_versions.revision)
