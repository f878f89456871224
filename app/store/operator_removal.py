"""Deletion of measured operators."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import ARRAY

from app.store import revision, uploads
from app.store.measurement_filters import Filters
from app.store.operators import agreeing_contexts
from app.store.sql_tables import OPERATOR_CONTEXTS, OPERATOR_MEASUREMENTS

_C, _M = OPERATOR_CONTEXTS.c, OPERATOR_MEASUREMENTS.c


def remove(connection: Connection, filters: Filters, *, dry_run: bool = False) -> dict[str, int]:
    """Delete matching rows; return their numbers by GPU id. A dry run only counts."""
    if not dry_run:
        revision.lock(connection)  # rows added to a context during its removal would be orphaned
    by_upload = filters.upload is not None or filters.key is not None
    gone = (_remove_rows if by_upload else _remove_contexts)(connection, filters, dry_run=dry_run)
    if gone and not dry_run:
        revision.bump(connection, "removed")
    return {gpu: rows for gpu, rows in gone.items() if rows}


def _remove_contexts(connection: Connection, filters: Filters, *, dry_run: bool) -> Counter[str]:
    """Delete whole contexts with their rows."""
    columns = (_C.id, _C.gpu_id, _C.measurements)
    found = sa.select(*columns) if dry_run else sa.delete(OPERATOR_CONTEXTS).returning(*columns)
    gone, ids = Counter[str](), list[int]()
    for context_id, gpu, rows in connection.execute(found.where(agreeing_contexts(filters))):
        gone[gpu] += rows
        ids.append(context_id)
    if ids and not dry_run:
        connection.execute(
            sa.delete(OPERATOR_MEASUREMENTS).where(_M.context_id == sa.any_(sa.literal(ids, ARRAY(sa.Integer))))
        )
    return gone


def _remove_rows(connection: Connection, filters: Filters, *, dry_run: bool) -> Counter[str]:
    """Delete the rows of uploads from their contexts."""
    mine = agreeing_contexts(filters) & uploads.in_uploads(filters, _M.upload_id)
    counted = sa.select(_C.id, _C.gpu_id, sa.func.count()).join(OPERATOR_MEASUREMENTS, _M.context_id == _C.id)
    gone = Counter[str]()
    for context_id, gpu, rows in connection.execute(counted.where(mine).group_by(_C.id, _C.gpu_id)).all():
        gone[gpu] += rows
        if not dry_run:
            theirs = (_M.context_id == context_id) & uploads.in_uploads(filters, _M.upload_id)
            connection.execute(sa.delete(OPERATOR_MEASUREMENTS).where(theirs))
            left = sa.update(OPERATOR_CONTEXTS).where(_C.id == context_id)
            connection.execute(left.values(measurements=_C.measurements - rows))
    return gone
