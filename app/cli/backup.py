"""`gpucast backup`: the database and the artefacts in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.config import Settings


def command(file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; must not exist.")]) -> None:
    """Write the database and the artefacts to one file, while the service runs."""
    from app.bootstrap.runtime import open_database
    from app.store.backup import back_up

    with open_database(Settings.from_env()) as runtime, runtime.database.begin(long=True) as connection:
        contents = back_up(connection, file)
    for sha256 in contents.missing:
        print(f"gpucast: a stored version names the artefact {sha256}, which is not there", file=sys.stderr)
    print(f"Wrote {sum(table.rows for table in contents.tables):,} rows of {len(contents.tables)} tables to {file}.")
