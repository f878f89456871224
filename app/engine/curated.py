"""The curated catalogue that ships with the code."""

from __future__ import annotations

import json

from app.config import SEED_DATA
from app.tables.complete import complete
from app.tables.gpus import GpuSpec


def load_seed_specs() -> list[GpuSpec]:
    """Return every GPU of seed_data/gpus*.json, completed and checked, ordered by id."""
    rows = [row for path in sorted(SEED_DATA.glob("gpus*.json")) for row in json.loads(path.read_text("utf-8"))]
    return sorted((complete(row, where=(str(row.get("id")),)) for row in rows), key=lambda spec: spec.id)
