"""`gpucast restore`: a database and its artefacts from the file of `gpucast backup`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.config import Settings


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `gpucast backup`.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove what the database has, instead of refusing to touch it.")
    ] = False,
) -> None:
    """Restore a backup into an empty database: all of it, or nothing. Stop API and workers first."""
    from app.bootstrap.runtime import open_database
    from app.store.backup import restore

    with open_database(Settings.from_env()) as runtime, runtime.database.begin(long=True) as connection:
        contents = restore(connection, file, replace=replace)
    for sha256 in contents.missing:
        print(f"gpucast: a stored version names the artefact {sha256}, which the backup lacks", file=sys.stderr)
    rows = sum(table.rows for table in contents.tables)
    print(f"Restored {rows:,} rows of {len(contents.tables)} tables, as of {contents.made_at}.")
