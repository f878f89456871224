"""Import third-party measurements, whole or part by part: check and store rows, and report what was skipped and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import numpy as np
from sqlalchemy import Connection

from app import formats
from app.engine.catalogue import load_catalog
from app.errors import BadInput, FieldError, NotFound
from app.formats import FORMS
from app.formats.base import Importer, Part, PartsImporter, SkippedRow
from app.formats.profiles import ProfileImporter
from app.formats.serving.files import ServingImporter
from app.services.measurements.check_upload import Checked, check
from app.services.measurements.store_uploads import count_new, save
from app.store import gpus as gpu_store
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec
from app.wire.measurement_form import Objects, UploadPart
from app.wire.names import did_you_mean

# Rows checked and stored in one step.
CHUNK = 100_000
_EXAMPLES = 20
RowGroup = tuple[str, str, str]


def _no_progress(line: str) -> None:
    """Print no progress."""


@dataclass(slots=True)
class PartsReport:
    """Result of an import.

    received  rows found, skipped ones included
    inserted  new rows; `unchanged` ones were stored before
    accepted  valid rows by operator (kernel or model), dtype and GPU id
    skipped   reason -> number of rows left out
    ignored   column -> number of rows, for columns that are not stored
    notes     remarks of the parts
    examples  place and reason of some skipped rows
    """

    received: int = 0
    inserted: int = 0
    unchanged: int = 0
    accepted: Counter[RowGroup] = field(default_factory=Counter)
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
    progress: Callable[[str], None] = _no_progress,
) -> PartsReport:
    """Read, check and store a data set in one transaction, and return the report.

    Impossible rows are skipped with a reason. Unknown columns and malformed cells raise BadInput, and nothing is
    stored. A dry run makes the same checks and changes nothing.
    """
    report, left_out = PartsReport(), 0
    started = time.monotonic()
    with database.begin(long=True) as connection:
        for part in importer.read(path):
            report.received += part.skipped.total()
            left_out += part.skipped.total()
            report.skipped += part.skipped
            report.ignored += part.ignored
            report.notes += part.notes
            for rows in _chunks(part.sent):
                _store(connection, part, rows, report, dry_run)
                rate = report.received / max(time.monotonic() - started, 1e-3)
                progress(f"{part.file}: {report.received:,} rows done, {rate:,.0f} a second")
    # A file may consist of failed runs only.
    if not report.accepted and not 0 < left_out == report.received:
        raise BadInput(f"None of the {report.received:,} rows in {path} can be stored: {_reasons(report)}.")
    return report


def _chunks(rows: UploadPart) -> Iterator[UploadPart]:
    for first in range(0, len(rows), CHUNK):
        yield rows.part(slice(first, first + CHUNK))


def _store(connection: Connection, part: Part, rows: UploadPart, report: PartsReport, dry_run: bool) -> None:
    checked = check(load_catalog(connection), rows, device=part.device)
    if checked.operators is not None and not checked.operators.readable:
        errors = [FieldError((part.file, *error.loc), error.msg) for error in checked.operators.errors]
        raise BadInput(f"{part.file} has cells that cannot be read; nothing was stored.", errors=errors)
    report.received += len(rows)
    inserted = count_new(connection, checked) if dry_run else save(connection, checked)
    report.inserted += inserted
    report.unchanged += len(checked) - inserted
    _note_skipped(part, checked, report)
    report.accepted += _accepted(checked)


def _note_skipped(part: Part, checked: Checked, report: PartsReport) -> None:
    """Add the skipped rows: operators by shared reason, others by their first error."""
    shared = frozenset(() if checked.operators is None else checked.operators.errors)
    if checked.operators is not None:
        report.skipped += checked.operators.reasons
    first = {error.loc[0]: error for error in reversed(checked.errors) if error not in shared}
    report.skipped += Counter(f"{error.loc[-1]}: {error.msg}" for error in first.values())
    for error in checked.errors[: _EXAMPLES - len(report.examples)]:
        report.examples.append(f"{part.file} row {error.loc[0]}: {error.msg}")


def _accepted(checked: Checked) -> Counter[RowGroup]:
    groups = Counter[RowGroup]((row.kind, row.workload.get("dtype", ""), row.gpu_id) for row in checked.rows)
    for block in () if checked.operators is None else checked.operators.blocks:
        rows = np.bincount(block.context, minlength=len(block.contexts)).tolist()
        for item, count in zip(block.contexts, rows, strict=True):
            groups[item.op, item.dtype, item.gpu_id] += count
    return groups


def _reasons(report: PartsReport) -> str:
    return (
        "; ".join(f"{count:,} {reason}" for reason, count in report.skipped.most_common(_EXAMPLES)) or "there are none"
    )


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Result of an import.

    received  rows found, skipped ones included
    inserted  new rows; `unchanged` ones were stored before
    gpus      GPU id -> its changed measured figures, SI units
    """

    received: int
    inserted: int
    unchanged: int
    gpus: Mapping[str, Mapping[str, float]]
    skipped: tuple[SkippedRow, ...]
    notes: tuple[str, ...]


def find_importer(name: str) -> Importer | PartsImporter | ProfileImporter | ServingImporter:
    """Return the registered importer. Raises NotFound that lists them."""
    if name not in FORMS:
        raise NotFound(f"Unknown importer {name!r}{did_you_mean(name, FORMS)}; known: {', '.join(FORMS)}.")
    module = import_module(f"{formats.__name__}.{FORMS[name][0]}")
    importer: Importer | PartsImporter | ProfileImporter | ServingImporter = module.IMPORTERS[name]
    return importer


def import_folder(database: Database, importer: Importer, folder: Path, *, dry_run: bool = False) -> ImportReport:
    """Read, check and store a folder in one transaction, and return the report. Impossible rows are skipped."""
    imported = importer.read(folder)
    with database.begin(long=True) as connection:
        catalog = load_catalog(connection)
        checked = check(catalog, Objects.of(imported.rows))
        if not checked.rows:
            raise BadInput(f"None of the {len(imported.rows)} rows in {folder} can be stored.", errors=checked.errors)
        wrong = [SkippedRow(imported.where[int(e.loc[0])], f"{e.loc[-1]}: {e.msg}") for e in checked.errors]
        with connection.begin_nested() as savepoint:
            inserted = save(connection, checked)
            changed, unknown = _set_figures(connection, catalog, checked, imported.figures)
            if dry_run:
                savepoint.rollback()
    skipped = (*imported.skipped, *wrong, *unknown)
    received = len(imported.rows) + len(imported.skipped)
    return ImportReport(received, inserted, len(checked.rows) - inserted, changed, skipped, imported.notes)


def _set_figures(
    connection: Connection, catalog: Catalog, checked: Checked, figures: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, Mapping[str, float]], list[SkippedRow]]:
    """Write measured figures to the catalogue. Return the changes by GPU id, and the unknown GPUs."""
    own = {spec.id for spec in (*catalog.specs, *checked.newcomers)}
    changed: dict[str, Mapping[str, float]] = {}
    unknown: list[SkippedRow] = []
    for name, measured in figures.items():
        before = catalog.find(name)
        if before is None:
            unknown.append(SkippedRow(name, "measured figures of an unknown GPU"))
            continue
        after = _measured(before, measured)
        if after == before:
            continue
        if before.id in own:
            gpu_store.update_spec(connection, after)
        else:
            gpu_store.insert_spec(connection, after, "import")
        changed[before.id] = measured
    return changed, unknown


def _measured(spec: GpuSpec, figures: Mapping[str, float]) -> GpuSpec:
    provenance = {**spec.provenance, **dict.fromkeys(figures, "measured")}
    return replace(spec, **figures, provenance=provenance)  # type: ignore[arg-type]
