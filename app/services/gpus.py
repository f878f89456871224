"""GPUs registered, changed and removed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.engine.curated import load_seed_specs
from app.engine.snapshot import SnapshotHolder
from app.errors import BadInput, Conflict, FieldError, NotFound
from app.store import gpus, measurements, revision
from app.store.session import Database
from app.tables.complete import complete, revise
from app.tables.gpus import GpuSpec

GPU_EXAMPLE: dict[str, Any] = {
    "id": "acme-gpu-1",
    "name": "Acme GPU 1",
    "architecture": "Ada Lovelace",
    "compute_capability": "8.9",
    "sm_count": 60,
    "boost_clock_hz": 2.0e9,
    "memory_bytes": 24e9,
    "memory_bandwidth_bytes_per_s": 400e9,
    "aliases": ["ACME-1"],
}


def find(holder: SnapshotHolder, name: str) -> GpuSpec:
    """A GPU by id, alias or name, the long tail included; looks into the database once before it gives up."""
    before = holder.snapshot
    try:
        return before.engine.catalog.resolve(name)
    except NotFound:
        holder.refresh()
        if holder.snapshot is before:
            raise
    return holder.engine.catalog.resolve(name)


def register(database: Database, holder: SnapshotHolder, partial: Any) -> GpuSpec:
    """Add a GPU from a partial description; Conflict if one of its names is taken."""
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
    """Change some fields of a catalogued GPU; what was inferred is inferred anew."""
    if not isinstance(changes, Mapping):
        raise BadInput("Send an object of the fields to change.", errors=[FieldError((), "expected an object")])
    gpu_id = _catalogued(holder, name)
    if changes.get("id", gpu_id) != gpu_id:
        raise BadInput("A GPU keeps its id.", errors=[FieldError(("id",), f"must stay {gpu_id}, or be left out")])
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
    """Remove a GPU that was added here; Conflict for one that ships, or that measurements refer to."""
    gpu_id = _catalogued(holder, name)
    if gpu_id in _shipped_ids():
        raise Conflict(f"{gpu_id} ships with this version and would come back at the next start; PATCH it instead.")
    with database.begin() as connection:
        revision.lock(connection)  # no measurement of it comes in behind the count
        measured = sum(rows for (_, gpu), rows in measurements.counts(connection).items() if gpu == gpu_id)
        if measured:
            raise Conflict(f"{measured} measurements refer to {gpu_id}; it cannot be removed.")
        gpus.delete_spec(connection, gpu_id)
    holder.refresh()


def _catalogued(holder: SnapshotHolder, name: str) -> str:
    """Id of a GPU that has a row here; NotFound for one that only the long tail knows."""
    spec = find(holder, name)
    if spec.id not in holder.snapshot.row_of:
        raise NotFound(f"{spec.id} is known from the long tail only; POST /gpus registers it.")
    return spec.id


@lru_cache(maxsize=1)
def _shipped_ids() -> frozenset[str]:
    return frozenset(spec.id for spec in load_seed_specs())
