"""Import a folder of third-party measurements, and report what was skipped and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from sqlalchemy import Connection

from app import formats
from app.engine.catalogue import load_catalog
from app.errors import BadInput, NotFound
from app.formats import FORMS
from app.formats.base import Importer, PartsImporter, Skipped
from app.formats.profiles import ProfileImporter
from app.formats.serving.files import ServingImporter
from app.services.measurements.check_upload import Checked, check
from app.services.measurements.saving import save
from app.store import gpus as gpu_store
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec
from app.wire.measurements.upload import Objects
from app.wire.near_names import did_you_mean


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
    skipped: tuple[Skipped, ...]
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
        wrong = [Skipped(imported.where[int(e.loc[0])], f"{e.loc[-1]}: {e.msg}") for e in checked.errors]
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
) -> tuple[dict[str, Mapping[str, float]], list[Skipped]]:
    """Write measured figures to the catalogue. Return the changes by GPU id, and the unknown GPUs."""
    own = {spec.id for spec in (*catalog.specs, *checked.newcomers)}
    changed: dict[str, Mapping[str, float]] = {}
    unknown: list[Skipped] = []
    for name, measured in figures.items():
        before = catalog.find(name)
        if before is None:
            unknown.append(Skipped(name, "measured figures of an unknown GPU"))
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
