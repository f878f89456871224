"""Store checked uploads: those that wait at the same time in one transaction, each with a result of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from app.errors import Conflict, FieldError, Unavailable
from app.services.measurements.check_upload import Checked
from app.services.measurements.doubts import Doubts, set_aside
from app.services.measurements.model_drift import Drift, DriftSample
from app.services.measurements.saving import Owned, gpus_of, save_together
from app.store import doubtful, gpus, measurements, operators, revision, uploads
from app.store.few_operators import Added
from app.store.questions import ask
from app.store.session import Database
from app.tables.arrays import Bools

# Uploads of more rows are stored alone: others would wait for their statements.
MOST_ROWS_TOGETHER = 1_000


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
        unusual = self.dry_run or self.checked.newcomers or self.doubts
        return bool(unusual) or len(self.checked) > MOST_ROWS_TOGETHER


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
    return database.write_together(upload, lambda waiting: [*_stored(database, waiting, announce)])


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
    ids, gone, new = _look(connection, group)
    aside = [set_aside(connection, upload.checked, upload.doubts) for upload in group]
    sound = [Owned(checked, upload_id) for (checked, _, _), upload_id in zip(aside, ids, strict=True)]
    inserted, added = save_together(connection, sound, gone)
    now = None if added is None else added.revision
    results: list[Stored | Exception] = []
    made: list[tuple[int, int | None, int]] = []
    for upload, mask, upload_id, (_, doubts, notes), rows in zip(group, new, ids, aside, inserted, strict=True):
        if isinstance(rows, Conflict):
            results.append(rows)
            continue
        doubted = doubtful.insert(connection, [replace(row, upload_id=upload_id) for row in doubts])
        known = None if upload.dry_run or not rows + doubted else upload_id
        in_doubt = {row.id for row in doubts}
        learned = mask & np.array([row_id not in in_doubt for row_id in upload.sample.ids()], dtype=np.bool_)
        results.append(Stored(rows, doubted, tuple(notes), known, upload.sample.drift(learned), now))
        made.append((upload_id, upload.key_id, rows + doubted))
    uploads.record(connection, made)
    return results, added


class _Look(NamedTuple):
    """Ids for the uploads, GPUs that the database lacks, and which rows of each sample are new, as of the lock."""

    upload_ids: list[int]
    gone: set[str]
    new: list[Bools]


def _look(connection: Connection, group: Sequence[ToStore]) -> _Look:
    """Take the lock for changes, and look at what is stored."""
    samples = [upload.sample for upload in group]
    _, upload_ids, gone, kernels, operator_mask = ask(
        connection,
        revision.LOCK,
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
