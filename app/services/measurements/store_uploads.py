"""Ingest measurements: check every row, set doubtful ones aside, then store all of an upload or none.

Uploads that wait at the same time are stored in one transaction, each with a result of its own. A row is stored once.
Its identity is the hash of operator, GPU, software and source, with its time and date. So the same row sent again, in
any format, changes nothing, while a second measurement of the same launch with another result is a new row: intervals
are built from the spread between runs, and the service cannot decide which of two measurements is right (the user can
remove one by its source). Repetitions, spread and power annotate a row and are not part of its identity.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection

from app.coefficients import Coefficients
from app.engine.catalogue import load_catalog
from app.engine.engine import Engine
from app.errors import BadInput, Conflict, FieldError, Unavailable
from app.runtime.cancellation import shared
from app.runtime.release import release
from app.services.measurements.check_operators import correct_limits
from app.services.measurements.check_upload import Checked, check, raise_errors
from app.services.measurements.doubts import Doubts, DriftSample, compare_with_predictions, set_aside
from app.store import doubtful, gpus, measurements, operators, revision, uploads
from app.store import gpus as gpu_store
from app.store import measurements as store
from app.store import operators as operator_store
from app.store.doubtful import DoubtfulRow
from app.store.driver import Question, ask
from app.store.operator_blocks import OperatorBlock
from app.store.operators import Added, Inserted, Sent
from app.store.session import Database
from app.store.uploads import Filters
from app.tables.arrays import Bools
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec
from app.wire.measurement_form import Doubt, Drift, Objects, Upload, UploadReport

# Uploads of more rows are stored alone, and no more once their caller left: others would wait for their statements.
MOST_ROWS_TOGETHER = 1_000
# Time that rows of a small upload may wait for equal ones of a large one, which are not committed yet. Others wait too.
_IN_THE_WAY_S = Coefficients("service").number("equal_rows_wait_s")
# Held while one of those is checked: of threads that want Python's lock each makes a prediction wait for a millisecond,
# as often as it takes one itself.
_CHECKING = threading.Lock()


class Owned(NamedTuple):
    """Checked rows, and the upload that brought them; None for imports."""

    checked: Checked
    upload_id: int | None


def save(connection: Connection, checked: Checked, upload_id: int | None = None) -> int:
    """Store the checked rows and their new GPUs, and return the number of new rows. Raises Conflict."""
    _, _, gone = ask(connection, revision.LOCK_MANY, revision.LOCK, gpu_store.missing(gpus_of([checked])))
    (inserted,), _ = save_together(connection, [Owned(checked, upload_id)], gone)
    if isinstance(inserted, Conflict):
        raise inserted
    return inserted


def save_together(
    connection: Connection, uploads: Sequence[Owned], gone: set[str]
) -> tuple[list[int | Conflict], Added | None]:
    """Store the rows of several uploads as one after the other; return the number of new rows of each, and operators.

    The caller holds `revision.lock`. The number is the Conflict of those that use a GPU of `gone`, which the database
    lacks: it was removed since they were checked. An upload with new GPUs comes alone: its Conflict is raised.
    """
    gone = _without_newcomers(connection, [each.checked for each in uploads], gone)
    refused = [_refusal(gone & gpus_of([each.checked])) for each in uploads]
    sound = [each for each, refusal in zip(uploads, refused, strict=True) if refusal is None]
    rows = [replace(row, upload_id=each.upload_id) for each in sound for row in each.checked.rows]
    inserted = store.insert_uploads(connection, rows)
    sent = [Sent(block, each.upload_id) for each in sound for block in _blocks(each.checked)]
    operators, added, _ = operator_store.insert(connection, sent)
    inserted += operators
    pairs = zip(uploads, refused, strict=True)
    return [inserted[each.upload_id] if refusal is None else refusal for each, refusal in pairs], added


def _without_newcomers(connection: Connection, uploads: Sequence[Checked], gone: set[str]) -> set[str]:
    """Store the new GPUs of uploads, and return the ids of the others that the database lacks."""
    newcomers = [spec for checked in uploads for spec in checked.newcomers]
    for spec in newcomers:
        _add_gpu(connection, spec)
    return gone - {spec.id for spec in newcomers}


def _save_ahead(connection: Connection, upload: Owned, dry_run: bool) -> tuple[int, int | None]:
    """Store many rows before `revision.lock`, which this takes last; return the number of new ones, and their revision.

    Their contexts are there. A dry run only counts them. Raises Conflict.
    """
    checked, upload_id = upload
    assert upload_id is not None
    inserted, operators = Counter[int | None](), Inserted(Counter())
    if dry_run:
        inserted[upload_id] = count_new(connection, checked)
    else:
        rows = [replace(row, upload_id=upload_id) for row in checked.rows]
        inserted = store.insert_uploads(connection, rows, ahead=True)
        sent = [Sent(block, upload_id) for block in _blocks(checked)]
        operators = operator_store.insert_ahead(connection, sent, upload_id)
    _, gone = ask(connection, revision.LOCK, gpu_store.missing(gpus_of([checked])))
    if refusal := _refusal(_without_newcomers(connection, [checked], gone)):
        raise refusal
    if inserted:
        revision.bump(connection, "measurements")
    made = operator_store.publish(connection, operators)
    return (inserted + operators.rows)[upload_id], made


def gpus_of(uploads: Sequence[Checked]) -> set[str]:
    """Return the ids of the GPUs that rows of these uploads were measured on."""
    rows = {row.gpu_id for checked in uploads for row in checked.rows}
    return rows | {item.gpu_id for checked in uploads for block in _blocks(checked) for item in block.contexts}


def count_new(connection: Connection, checked: Checked) -> int:
    """Return how many rows `save` would add, without changes."""
    ids = {store.identity(row) for row in checked.rows}
    new = len(ids) - len(store.known(connection, sorted(ids)))
    return new + operator_store.count_new(connection, _blocks(checked))


def _blocks(checked: Checked) -> Sequence[OperatorBlock]:
    return () if checked.operators is None else checked.operators.blocks


def _refusal(gone: set[str]) -> Conflict | None:
    if not gone:
        return None
    return Conflict(f"{', '.join(sorted(gone))} was removed while these measurements were checked: send them again.")


def _add_gpu(connection: Connection, spec: GpuSpec) -> None:
    try:
        gpu_store.insert_spec(connection, spec, "import")
    except Conflict:
        # Another upload may have added it first; that is fine if both mean the same GPU.
        if gpu_store.get_spec(connection, spec.id) != spec:
            raise


class ToStore(NamedTuple):
    """A checked upload without errors, its doubtful rows, its comparison with predictions, and the caller's key."""

    checked: Checked
    doubts: Doubts
    sample: DriftSample
    key_id: int | None
    dry_run: bool

    @property
    def is_alone(self) -> bool:
        """Whether it needs a transaction of its own."""
        return bool(self.dry_run or self.checked.newcomers or self.doubts)


class Stored(NamedTuple):
    """Numbers of new rows of an upload, doubtful ones apart, with a message for each of those.

    `upload_id` is None without new rows; `drift` is that of the new rows that are not doubtful. `revision` has
    all rows; None: the current one has.
    """

    inserted: int
    doubted: int
    notes: tuple[FieldError, ...]
    upload_id: int | None
    drift: Drift | None
    revision: int | None


# Called with new rows once they are committed.
Announce = Callable[[Added], None]


def store_upload(database: Database, upload: ToStore, announce: Announce) -> Stored:
    """Store an upload, together with others that wait meanwhile. Raises Conflict, Unavailable or StorageFull."""
    if len(upload.checked) <= MOST_ROWS_TOGETHER:
        with suppress(_InTheWay):
            return database.write_together(
                upload, lambda waiting: shared(lambda: [*_stored(database, waiting, announce)])
            )
    return _store_many(database, upload)


class _InTheWay(Exception):
    """Rows of an upload are among those of a large one, which is being stored."""


def _store_many(database: Database, upload: ToStore) -> Stored:
    """Store an upload of many rows beside small ones, which wait for the end of it alone, for milliseconds.

    Raises as `store_upload`.
    """
    with database.begin(long=True) as connection:
        ids, gone, (mask,) = _look(connection, [upload], revision.LOCK_MANY)
        if not upload.dry_run:
            contexts = [item for block in _blocks(upload.checked) for item in block.contexts]
            operator_store.add_missing_contexts(database, contexts)
        if refusal := _refusal(gone - {spec.id for spec in upload.checked.newcomers}):
            raise refusal
        checked, doubts, notes = set_aside(connection, upload.checked, upload.doubts)
        rows, made = _save_ahead(connection, Owned(checked, ids[0]), upload.dry_run)
        result = _result(connection, upload, ids[0], (doubts, notes), rows, mask)
        uploads.record(connection, [(ids[0], upload.key_id, result.inserted + result.doubted, made)])
        if upload.dry_run:
            connection.rollback()
    return result


def _stored(database: Database, waiting: Sequence[ToStore], announce: Announce) -> Iterator[Stored | Exception]:
    """Yield the result or the error of each upload, stored in the given order."""
    for _, group in groupby(enumerate(waiting), lambda item: item[0] if item[1].is_alone else -1):
        yield from _attempted(database, [upload for _, upload in group], announce)


def _attempted(database: Database, group: Sequence[ToStore], announce: Announce) -> Sequence[Stored | Exception]:
    """Store uploads in one transaction, or, if one of them makes it fail, each in its own."""
    try:
        with database.begin(long=True) as connection:
            results, added = _store(connection, group)
            if group[0].dry_run:
                connection.rollback()
    except Unavailable as error:  # of the database: no try of one of them would do better
        return [error] * len(group)
    except Exception as error:
        if len(group) == 1:
            return [error]
        return [result for upload in group for result in _attempted(database, [upload], announce)]
    if added is not None and not group[0].dry_run:
        announce(added)
    return results


def _store(connection: Connection, group: Sequence[ToStore]) -> tuple[Sequence[Stored | Exception], Added | None]:
    """Return the result or the error of each upload, and the new operators, unless they are too many."""
    ids, gone, new = _look(connection, group, revision.LOCK, _IMPATIENCE)
    aside = [set_aside(connection, upload.checked, upload.doubts) for upload in group]
    sound = [Owned(checked, upload_id) for (checked, _, _), upload_id in zip(aside, ids, strict=True)]
    try:
        inserted, added = save_together(connection, sound, gone)
    except LockNotAvailable as error:
        raise _InTheWay from error
    # The rows of a group that has others too are read with them.
    now = None if added is None or any(upload.checked.rows for upload in group) else added.revision
    results: list[Stored | Exception] = []
    for upload, mask, upload_id, (_, doubts, notes), rows in zip(group, new, ids, aside, inserted, strict=True):
        if isinstance(rows, Conflict):
            results.append(rows)
            continue
        results.append(_result(connection, upload, upload_id, (doubts, notes), rows, mask)._replace(revision=now))
    parts = zip(ids, group, results, strict=True)
    stored = [(number, upload.key_id, each) for number, upload, each in parts if isinstance(each, Stored)]
    uploads.record(connection, [(number, key, each.inserted + each.doubted, None) for number, key, each in stored])
    return results, added


def _result(
    connection: Connection,
    upload: ToStore,
    upload_id: int,
    aside: tuple[Sequence[DoubtfulRow], Sequence[FieldError]],
    inserted: int,
    new: Bools,
) -> Stored:
    """Store the doubtful rows of an upload, and return its result; `new` tells the new rows of its sample."""
    doubts, notes = aside
    doubted = doubtful.insert(connection, [replace(row, upload_id=upload_id) for row in doubts])
    known = None if upload.dry_run or not inserted + doubted else upload_id
    in_doubt = {row.id for row in doubts}
    learned = new & np.array([row_id not in in_doubt for row_id in upload.sample.ids()], dtype=np.bool_)
    return Stored(inserted, doubted, tuple(notes), known, upload.sample.drift(learned), None)


# From the lock for changes on nothing of a small upload waits for anything but equal rows that a large one inserts.
_IMPATIENCE = Question(f"SET LOCAL lock_timeout = {1e3 * _IN_THE_WAY_S:.0f}", (), len)


class _Look(NamedTuple):
    """Ids for the uploads, GPUs that the database lacks, and which rows of each sample are new."""

    upload_ids: list[int]
    gone: set[str]
    new: list[Bools]


def _look(connection: Connection, group: Sequence[ToStore], *locks: Question[Any]) -> _Look:
    """Take locks, and look at what is stored."""
    samples = [upload.sample for upload in group]
    *_, upload_ids, gone, kernels, operator_mask = ask(
        connection,
        *locks,
        uploads.new_ids(len(group)),
        gpus.missing(gpus_of([upload.checked for upload in group])),
        measurements.stored([row_id for sample in samples for row_id in sample.kernels]),
        operators.stored(np.concatenate([sample.operators for sample in samples])),
    )
    parts = np.split(operator_mask, np.cumsum([len(sample.operators) for sample in samples])[:-1])
    new = [
        ~np.array([*(row_id in kernels for row_id in sample.kernels), *part], dtype=np.bool_)
        for sample, part in zip(samples, parts, strict=True)
    ]
    return _Look(upload_ids, gone, new)


def ingest(
    database: Database,
    engine: Engine,
    upload: Upload,
    *,
    doubtful_factor: float = 0.0,
    key_id: int | None = None,
    dry_run: bool = False,
    announce: Announce = lambda _: None,
) -> tuple[UploadReport, int | None]:
    """Check all rows and store all of them, or none; return also a revision that has them (None: the current one).

    Raises BadInput with the errors by row.

    Rows more than `doubtful_factor` times off what is expected are stored as doubtful; 0: none is. `key_id`: the
    caller's key. `announce` is called with new operators once they are committed, those of other uploads included.
    """
    checked = _checked(engine.catalog, upload)
    is_corrected = bool(checked.breaches) and not dry_run and correct_limits(database, checked.breaches, key_id)
    if is_corrected:
        with database.begin() as connection:
            catalog = load_catalog(connection)
        checked = _checked(catalog, upload)
    measured = len(upload) - upload.skipped.total()
    try:
        raise_errors(checked, measured)
    finally:
        release(checked.errors)
    stored = store_upload(database, _to_store(engine, checked, doubtful_factor, key_id, dry_run=dry_run), announce)
    report = UploadReport(
        received=len(upload),
        inserted=stored.inserted,
        unchanged=measured - stored.inserted - stored.doubted,
        doubtful=stored.doubted,
        doubts=[Doubt(list(note.loc), note.msg) for note in stored.notes],
        upload_id=stored.upload_id,
        skipped=dict(upload.skipped),
        ignored=dict(upload.ignored),
        added_gpus=[spec.id for spec in checked.newcomers],
        drift=stored.drift,
        dry_run=dry_run,
    )
    return report, None if is_corrected else stored.revision


def _checked(catalog: Catalog, upload: Upload) -> Checked:
    with _turn(len(upload)):
        return check(catalog, *upload.parts, device=upload.device)


def _turn(rows: int) -> AbstractContextManager[object]:
    """Return what to hold while so many rows are checked."""
    return _CHECKING if rows <= MOST_ROWS_TOGETHER else nullcontext()


def _to_store(engine: Engine, checked: Checked, factor: float, key_id: int | None, *, dry_run: bool) -> ToStore:
    with _turn(len(checked)):
        doubts, sample = compare_with_predictions(engine, checked, factor)
    return ToStore(checked, doubts, sample, key_id, dry_run)


def confirm(database: Database, catalog: Catalog, filters: Filters, *, dry_run: bool = False) -> int:
    """Store the doubtful rows that match every filter like any other, with the key that sent them; return their number.

    Raises BadInput without a filter.
    """
    if filters == Filters():
        raise BadInput("Give at least one filter: which doubtful measurements are right.")
    with database.begin(long=True) as connection, connection.begin_nested() as savepoint:
        ask(connection, revision.LOCK_MANY, revision.LOCK)
        rows = doubtful.take(connection, filters)
        for sent in {row.upload_id for row in rows}:
            checked = check(catalog, Objects.of([row.body for row in rows if row.upload_id == sent]))
            raise_errors(checked, len(checked))
            ((upload_id,),) = ask(connection, uploads.new_ids(1))
            inserted = save(connection, checked, upload_id)
            uploads.record(connection, [(upload_id, uploads.key_of(connection, sent), inserted, None)])
        if dry_run:
            savepoint.rollback()
    return len(rows)
