"""`gpucast measurements`: stored measurements taken back."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from app.config import Settings

command = typer.Typer(no_args_is_help=True, help="Delete stored measurements.")


@command.command("delete")
def delete(
    gpu: Annotated[str | None, typer.Option(help="Of this GPU, by any of its names.")] = None,
    kind: Annotated[Literal["kernel", "operator", "model"] | None, typer.Option(help="Of this kind.")] = None,
    name: Annotated[str | None, typer.Option(help="Of this kernel, operator or model.")] = None,
    software: Annotated[str | None, typer.Option(help="Of this software stack.")] = None,
    source: Annotated[str | None, typer.Option(help="Of this source.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete the measurements that agree with every option given; asks first, with their number."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.services.measurements.removal import remove
    from app.store.page import Filters

    with open_runtime(Settings.from_env()) as runtime:
        if gpu is not None:
            with runtime.database.begin() as connection:
                gpu = load_catalog(connection).resolve(gpu).id
        wanted = Filters(gpu=gpu, kind=kind, name=name, software=software, source=source)
        found = remove(runtime.database, wanted, dry_run=True)
        for (what, where), rows in found.items():
            print(f"{what:<10}{where:<28}{rows:>12,}")
        total = sum(found.values())
        if dry_run or not total:
            print(f"{total:,} measurements would be deleted" if dry_run else "no measurement agrees with that")
            return
        if not yes:
            typer.confirm(f"Delete {total:,} measurements?", abort=True)
        total = sum(remove(runtime.database, wanted).values())
    print(f"{total:,} measurements deleted\nnext: gpucast retrain PREDICTOR, where a version learned from them")
