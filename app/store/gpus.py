"""Rows of the GPU catalogue."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from app.errors import Conflict, NotFound
from app.store import revision
from app.store.rows import GPUS
from app.tables.complete import spec_from_dict, spec_to_dict
from app.tables.gpus import GpuSpec


def load_specs(connection: Connection) -> list[GpuSpec]:
    """Every GPU, ordered by id."""
    return [spec_from_dict(spec) for spec in connection.execute(sa.select(GPUS.c.spec).order_by(GPUS.c.id)).scalars()]


def get_spec(connection: Connection, gpu_id: str, *, for_update: bool = False) -> GpuSpec:
    """One GPU by its id; NotFound otherwise. `for_update` keeps others from changing it until the transaction ends."""
    statement = sa.select(GPUS.c.spec).where(GPUS.c.id == gpu_id)
    spec = connection.execute(statement.with_for_update() if for_update else statement).scalar_one_or_none()
    if spec is None:
        raise NotFound(f"No GPU has the id {gpu_id!r}.")
    return spec_from_dict(spec)


def insert_spec(connection: Connection, spec: GpuSpec, origin: str) -> None:
    """Add a GPU; Conflict if its id is taken. `origin` is seed, user or import."""
    statement = insert(GPUS).values(id=spec.id, spec=spec_to_dict(spec), origin=origin).on_conflict_do_nothing()
    if connection.execute(statement.returning(GPUS.c.id)).one_or_none() is None:
        raise Conflict(f"A GPU with the id {spec.id!r} exists; PATCH /gpus/{spec.id} changes it.")
    revision.bump(connection)


def update_spec(connection: Connection, spec: GpuSpec) -> None:
    """Replace a GPU's specification; the row is the user's from then on, and seeding leaves it alone."""
    statement = sa.update(GPUS).where(GPUS.c.id == spec.id)
    values = {"spec": spec_to_dict(spec), "origin": "user", "updated_at": sa.func.now()}
    if connection.execute(statement.values(values)).rowcount == 0:
        raise NotFound(f"No GPU has the id {spec.id!r}.")
    revision.bump(connection)


def delete_spec(connection: Connection, gpu_id: str) -> None:
    """Remove a GPU; NotFound if there is none."""
    if connection.execute(sa.delete(GPUS).where(GPUS.c.id == gpu_id)).rowcount == 0:
        raise NotFound(f"No GPU has the id {gpu_id!r}.")
    revision.bump(connection)


def seed(connection: Connection, specs: Sequence[GpuSpec]) -> int:
    """Insert missing GPUs and refresh those still of origin seed; returns how many rows changed."""
    rows = [{"id": spec.id, "spec": spec_to_dict(spec), "origin": "seed"} for spec in specs]
    if not rows:
        return 0
    statement = insert(GPUS).values(rows)
    fresh = statement.excluded.spec
    statement = statement.on_conflict_do_update(
        index_elements=[GPUS.c.id],
        set_={"spec": fresh, "updated_at": sa.func.now()},
        where=(GPUS.c.origin == "seed") & (GPUS.c.spec != fresh),
    )
    changed = len(connection.execute(statement.returning(GPUS.c.id)).all())
    if changed:
        revision.bump(connection)
    return changed
