"""Storage of trained predictor versions and their serving states."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row, Select

from app.errors import Conflict, NotFound
from app.store import revision
from app.store.sql_tables import PREDICTOR_VERSIONS as VERSIONS

POOLED = "*"  # the `gpu_id` of a version trained on all GPUs together


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One trained version; `state` is candidate, served, retired or kept_back, `gpu_id` is "*" for all GPUs."""

    id: int
    predictor: str
    gpu_id: str
    version: str
    artifact_sha256: str
    training_set_sha256: str
    card: dict[str, Any]
    state: str
    created_at: datetime


def add(
    connection: Connection,
    *,
    predictor: str,
    gpu_id: str,
    artifact_sha256: str,
    training_set_sha256: str,
    card: dict[str, Any],
    state: str = "candidate",
) -> Version:
    """Store a trained version; names count per predictor and GPU: "1", "2", ..."""
    mine = (VERSIONS.c.predictor == predictor) & (VERSIONS.c.gpu_id == gpu_id)
    lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"version {predictor} {gpu_id}", 0))
    connection.execute(sa.select(lock))
    number = connection.execute(sa.select(sa.func.count()).where(mine)).scalar_one() + 1
    statement = sa.insert(VERSIONS).values(
        predictor=predictor,
        gpu_id=gpu_id,
        version=str(number),
        artifact_sha256=artifact_sha256,
        training_set_sha256=training_set_sha256,
        card=card,
        state=state,
    )
    return _version(connection.execute(statement.returning(*_columns())).one())


def serve(connection: Connection, version_id: int) -> Version:
    """Serve this version and retire the previous one."""
    revision.lock(connection)  # publication and rollback must not interleave
    row = connection.execute(_select().where(VERSIONS.c.id == version_id)).one_or_none()
    if row is None:
        raise NotFound(f"No predictor version has the id {version_id}.")
    version = _version(row)
    mine = (VERSIONS.c.predictor == version.predictor) & (VERSIONS.c.gpu_id == version.gpu_id)
    connection.execute(sa.update(VERSIONS).where(mine, VERSIONS.c.state == "served").values(state="retired"))
    statement = sa.update(VERSIONS).where(VERSIONS.c.id == version_id).values(state="served")
    served_now = _version(connection.execute(statement.returning(*_columns())).one())
    revision.bump(connection, "versions")
    return served_now


def served(connection: Connection) -> list[Version]:
    """Return the served versions, at most one per predictor and GPU."""
    statement = _select().where(VERSIONS.c.state == "served").order_by(VERSIONS.c.predictor, VERSIONS.c.gpu_id)
    return [_version(row) for row in connection.execute(statement)]


def served_for(connection: Connection, predictor: str, gpu_id: str) -> Version | None:
    """Return the served version of a predictor for a GPU, or POOLED."""
    mine = (VERSIONS.c.predictor == predictor) & (VERSIONS.c.gpu_id == gpu_id) & (VERSIONS.c.state == "served")
    row = connection.execute(_select().where(mine)).one_or_none()
    return None if row is None else _version(row)


def history(connection: Connection, predictor: str | None = None) -> list[Version]:
    """Return the versions of one predictor or of all, newest first."""
    statement = _select().order_by(VERSIONS.c.id.desc())
    if predictor is not None:
        statement = statement.where(VERSIONS.c.predictor == predictor)
    return [_version(row) for row in connection.execute(statement)]


def rollback(
    connection: Connection, predictor: str, gpu_id: str, *, leave: str | None = None, to_nothing: bool = False
) -> Version | None:
    """Serve the previously served version again, and return it.

    Raises Conflict where the version `leave` is not the one that is served. Without a previous version, raises
    Conflict, or with `to_nothing` retires the present one and returns None.
    """
    revision.lock(connection)
    mine = (VERSIONS.c.predictor == predictor) & (VERSIONS.c.gpu_id == gpu_id)
    now = served_for(connection, predictor, gpu_id)
    if now is None:
        raise Conflict(f"Predictor {predictor!r} serves no trained version for GPU {gpu_id!r}.")
    if leave is not None and now.version != leave:
        raise Conflict(f"Predictor {predictor!r} serves version {now.version!r} for GPU {gpu_id!r}, not {leave!r}.")
    present = now.id
    earlier = _select().where(mine, VERSIONS.c.state == "retired", VERSIONS.c.id < present)
    row = connection.execute(earlier.order_by(VERSIONS.c.id.desc()).limit(1)).one_or_none()
    if row is None and to_nothing:
        connection.execute(sa.update(VERSIONS).where(VERSIONS.c.id == present).values(state="retired"))
        revision.bump(connection, "versions")
        return None
    if row is None:
        raise Conflict(f"Predictor {predictor!r} has no version before the one it serves for GPU {gpu_id!r}.")
    return serve(connection, row.id)


def _columns() -> list[sa.Column[Any]]:
    return [VERSIONS.c[item.name] for item in fields(Version)]


def _select() -> Select[Any]:
    return sa.select(*_columns())


def _version(row: Row[Any]) -> Version:
    return Version(**row._mapping)
