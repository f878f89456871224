"""Storage of trained predictor versions and their serving states, and of their artefacts.

Every replica fetches from the database what another one trained; files are a cache of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from app.errors import Conflict, NotFound
from app.store import revision
from app.store.artifacts import ArtifactAbsent, files_of
from app.store.files import write_whole
from app.store.sql_tables import ARTIFACT_CHUNKS as CHUNKS
from app.store.sql_tables import ARTIFACTS, columns_of, records
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


_COLUMNS = columns_of(VERSIONS, Version)
_SELECT = sa.select(*_COLUMNS)


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
    return Version(**connection.execute(statement.returning(*_COLUMNS)).one()._mapping)


def serve(connection: Connection, version_id: int) -> Version:
    """Serve this version and retire the previous one."""
    revision.lock(connection)  # publication and rollback must not interleave
    row = connection.execute(_SELECT.where(VERSIONS.c.id == version_id)).one_or_none()
    if row is None:
        raise NotFound(f"No predictor version has the id {version_id}.")
    version = Version(**row._mapping)
    mine = (VERSIONS.c.predictor == version.predictor) & (VERSIONS.c.gpu_id == version.gpu_id)
    connection.execute(sa.update(VERSIONS).where(mine, VERSIONS.c.state == "served").values(state="retired"))
    statement = sa.update(VERSIONS).where(VERSIONS.c.id == version_id).values(state="served")
    served_now = Version(**connection.execute(statement.returning(*_COLUMNS)).one()._mapping)
    revision.bump(connection, "versions")
    return served_now


def served(connection: Connection) -> list[Version]:
    """Return the served versions, at most one per predictor and GPU."""
    statement = _SELECT.where(VERSIONS.c.state == "served").order_by(VERSIONS.c.predictor, VERSIONS.c.gpu_id)
    return records(connection, statement, Version)


def served_for(connection: Connection, predictor: str, gpu_id: str) -> Version | None:
    """Return the served version of a predictor for a GPU, or POOLED."""
    mine = (VERSIONS.c.predictor == predictor) & (VERSIONS.c.gpu_id == gpu_id) & (VERSIONS.c.state == "served")
    return next(iter(records(connection, _SELECT.where(mine), Version)), None)


def history(connection: Connection, predictor: str | None = None) -> list[Version]:
    """Return the versions of one predictor or of all, newest first."""
    statement = _SELECT.order_by(VERSIONS.c.id.desc())
    if predictor is not None:
        statement = statement.where(VERSIONS.c.predictor == predictor)
    return records(connection, statement, Version)


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
    earlier = _SELECT.where(mine, VERSIONS.c.state == "retired", VERSIONS.c.id < present)
    row = connection.execute(earlier.order_by(VERSIONS.c.id.desc()).limit(1)).one_or_none()
    if row is None and to_nothing:
        connection.execute(sa.update(VERSIONS).where(VERSIONS.c.id == present).values(state="retired"))
        revision.bump(connection, "versions")
        return None
    if row is None:
        raise Conflict(f"Predictor {predictor!r} has no version before the one it serves for GPU {gpu_id!r}.")
    return serve(connection, row.id)


CHUNK_BYTES = 1 << 20


def share_artifact(connection: Connection, root: Path, sha256: str) -> None:
    """Copy the artefact of that hash from the folder `root` into the database, unless it is there."""
    payload, manifest = files_of(root, sha256)
    values = {"sha256": sha256, "manifest": manifest.read_text("utf-8")}
    made = insert(ARTIFACTS).values(values).on_conflict_do_nothing().returning(ARTIFACTS.c.sha256)
    if connection.execute(made).one_or_none() is None:
        return
    data = payload.read_bytes()
    chunks = [data[first : first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES)]
    rows = [{"sha256": sha256, "number": number, "data": chunk} for number, chunk in enumerate(chunks)]
    connection.execute(sa.insert(CHUNKS), rows)


def share_artifacts(connection: Connection, root: Path) -> None:
    """Share the artefacts of stored versions that only the folder `root` has: those of releases before 0.3.0."""
    shared = sa.exists().where(ARTIFACTS.c.sha256 == VERSIONS.c.artifact_sha256)
    missing = sa.select(VERSIONS.c.artifact_sha256).where(~shared).distinct()
    for sha256 in connection.execute(missing).scalars().all():
        if all(path.is_file() for path in files_of(root, sha256)):
            share_artifact(connection, root, sha256)


def fetch_artifact(connection: Connection, root: Path, sha256: str) -> None:
    """Write the artefact of that hash from the database into the folder `root`; ArtifactAbsent if it is in neither."""
    manifest = connection.execute(sa.select(ARTIFACTS.c.manifest).where(ARTIFACTS.c.sha256 == sha256)).scalar()
    if manifest is None:
        raise ArtifactAbsent(f"The artefact {sha256} is neither in this process's folder nor in the database.")
    mine = sa.select(CHUNKS.c.data).where(CHUNKS.c.sha256 == sha256).order_by(CHUNKS.c.number)
    data = b"".join(connection.execute(mine).scalars())
    try:
        root.mkdir(parents=True, exist_ok=True)
        for path, content in zip(files_of(root, sha256), (data, manifest.encode()), strict=True):
            write_whole(path, content)
    except OSError as error:
        raise ArtifactAbsent(f"The artefact {sha256} cannot be written to the folder: {error.strerror}.") from error


def missing_artifacts(connection: Connection) -> list[str]:
    """Return the hashes that stored versions name and that the database has no artefact of, or a damaged one."""
    data = sa.func.string_agg(CHUNKS.c.data, aggregate_order_by(sa.literal(b""), CHUNKS.c.number))
    content_sha256 = sa.func.encode(sa.func.sha256(data), "hex")
    whole = sa.select(CHUNKS.c.sha256).group_by(CHUNKS.c.sha256).having(content_sha256 == CHUNKS.c.sha256)
    named = sa.select(VERSIONS.c.artifact_sha256).distinct()
    absent = named.where(VERSIONS.c.artifact_sha256.not_in(whole)).order_by("artifact_sha256")
    return list(connection.execute(absent).scalars())
