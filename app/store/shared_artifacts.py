"""Artefacts in the database, from where every replica fetches what another one trained; files are a cache of them."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from app.store.artifacts import ArtifactAbsent, files_of
from app.store.files import write_whole
from app.store.sql_tables import ARTIFACT_CHUNKS as CHUNKS
from app.store.sql_tables import ARTIFACTS, PREDICTOR_VERSIONS

CHUNK_BYTES = 1 << 20


def share(connection: Connection, root: Path, sha256: str) -> None:
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


def share_all(connection: Connection, root: Path) -> None:
    """Share the artefacts of stored versions that only the folder `root` has: those of releases before 0.3.0."""
    shared = sa.exists().where(ARTIFACTS.c.sha256 == PREDICTOR_VERSIONS.c.artifact_sha256)
    missing = sa.select(PREDICTOR_VERSIONS.c.artifact_sha256).where(~shared).distinct()
    for sha256 in connection.execute(missing).scalars().all():
        if all(path.is_file() for path in files_of(root, sha256)):
            share(connection, root, sha256)


def fetch(connection: Connection, root: Path, sha256: str) -> None:
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


def missing(connection: Connection) -> list[str]:
    """Return the hashes that stored versions name and that the database has no artefact of, or a damaged one."""
    data = sa.func.string_agg(CHUNKS.c.data, aggregate_order_by(sa.literal(b""), CHUNKS.c.number))
    content_sha256 = sa.func.encode(sa.func.sha256(data), "hex")
    whole = sa.select(CHUNKS.c.sha256).group_by(CHUNKS.c.sha256).having(content_sha256 == CHUNKS.c.sha256)
    named = sa.select(PREDICTOR_VERSIONS.c.artifact_sha256).distinct()
    absent = named.where(PREDICTOR_VERSIONS.c.artifact_sha256.not_in(whole)).order_by("artifact_sha256")
    return list(connection.execute(absent).scalars())
