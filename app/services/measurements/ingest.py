"""Ingest measurements: check every row, set doubtful ones aside, then store all or none.

A row is stored once. Its identity is the hash of operator, GPU, software and source, with its time and date. So the
same row sent again, in any format, changes nothing, while a second measurement of the same launch with another result
is a new row: intervals are built from the spread between runs, and the service cannot decide which of two measurements
is right (the user can remove one by its source). Repetitions, spread and power annotate a row and are not part of its
identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import Connection

from app.engine.catalogue import load_catalog
from app.engine.engine import Engine
from app.engine.operator_blocks import to_measurements
from app.errors import BadInput, Conflict, FieldError
from app.runtime.release import release
from app.services.measurements.check_upload import Checked, check, raise_errors
from app.services.measurements.doubts import find_doubts, set_aside
from app.services.measurements.limits import correct_limits
from app.services.measurements.model_drift import Drift, model_drift, sample_rows
from app.store import doubtful, revision, uploads
from app.store import gpus as gpu_store
from app.store import measurements as store
from app.store import operators as operator_store
from app.store.measurement_filters import Filters
from app.store.operator_blocks import OperatorBlock, identities
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec
from app.wire.measurements.upload import Objects, Upload


@dataclass(frozen=True, slots=True)
class Report:
    """Result of an upload: `inserted` rows are new, `unchanged` ones were stored before.

    `doubtful` rows are new and stored apart, with a message each in `doubts`. `upload_id` is None without new rows.
    `skipped` counts rows without a measurement by reason, `ignored` the rows of columns that are not stored. `drift`
    compares new rows with their predictions; None without new rows.
    """

    received: int
    inserted: int
    unchanged: int
    doubtful: int
    doubts: tuple[FieldError, ...]
    upload_id: int | None
    skipped: Mapping[str, int]
    ignored: Mapping[str, int]
    added_gpus: tuple[str, ...]
    drift: Drift | None
    dry_run: bool


def save(connection: Connection, checked: Checked, upload_id: int | None = None) -> int:
    """Store the checked rows, of an upload or an import, and their new GPUs; return the number of new rows."""
    blocks = _blocks(checked)
    revision.lock(connection)
    for spec in checked.newcomers:
        _add_gpu(connection, spec)
    _check_gpus_exist(connection, checked)
    rows = [replace(row, upload_id=upload_id) for row in checked.rows]
    return store.insert(connection, rows) + operator_store.insert(connection, blocks, upload_id)


def _blocks(checked: Checked) -> Sequence[OperatorBlock]:
    return () if checked.operators is None else checked.operators.blocks


def count_new(connection: Connection, checked: Checked) -> int:
    """Return how many rows `save` would add, without changes."""
    ids = {store.identity(row) for row in checked.rows}
    new = len(ids) - len(store.known(connection, sorted(ids)))
    return new + operator_store.count_new(connection, _blocks(checked))


def _check_gpus_exist(connection: Connection, checked: Checked) -> None:
    """Raise Conflict if a GPU was removed since the rows were checked."""
    used = {row.gpu_id for row in checked.rows}
    used |= {item.gpu_id for block in _blocks(checked) for item in block.contexts}
    if gone := gpu_store.missing(connection, used):
        raise Conflict(f"{', '.join(gone)} was removed while these measurements were checked: send them again.")


def _add_gpu(connection: Connection, spec: GpuSpec) -> None:
    try:
        gpu_store.insert_spec(connection, spec, "import")
    except Conflict:
        # Another upload may have added it first; that is fine if both mean the same GPU.
        if gpu_store.get_spec(connection, spec.id) != spec:
            raise


def ingest(
    database: Database,
    engine: Engine,
    upload: Upload,
    *,
    doubtful_factor: float = 0.0,
    key_id: int | None = None,
    dry_run: bool = False,
) -> Report:
    """Check all rows and store all of them, or none. Raises BadInput with the errors by row.

    Rows more than `doubtful_factor` times off what is expected are stored as doubtful; 0: none is. `key_id`: the
    caller's key.
    """
    checked = check(engine.catalog, *upload.parts, device=upload.device)
    if checked.breaches and not dry_run and correct_limits(database, checked.breaches, key_id):
        with database.begin() as connection:
            catalog = load_catalog(connection)
        checked = check(catalog, *upload.parts, device=upload.device)
    measured = len(upload) - upload.skipped.total()
    try:
        raise_errors(checked, measured)
    finally:
        release(checked.errors)
    doubts = find_doubts(engine, checked, doubtful_factor)
    with database.writing(), database.begin(long=True) as connection:
        sound, aside, notes = set_aside(connection, checked, doubts)
        compared = _drift(connection, engine, sound)
        upload_id = uploads.begin(connection, key_id)
        inserted = save(connection, sound, upload_id)
        doubted = doubtful.insert(connection, [replace(row, upload_id=upload_id) for row in aside])
        uploads.end(connection, upload_id, inserted + doubted)
        if dry_run:
            connection.rollback()
    return Report(
        received=len(upload),
        inserted=inserted,
        unchanged=measured - inserted - doubted,
        doubtful=doubted,
        doubts=tuple(notes),
        upload_id=upload_id if inserted + doubted and not dry_run else None,
        skipped=dict(upload.skipped),
        ignored=dict(upload.ignored),
        added_gpus=tuple(spec.id for spec in checked.newcomers),
        drift=compared,
        dry_run=dry_run,
    )


def confirm(database: Database, catalog: Catalog, filters: Filters, *, dry_run: bool = False) -> int:
    """Store the doubtful rows that match every filter like any other, and return their number.

    They stay with the key that sent them. Raises BadInput without a filter.
    """
    if filters == Filters():
        raise BadInput("Give at least one filter: which doubtful measurements are right.")
    with database.begin(long=True) as connection, connection.begin_nested() as savepoint:
        revision.lock(connection)
        rows = doubtful.take(connection, filters)
        for sent in {row.upload_id for row in rows}:
            checked = check(catalog, Objects.of([row.body for row in rows if row.upload_id == sent]))
            raise_errors(checked, len(checked))
            upload_id = uploads.begin(connection, uploads.key_of(connection, sent))
            uploads.end(connection, upload_id, save(connection, checked, upload_id))
        if dry_run:
            savepoint.rollback()
    return len(rows)


def _drift(connection: Connection, engine: Engine, checked: Checked) -> Drift | None:
    """Return the drift of a sample of the new rows; a stored row would be compared with itself."""
    fresh = []
    if checked.measured is not None:
        chosen = sample_rows(len(checked.measured))
        ids = [store.identity(checked.rows[k]) for k in chosen]
        known = store.known(connection, ids)
        new = np.array([k for k, row_id in zip(chosen, ids, strict=True) if row_id not in known], dtype=np.intp)
        fresh.append(checked.measured.take(new))
    if checked.operators is not None:
        chosen, first = sample_rows(len(checked.operators)), 0
        for block in checked.operators.blocks:
            part = block.take(chosen[(chosen >= first) & (chosen < first + len(block))] - first)
            first += len(block)
            new = np.flatnonzero(~operator_store.known(connection, identities(part)))
            fresh.append(to_measurements(part.take(new), checked.gpus))
    return model_drift(engine, [table for table in fresh if len(table)], checked.gpus)
