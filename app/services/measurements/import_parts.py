"""Bringing in measurements part by part, however many: checked, stored, and what came in and what was left out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import Connection

from app.engine.catalogue import load_catalog
from app.errors import BadInput, FieldError
from app.services.measurements.importers.base import Part, PartsImporter
from app.services.measurements.ingest import Checked, check, count_new, save
from app.store.session import Database
from app.wire.measurements.upload import UploadPart

# Rows checked and stored at once.
CHUNK = 100_000
_EXAMPLES = 20
Arrived = tuple[str, str, str]


def _silent(line: str) -> None:
    """Nobody looks on."""


@dataclass(slots=True)
class PartsReport:
    """What became of a data set.

    received  rows found, skipped ones included
    inserted  rows that are new; `unchanged` ones were stored before
    arrived   sound rows by operator (kernel or model), dtype and GPU id
    skipped   rows left out: why, and how many
    ignored   columns that nothing stores: how many rows have them
    notes     what else the parts say
    examples  some of the rows left out: where they stood, and why
    """

    received: int = 0
    inserted: int = 0
    unchanged: int = 0
    arrived: Counter[Arrived] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


def import_parts(
    database: Database,
    importer: PartsImporter,
    path: Path,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = _silent,
) -> PartsReport:
    """Read, check and store a data set in one transaction.

    Rows that cannot be true are skipped, each with its reason; columns and cells that are not in the form are refused,
    and then nothing is stored. A dry run checks the same and changes nothing.
    """
    report, left_out = PartsReport(), 0
    started = time.monotonic()
    with database.begin() as connection:
        for part in importer.read(path):
            report.received += part.skipped.total()
            left_out += part.skipped.total()
            report.skipped += part.skipped
            report.ignored += part.ignored
            report.notes += part.notes
            for sent in _chunks(part.sent):
                _take_in(connection, part, sent, report, dry_run)
                rate = report.received / max(time.monotonic() - started, 1e-3)
                progress(f"{part.file}: {report.received:,} rows done, {rate:,.0f} a second")
    # A file may tell of runs that all failed.
    if not report.arrived and not 0 < left_out == report.received:
        raise BadInput(f"None of the {report.received:,} rows in {path} can be stored: {_reasons(report)}.")
    return report


def _chunks(sent: UploadPart) -> Iterator[UploadPart]:
    for first in range(0, len(sent), CHUNK):
        yield sent.part(slice(first, first + CHUNK))


def _take_in(connection: Connection, part: Part, sent: UploadPart, report: PartsReport, dry_run: bool) -> None:
    checked = check(load_catalog(connection), sent, device=part.device)
    if checked.operators is not None and not checked.operators.readable:
        errors = [FieldError((part.file, *error.loc), error.msg) for error in checked.operators.errors]
        raise BadInput(f"{part.file} has cells that cannot be read; nothing was stored.", errors=errors)
    report.received += len(sent)
    inserted = count_new(connection, checked) if dry_run else save(connection, checked)
    report.inserted += inserted
    report.unchanged += len(checked) - inserted
    _note_skipped(part, checked, report)
    report.arrived += _arrived(checked)


def _note_skipped(part: Part, checked: Checked, report: PartsReport) -> None:
    """Rows left out: operators by the reason they share, others by what is first wrong with each."""
    shared = frozenset(() if checked.operators is None else checked.operators.errors)
    if checked.operators is not None:
        report.skipped += checked.operators.reasons
    first = {error.loc[0]: error for error in reversed(checked.errors) if error not in shared}
    report.skipped += Counter(f"{error.loc[-1]}: {error.msg}" for error in first.values())
    for error in checked.errors[: _EXAMPLES - len(report.examples)]:
        report.examples.append(f"{part.file} row {error.loc[0]}: {error.msg}")


def _arrived(checked: Checked) -> Counter[Arrived]:
    found = Counter[Arrived]((row.kind, row.workload.get("dtype", ""), row.gpu_id) for row in checked.rows)
    for block in () if checked.operators is None else checked.operators.blocks:
        rows = np.bincount(block.context, minlength=len(block.contexts)).tolist()
        for item, count in zip(block.contexts, rows, strict=True):
            found[item.op, item.dtype, item.gpu_id] += count
    return found


def _reasons(report: PartsReport) -> str:
    return (
        "; ".join(f"{count:,} {reason}" for reason, count in report.skipped.most_common(_EXAMPLES)) or "there are none"
    )
