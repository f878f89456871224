"""Asking for a retraining, and which versions are served and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sqlalchemy import Connection

from app.engine.engine import Engine, import_hint
from app.engine.shipped import Shipped, shipped_versions
from app.errors import BadInput, Conflict, FieldError
from app.predictors import BY_NAME
from app.services.learning.material import measured_gpus
from app.services.learning.retrain import request_retrain
from app.store import versions
from app.store.artifacts import ArtifactRefused
from app.store.session import Database
from app.store.versions import POOLED, Version
from app.tables.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Overview:
    """One predictor: its stored versions, newest first, and what this process answers with, by GPU id or "*".

    `shipped` came with the code, and answers where the database serves none.
    """

    name: str
    trainable: bool
    needs_training: bool
    served: tuple[Version, ...]
    history: tuple[Version, ...]
    answering: dict[str, str]
    shipped: Shipped | None


def known_predictor(name: str) -> str:
    """The name itself; BadInput lists those there are."""
    if name not in BY_NAME:
        msg = f"no predictor is called {name[:100]!r}; there are: {', '.join(BY_NAME)}"
        raise BadInput(msg, errors=[FieldError(("predictor",), msg)])
    return name


def ask_for_retraining(database: Database, catalog: Catalog, predictor: str, gpu: str | None) -> int:
    """Queue a retraining, pooled or for one GPU by any of its names; returns the job's id.

    Refused before it is queued where it can only fail: an unknown predictor, GPU or one that learns nothing
    (BadInput, NotFound), or no measurements to learn from (Conflict).
    """
    _refuse_untrainable(known_predictor(predictor))
    gpu_id = None if gpu is None else catalog.resolve(gpu).id
    with database.begin() as connection:
        _refuse_without_data(connection, predictor, gpu_id)
    return request_retrain(database, predictor, gpu_id)


def _refuse_untrainable(name: str) -> None:
    if not BY_NAME[name].trainable:
        trainable = ", ".join(cls.name for cls in BY_NAME.values() if cls.trainable)
        msg = f"{name} has nothing to learn; trainable are: {trainable}"
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


def overview(database: Database, engine: Engine, shipped: Path) -> list[Overview]:
    """Every predictor in the order of the registration; `shipped` is the folder of what came with the code."""
    with database.begin() as connection:
        every = versions.history(connection)
    ships = _shipped(shipped)
    return [
        _overview(name, engine, [item for item in every if item.predictor == name], ships.get(name)) for name in BY_NAME
    ]


def _shipped(folder: Path) -> dict[str, Shipped]:
    """None where their list is damaged, which readiness tells."""
    try:
        return shipped_versions(folder)
    except ArtifactRefused:
        return {}


def _overview(name: str, engine: Engine, stored: Sequence[Version], ships: Shipped | None) -> Overview:
    return Overview(
        name=name,
        trainable=BY_NAME[name].trainable,
        needs_training=BY_NAME[name].needs_training,
        served=tuple(item for item in stored if item.state == "served"),
        history=tuple(stored),
        answering={gpu: ready.version for (predictor, gpu), ready in engine.served.items() if predictor == name},
        shipped=ships,
    )


def roll_back(
    database: Database, catalog: Catalog, predictor: str, gpu: str | None, shipped: Path
) -> Version | Shipped:
    """Serve the version before the present one again: a stored one, else what ships; Conflict if there is none."""
    name = known_predictor(predictor)
    gpu_id = POOLED if gpu is None else catalog.resolve(gpu).id
    ships = _shipped(shipped).get(name) if gpu_id == POOLED else None
    with database.begin() as connection:
        version = versions.rollback(connection, name, gpu_id, to_nothing=ships is not None)
    return version or cast(Shipped, ships)
