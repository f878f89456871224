"""`gpucast import`: other people's measurements into the database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.config import Settings
from app.services.importers import IMPORTERS
from app.services.imports import ImportReport, import_folder, importer_named
from app.services.runtime import open_runtime

_FORMS = "; ".join(f"{importer.name}: {importer.summary}" for importer in IMPORTERS)


def command(
    form: Annotated[str, typer.Argument(metavar="FORM", help=f"What the folder holds. {_FORMS}.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The folder.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and store nothing.")] = False,
) -> None:
    """Bring in a folder of measurements; says which rows it leaves out, and why."""
    importer = importer_named(form)
    print(f"reading {folder} as {importer.name} ...", flush=True)
    with open_runtime(Settings.from_env()) as runtime:
        report = import_folder(runtime.database, importer, folder, dry_run=dry_run)
    _tell(report, dry_run)


def _tell(report: ImportReport, dry_run: bool) -> None:
    for note in report.notes:
        print(f"note: {note}")
    for skip in report.skipped:
        print(f"skipped {skip.where}: {skip.reason}")
    for gpu, figures in report.gpus.items():
        print(f"measured {gpu}: " + ", ".join(f"{name} {value:.6g}" for name, value in figures.items()))
    would = "would be " if dry_run else ""
    print(
        f"{report.received} rows: {report.inserted} {would}new, {report.unchanged} already there,"
        f" {len(report.skipped)} skipped"
    )
    if not dry_run:
        print("next: gpucast retrain forest")
