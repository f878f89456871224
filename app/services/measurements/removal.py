"""Delete stored measurements."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import BadInput
from app.services.measurements.limits import withdraw_limits
from app.store import measurements
from app.store.measurement_filters import Filters
from app.store.session import Database


def remove(database: Database, filters: Filters, *, dry_run: bool = False) -> Mapping[tuple[str, str], int]:
    """Delete the stored rows that match every filter, all or none; return counts by (kind, GPU id).

    Raises BadInput without a filter. API processes notice through the revision, as for an upload. Deleted shipped rows
    are not imported again, because their file is known. With a key, and at most a GPU, limits of GPUs that the key's
    measurements raised get their earlier values.
    """
    if filters == Filters():
        raise BadInput(
            "Give at least one of gpu, kind, name, software, source, upload and key: which measurements to delete."
        )
    with database.begin(long=True) as connection:
        removed = measurements.remove(connection, filters, dry_run=dry_run)
        if filters.key is not None and filters == Filters(key=filters.key, gpu=filters.gpu) and not dry_run:
            withdraw_limits(connection, filters.key, filters.gpu)
        return removed
