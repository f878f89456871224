"""`gpucast measurements`: deletes stored measurements, and confirms doubtful ones."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from app.config import Settings

command = typer.Typer(no_args_is_help=True, help="Delete stored measurements, or confirm doubtful ones.")


@command.command("delete")
def delete(  # noqa: PLR0913, PLR0917 - one parameter per option
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete those of this GPU (id, alias or name).")
    ] = None,
    kind: Annotated[
        Literal["kernel", "operator", "model", "serving"] | None, typer.Option(help="Delete those of this kind.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Delete those of this kernel, operator or model.")] = None,
    software: Annotated[str | None, typer.Option(metavar="NAME", help="Delete those of this software stack.")] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Delete those from this source.")] = None,
    upload: Annotated[int | None, typer.Option(metavar="ID", help="Delete those that this upload brought.")] = None,
    key: Annotated[int | None, typer.Option(metavar="ID", help="Delete those that this API key sent.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows that would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
) -> None:
    """Delete the measurements that match all given options, after showing their number and asking."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.services.measurements.stored import remove
    from app.store.measurement_filters import Filters

    with open_runtime(Settings.from_env()) as runtime:
        if gpu is not None:
            with runtime.database.begin() as connection:
                gpu = load_catalog(connection).resolve(gpu).id
        filters = Filters(gpu=gpu, kind=kind, name=name, software=software, source=source, upload=upload, key=key)
        counts = remove(runtime.database, filters, dry_run=True)
        for (what, where), rows in counts.items():
            print(f"{what:<10}{where:<28}{rows:>12,}")
        total = sum(counts.values())
        if dry_run or (not total and key is None):  # of a key, refused measurements are withdrawn too
            print(f"{total:,} measurements would be deleted" if dry_run else "no measurement matches")
            return
        if not yes:
            typer.confirm(f"Delete {total:,} measurements?", abort=True)
        total = sum(remove(runtime.database, filters).values())
    print(f"{total:,} measurements deleted\nnext: gpucast retrain PREDICTOR, for versions trained on them")


@command.command("confirm")
def confirm(
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Confirm those of this GPU (id, alias or name).")
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Confirm those from this source.")] = None,
    upload: Annotated[int | None, typer.Option(metavar="ID", help="Confirm those that this upload brought.")] = None,
    key: Annotated[int | None, typer.Option(metavar="ID", help="Confirm those that this API key sent.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows that would be confirmed.")] = False,
) -> None:
    """Take the doubtful measurements that match all given options for right: they are used from now on."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.services.measurements.ingest import confirm as take
    from app.store.measurement_filters import Filters

    with open_runtime(Settings.from_env()) as runtime:
        with runtime.database.begin() as connection:
            catalog = load_catalog(connection)
        gpu = None if gpu is None else catalog.resolve(gpu).id
        filters = Filters(gpu=gpu, source=source, upload=upload, key=key)
        rows = take(runtime.database, catalog, filters, dry_run=dry_run)
    print(f"{rows:,} measurements {'would be confirmed' if dry_run else 'confirmed'}")
