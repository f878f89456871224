"""Store checked rows in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy import Connection

from app.errors import Conflict
from app.services.measurements.check_upload import Checked
from app.store import gpus as gpu_store
from app.store import measurements as store
from app.store import operators as operator_store
from app.store import revision
from app.store.few_operators import Added, Sent
from app.store.operator_blocks import OperatorBlock
from app.store.questions import ask
from app.tables.gpus import GpuSpec


class Owned(NamedTuple):
    """Checked rows, and the upload that brought them; None for imports."""

    checked: Checked
    upload_id: int | None


def save(connection: Connection, checked: Checked, upload_id: int | None = None) -> int:
    """Store the checked rows and their new GPUs, and return the number of new rows. Raises Conflict."""
    _, gone = ask(connection, revision.LOCK, gpu_store.missing(gpus_of([checked])))
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
    newcomers = [spec for each in uploads for spec in each.checked.newcomers]
    for spec in newcomers:
        _add_gpu(connection, spec)
    gone = gone - {spec.id for spec in newcomers}
    refused = [_refusal(gone & gpus_of([each.checked])) for each in uploads]
    sound = [each for each, refusal in zip(uploads, refused, strict=True) if refusal is None]
    rows = [replace(row, upload_id=each.upload_id) for each in sound for row in each.checked.rows]
    inserted = store.insert_uploads(connection, rows)
    sent = [Sent(block, each.upload_id) for each in sound for block in _blocks(each.checked)]
    operators, added = operator_store.insert(connection, sent)
    inserted += operators
    pairs = zip(uploads, refused, strict=True)
    return [inserted[each.upload_id] if refusal is None else refusal for each, refusal in pairs], added


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
