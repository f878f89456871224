"""`gpucast import`: imports measurements from files into the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.serving_deployment import deployment_options
from app.config import Settings
from app.errors import BadInput
from app.formats import FORMS

if TYPE_CHECKING:
    from app.formats.base import Importer, PartsImporter
    from app.services.measurements.importing import ImportReport, PartsReport

_FORMS = "; ".join(f"{name}: {summary}" for name, (_, summary) in FORMS.items())

_RETRAIN = "next: gpucast retrain PREDICTOR"


def command(  # noqa: PLR0913, PLR0917 - one parameter per option
    form: Annotated[str, typer.Argument(metavar="FORM", help=f"Format of the folder. {_FORMS}.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            exists=True,
            help="Folder to import; for measurements, nsys and ncu also a file; for serving files and folders.",
        ),
    ],
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
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="serving: built-in network, or Hugging Face config.json."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="serving: number format of the weights (default: the model's).")
    ] = None,
    tensor: Annotated[
        int | None, typer.Option(min=1, metavar="GPUS", help="serving: GPUs that share a model, tensor-parallel.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="NAME:TAG", help="serving: container image of the engine.")
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="serving: further field of the workload: kv_dtype=fp8, parallelism.expert=8, length_spread=0.2.",
        ),
    ] = None,
) -> None:
    """Import measurements, and report which rows are skipped and why."""
    from app.formats.profiles import ProfileImporter, ProfileOptions
    from app.formats.serving.files import ServingImporter
    from app.services.measurements.importing import find_importer

    importer = find_importer(form)
    served = {"model": model, "dtype": dtype, "tensor": tensor, "image": image, "fields": fields}
    if isinstance(importer, ServingImporter):
        if work is not None:
            raise BadInput("--work applies to profiler exports, not to serving.")
        options = deployment_options(gpu=gpu, software=software, **served)  # type: ignore[arg-type]
        _import(importer.with_options(paths, options), paths[0], dry_run)
        return
    if any(value is not None for value in served.values()):
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
    """Import a path, and print the report."""
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
