"""Measurements taken back."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import BadInput
from app.store import measurements
from app.store.page import Filters
from app.store.session import Database


def remove(database: Database, wanted: Filters, *, dry_run: bool = False) -> Mapping[tuple[str, str], int]:
    """Delete the stored rows that agree with every filter, all or none; returns how many of each (kind, GPU id).

    BadInput without a filter. API processes see it as they see an upload: by the revision. Shipped rows stay away, for
    their file was brought in already.
    """
    if wanted == Filters():
        raise BadInput("Give at least one of gpu, kind, name, software and source: which measurements to delete.")
    with database.begin() as connection:
        return measurements.remove(connection, wanted, dry_run=dry_run)
