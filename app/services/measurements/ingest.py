"""Ingest measurements: check every row, set doubtful ones aside, then store all or none.

A row is stored once. Its identity is the hash of operator, GPU, software and source, with its time and date. So the
same row sent again, in any format, changes nothing, while a second measurement of the same launch with another result
is a new row: intervals are built from the spread between runs, and the service cannot decide which of two measurements
is right (the user can remove one by its source). Repetitions, spread and power annotate a row and are not part of its
identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.engine.catalogue import load_catalog
from app.engine.engine import Engine
from app.errors import BadInput, FieldError
from app.runtime.release import release
from app.services.measurements.check_upload import Checked, check, raise_errors
from app.services.measurements.doubts import find_doubts
from app.services.measurements.limits import correct_limits
from app.services.measurements.model_drift import Drift, drift_sample, expected_times
from app.services.measurements.store_uploads import Announce, ToStore, save, store_upload
from app.store import doubtful, revision, uploads
from app.store.driver import ask
from app.store.measurement_filters import Filters
from app.store.session import Database
from app.tables.catalog import Catalog
from app.wire.upload import Objects, Upload


@dataclass(frozen=True, slots=True)
class UploadReport:
    """Result of an upload: `inserted` rows are new, `unchanged` ones were stored before.

    `doubtful` rows are new and stored apart, with a message each in `doubts`. `upload_id` is None without new rows.
    `skipped` counts rows without a measurement by reason, `ignored` the rows of columns that are not stored. `drift`
    compares new rows with their predictions; None without new rows. A snapshot of `revision`, or else the current one,
    has the rows.
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
    revision: int | None


def ingest(
    database: Database,
    engine: Engine,
    upload: Upload,
    *,
    doubtful_factor: float = 0.0,
    key_id: int | None = None,
    dry_run: bool = False,
    announce: Announce = lambda _: None,
) -> UploadReport:
    """Check all rows and store all of them, or none. Raises BadInput with the errors by row.

    Rows more than `doubtful_factor` times off what is expected are stored as doubtful; 0: none is. `key_id`: the
    caller's key. `announce` is called with new operators once they are committed, those of other uploads included.
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
    stored = store_upload(database, _to_store(engine, checked, doubtful_factor, key_id, dry_run=dry_run), announce)
    return UploadReport(
        received=len(upload),
        inserted=stored.inserted,
        unchanged=measured - stored.inserted - stored.doubted,
        doubtful=stored.doubted,
        doubts=stored.notes,
        upload_id=stored.upload_id,
        skipped=dict(upload.skipped),
        ignored=dict(upload.ignored),
        added_gpus=tuple(spec.id for spec in checked.newcomers),
        drift=stored.drift,
        dry_run=dry_run,
        revision=stored.revision,
    )


def _to_store(engine: Engine, checked: Checked, factor: float, key_id: int | None, *, dry_run: bool) -> ToStore:
    expected = expected_times(engine, checked)
    doubts = find_doubts(engine, checked, expected, factor)
    return ToStore(checked, doubts, drift_sample(checked, expected), key_id, dry_run)


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
            ((upload_id,),) = ask(connection, uploads.new_ids(1))
            inserted = save(connection, checked, upload_id)
            uploads.record(connection, [(upload_id, uploads.key_of(connection, sent), inserted)])
        if dry_run:
            savepoint.rollback()
    return len(rows)
