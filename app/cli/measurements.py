"""`gpucast import` and `gpucast measurements`: imports measurements from files, deletes and confirms stored ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli.database import open_catalog
from app.cli.options import ServedModel, with_options
from app.config import Settings
from app.errors import BadInput
from app.formats import FORMS

if TYPE_CHECKING:
    from app.formats.base import Importer, PartsImporter
    from app.services.measurements.importing import ImportReport, PartsReport
    from app.store.uploads import Filters
    from app.tables.catalog import Catalog

_FORMS = "; ".join(f"{name}: {summary}" for name, (_, summary) in FORMS.items())
_RETRAIN = "next: gpucast retrain PREDICTOR"

measurements = typer.Typer(no_args_is_help=True, help="Delete stored measurements, or confirm doubtful ones.")


@dataclass(frozen=True, kw_only=True)
class DoubtfulRows:
    """Options of which stored measurements a command is about: those that match all that are given."""

    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this GPU (id, alias or name).")] = None
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Those from this source.")] = None
    upload: Annotated[int | None, typer.Option(metavar="ID", help="Those that this upload brought.")] = None
    key: Annotated[int | None, typer.Option(metavar="ID", help="Those that this API key sent.")] = None

    def filters(self, catalog: Catalog) -> Filters:
        """Return the store's filters. Raises NotFound for an unknown GPU."""
        from app.store.uploads import Filters

        given = asdict(self)
        return Filters(**given | {"gpu": None if self.gpu is None else catalog.resolve(self.gpu).id})


@dataclass(frozen=True, kw_only=True)
class StoredRows(DoubtfulRows):
    """Options of which measurements of all kinds a command is about."""

    kind: Annotated[
        Literal["kernel", "operator", "model", "serving"] | None, typer.Option(help="Those of this kind.")
    ] = None
    name: Annotated[str | None, typer.Option(help="Those of this kernel, operator or model.")] = None
    software: Annotated[str | None, typer.Option(metavar="NAME", help="Those of this software stack.")] = None


@measurements.command("delete")
@with_options
def delete(
    rows: StoredRows,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows that would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
) -> None:
    """Delete the measurements that match all given options, after showing their number and asking."""
    from app.services.measurements.stored import remove

    with open_catalog() as (runtime, catalog):
        filters = rows.filters(catalog)
        counts = remove(runtime.database, filters, dry_run=True)
        for (what, where), count in counts.items():
            print(f"{what:<10}{where:<28}{count:>12,}")
        total = sum(counts.values())
        if dry_run or (not total and rows.key is None):  # of a key, refused measurements are withdrawn too
            print(f"{total:,} measurements would be deleted" if dry_run else "no measurement matches")
            return
        if not yes:
            typer.confirm(f"Delete {total:,} measurements?", abort=True)
        total = sum(remove(runtime.database, filters).values())
    print(f"{total:,} measurements deleted\nnext: gpucast retrain PREDICTOR, for versions trained on them")


@measurements.command("confirm")
@with_options
def confirm(
    rows: DoubtfulRows,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows that would be confirmed.")] = False,
) -> None:
    """Take the doubtful measurements that match all given options for right: they are used from now on."""
    from app.services.measurements.store_uploads import confirm as take

    with open_catalog() as (runtime, catalog):
        count = take(runtime.database, catalog, rows.filters(catalog), dry_run=dry_run)
    print(f"{count:,} measurements {'would be confirmed' if dry_run else 'confirmed'}")


@dataclass(frozen=True, kw_only=True)
class ImportedModel(ServedModel):
    """Options of the served model that files are about."""

    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="serving: number format of the weights (default: the model's).")
    ] = None


@with_options
def import_files(
    form: Annotated[str, typer.Argument(metavar="FORM", help=f"Format of the folder. {_FORMS}.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            exists=True,
            help="Folder to import; for measurements, nsys and ncu also a file; for serving files and folders.",
        ),
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and store nothing.")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="nsys, ncu, serving: GPU, instead of the one named in the file."),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="nsys, ncu: CSV with the work of each launch: a column kernel (symbol, * matches any part), optionally"
            " grid (64x64x1), and flops, bytes, ... or op and the operator's fields.",
        ),
    ] = None,
    software: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="nsys, ncu: software stack (default: cuda); serving: engine and version, vllm-0.19.0.",
        ),
    ] = None,
    served: ImportedModel,
) -> None:
    """Import measurements, and report which rows are skipped and why."""
    from app.formats.profiles import ProfileImporter, ProfileOptions
    from app.formats.serving.files import ServingImporter
    from app.services.measurements.importing import find_importer

    importer = find_importer(form)
    if isinstance(importer, ServingImporter):
        if work is not None:
            raise BadInput("--work applies to profiler exports, not to serving.")
        deployment = served.deployment(gpu, software, served.dtype)
        _import(importer.with_options(paths, deployment), paths[0], dry_run)
        return
    if served.is_given:
        raise BadInput(f"--model, --dtype, --tensor, --image and --set apply to serving, not to {importer.name}.")
    if len(paths) > 1:
        raise BadInput(f"{importer.name} reads one path: import {paths[1]} by itself.")
    if isinstance(importer, ProfileImporter):
        importer = importer.with_options(ProfileOptions(gpu, software or "cuda", work))
    elif gpu or work or software:
        raise BadInput(f"--gpu, --work and --software apply to profiler exports, not to {importer.name}.")
    elif not paths[0].is_dir() and importer.name != "measurements":
        raise BadInput(f"{paths[0]} is a file; {importer.name} reads a folder.")
    _import(importer, paths[0], dry_run)


def _import(importer: Importer | PartsImporter, path: Path, dry_run: bool) -> None:
    from app.bootstrap.runtime import open_runtime
    from app.formats.base import PartsImporter
    from app.services.measurements.importing import import_folder, import_parts

    print(f"reading {path} as {importer.name} ...", flush=True)
    with open_runtime(Settings.from_env()) as runtime:
        if isinstance(importer, PartsImporter):
            _report_parts(import_parts(runtime.database, importer, path, dry_run=dry_run, progress=_progress), dry_run)
        else:
            _report(import_folder(runtime.database, importer, path, dry_run=dry_run), dry_run, importer.name)


def _progress(line: str) -> None:
    print(line, flush=True)


def _report(report: ImportReport, dry_run: bool, form: str) -> None:
    for note in report.notes:
        print(f"note: {note}")
    for skip in report.skipped:
        print(f"skipped {skip.where}: {skip.reason}")
    for gpu, figures in report.gpus.items():
        print(f"measured {gpu}: " + ", ".join(f"{name} {value:.6g}" for name, value in figures.items()))
    _total(report, len(report.skipped), dry_run, None if form == "serving" else _RETRAIN)


def _report_parts(report: PartsReport, dry_run: bool) -> None:
    for note in report.notes:
        print(f"note: {note}")
    for example in report.examples:
        print(f"skipped {example}")
    for (what, dtype, gpu), rows in sorted(report.accepted.items()):
        print(f"{what:<20}{dtype:<18}{gpu:<28}{rows:>10,}")
    for reason, rows in report.skipped.most_common():
        print(f"skipped {rows:,} rows: {reason}")
    for column, rows in report.ignored.items():
        print(f"ignored {column} of {rows:,} rows: it is not stored")
    _total(report, report.skipped.total(), dry_run, _RETRAIN)


def _total(report: ImportReport | PartsReport, skipped: int, dry_run: bool, following: str | None) -> None:
    would = "would be " if dry_run else ""
    print(f"{report.received} rows: {report.inserted} {would}new, {report.unchanged} already stored, {skipped} skipped")
    if not dry_run:
        print(following or "predictions of these deployments use them from now on")
