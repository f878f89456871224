"""Request a retraining, list versions and the errors of their accuracy cards, and roll back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from sqlalchemy import Connection

from app.engine.engine import Engine, Refusal, import_hint
from app.engine.serving_hosts import SERVING_HOSTS
from app.engine.shipped import Shipped, shipped_versions
from app.errors import BadInput, Conflict, FieldError
from app.ops import OP_CODE, OPS
from app.predictors import BY_NAME
from app.services.learning.fit_hosts import HINT, fittable_stacks
from app.services.learning.retrain import enqueue, measured_gpus, queue_retrain
from app.services.serving.served_points import served_points
from app.stacks.release import ServingHosts
from app.store import measurements, versions
from app.store.artifacts import ArtifactRefused
from app.store.session import Database
from app.store.versions import POOLED, Version
from app.tables.catalog import Catalog
from app.wire.names import did_you_mean


@dataclass(frozen=True, slots=True)
class Overview:
    """One predictor: stored versions, newest first, and the versions that answer in this process, by GPU id or "*".

    `shipped` came with the code and answers where the database serves no version. `refused`: versions that the database
    serves and this process cannot.
    """

    name: str
    trainable: bool
    needs_training: bool
    served: tuple[Version, ...]
    history: tuple[Version, ...]
    answering: dict[str, str]
    shipped: Shipped | None
    refused: tuple[Refusal, ...]


def check_predictor(name: str) -> str:
    """Return the name itself, that of a predictor or SERVING_HOSTS. Raises BadInput that lists the known ones."""
    if name not in BY_NAME and name != SERVING_HOSTS:
        known = (*BY_NAME, SERVING_HOSTS)
        msg = f"unknown predictor {name[:100]!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
        raise BadInput(msg, errors=[FieldError(("predictor",), msg)])
    return name


def request_retraining(database: Database, catalog: Catalog, predictor: str, gpu: str | None) -> int:
    """Queue a retraining, pooled or for one GPU by any of its names, and return the job's id.

    Refused at once if it can only fail: BadInput or NotFound for an unknown or untrainable predictor or an unknown GPU,
    Conflict without measurements to learn from.
    """
    if check_predictor(predictor) == SERVING_HOSTS:
        return _request_hosts(database, gpu)
    _refuse_untrainable(predictor)
    gpu_id = None if gpu is None else catalog.resolve(gpu).id
    with database.begin() as connection:
        _refuse_without_data(connection, predictor, gpu_id)
    return queue_retrain(database, predictor, gpu_id)


def _request_hosts(database: Database, gpu: str | None) -> int:
    if gpu is not None:
        raise BadInput.at(("gpu",), f"{SERVING_HOSTS} are those of all GPUs: leave it out", end=".")
    with database.begin() as connection:
        points = served_points(measurements.load(connection, kind="serving"))
    if not fittable_stacks(points):
        raise Conflict(f"Of no serving stack are enough deployments measured. {HINT}.")
    return queue_retrain(database, SERVING_HOSTS, None)


def _refuse_untrainable(name: str) -> None:
    if not BY_NAME[name].can.trainable:
        trainable = ", ".join((*(cls.name for cls in BY_NAME.values() if cls.can.trainable), SERVING_HOSTS))
        msg = f"{name} cannot be trained; trainable predictors: {trainable}"
        raise BadInput(msg, errors=[FieldError(("predictor",), msg)])


def _refuse_without_data(connection: Connection, predictor: str, gpu_id: str | None) -> None:
    rows = measured_gpus(connection, predictor)
    if not rows:
        raise Conflict(f"There are no measurements that {predictor} can learn from. {import_hint(predictor)}.")
    if gpu_id is not None and gpu_id not in rows:
        raise Conflict(
            f"There are no measurements on {gpu_id} that {predictor} can learn from or be validated on."
            f" {import_hint(predictor)}."
        )


def retrain_refused(connection: Connection, predictor: str, gpu_id: str) -> None:
    """Queue the retraining of a version that this code reads no more; nothing without measurements to learn from."""
    if predictor == SERVING_HOSTS:
        enqueue(connection, predictor, gpu_id)
        return
    rows = measured_gpus(connection, predictor) if BY_NAME[predictor].can.trainable else ()
    if rows and (gpu_id == POOLED or gpu_id in rows):
        enqueue(connection, predictor, gpu_id)


def predictor_overviews(database: Database, engine: Engine, shipped: Path) -> list[Overview]:
    """Return every predictor in registration order; `shipped` is the folder of shipped artefacts."""
    with database.begin() as connection:
        every = versions.history(connection)
    ships = _shipped(shipped)
    return [
        Overview(
            name=name,
            trainable=predictor.can.trainable,
            needs_training=predictor.can.needs_training,
            served=tuple(item for item in every if item.predictor == name and item.state == "served"),
            history=tuple(item for item in every if item.predictor == name),
            answering={gpu: ready.version for (of, gpu), ready in engine.served.items() if of == name},
            shipped=ships.get(name),
            refused=tuple(one for one in engine.refused if one.predictor == name),
        )
        for name, predictor in BY_NAME.items()
    ]


@dataclass(frozen=True, slots=True)
class HostsOverview:
    """Times of serving stacks' hosts that answer in this process, and the stored versions of them, newest first."""

    answering: ServingHosts
    history: tuple[Version, ...]
    refused: tuple[Refusal, ...]


def hosts_overview(database: Database, engine: Engine) -> HostsOverview:
    """Return the times of serving stacks' hosts and their versions."""
    with database.begin() as connection:
        stored = versions.history(connection, SERVING_HOSTS)
    return HostsOverview(
        engine.hosts, tuple(stored), tuple(one for one in engine.refused if one.predictor == SERVING_HOSTS)
    )


def _shipped(folder: Path) -> dict[str, Shipped]:
    """Return the shipped versions; none if their list is damaged, which readiness reports."""
    try:
        return shipped_versions(folder)
    except ArtifactRefused:
        return {}


def roll_back_version(
    database: Database, catalog: Catalog, predictor: str, gpu: str | None, shipped: Path, *, leave: str | None = None
) -> Version | Shipped | None:
    """Serve the previous version again, stored or shipped, and return it.

    Raises Conflict if there is none, or if the version `leave` is not served. None: the times of serving stacks' hosts
    that ship, which have no artefact.
    """
    name = check_predictor(predictor)
    if name == SERVING_HOSTS and gpu is None:
        with database.begin() as connection:
            return versions.rollback(connection, name, POOLED, leave=leave, to_nothing=True)
    gpu_id = POOLED if gpu is None else catalog.resolve(gpu).id
    ships = _shipped(shipped).get(name) if gpu_id == POOLED else None
    with database.begin() as connection:
        version = versions.rollback(connection, name, gpu_id, leave=leave, to_nothing=ships is not None)
    return version or cast(Shipped, ships)


class FamilyErrors(NamedTuple):
    """Held-out rows of a family: their mean error and the share of them in the 80 % interval, percent; their number."""

    split: str
    family: str
    mape: float
    coverage_80: float
    rows: int


def by_family(card: Iterable[Mapping[str, Any]]) -> list[FamilyErrors]:
    """Return the errors of a card's splits by family, each row of the card by its number of held-out rows."""
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in card:
        if row.get("gpu", "all") == "all":
            cells.setdefault((row["split"], _family(row["family"])), []).append(row)
    return [_pooled(*key, rows) for key, rows in sorted(cells.items())]


def _family(cell: str) -> str:
    name = cell.split("/", maxsplit=1)[0]
    return OPS[OP_CODE[name]].family if name in OP_CODE else name


def _pooled(split: str, family: str, rows: list[Mapping[str, Any]]) -> FamilyErrors:
    weights = [row["n"] for row in rows]
    mape, held = (float(np.average([row[name] for row in rows], weights=weights)) for name in ("mape", "coverage_80"))
    return FamilyErrors(split, family, round(mape, 1), round(held, 1), sum(weights))
