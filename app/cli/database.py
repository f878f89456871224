"""`gpucast migrate`, `backup` and `restore`: the schema of the database, and its content in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.config import Settings
from app.errors import BadInput

if TYPE_CHECKING:
    from app.bootstrap.runtime import Runtime

migrate = typer.Typer(no_args_is_help=False, invoke_without_command=True)


@migrate.callback()
def _default(context: typer.Context) -> None:
    """Migrate up to the newest version, unless a sub-command says otherwise."""
    if context.invoked_subcommand is None:
        up()


@migrate.command()
def up(target: Annotated[str, typer.Argument(help="A version, or head.")] = "head") -> None:
    """Migrate up to a version; at head, also seed the GPU catalogue."""
    from app.bootstrap.runtime import open_database

    with open_database(Settings.from_env()) as runtime:
        _migrate(runtime, target)


@migrate.command()
def down(target: Annotated[str, typer.Argument(help="A version, -1, or base.")]) -> None:
    """Migrate down to a version; tables that it does not have are dropped with their rows."""
    from alembic.util.exc import CommandError

    from app.bootstrap.runtime import open_database
    from app.store import schema

    with open_database(Settings.from_env()) as runtime:
        try:
            schema.downgrade(runtime.database, target)
        except CommandError as error:
            raise BadInput(str(error)) from error


@migrate.command()
def check() -> None:
    """Fail unless the database is at head and its tables are those that the code describes."""
    from alembic.util.exc import CommandError

    from app.bootstrap.runtime import open_database
    from app.store import schema

    with open_database(Settings.from_env()) as runtime:
        try:
            schema.check(runtime.database)
        except CommandError as error:
            raise BadInput(str(error)) from error


@migrate.command()
def current() -> None:
    """Show the version that the database has."""
    from app.bootstrap.runtime import open_database
    from app.store import schema

    with open_database(Settings.from_env()) as runtime, runtime.database.begin(long=True) as connection:
        print(schema.current(connection) or "none")


def _migrate(runtime: Runtime, target: str) -> None:
    from alembic.util.exc import CommandError

    from app.bootstrap.runtime import seed
    from app.store import schema

    try:
        schema.upgrade(runtime.database, target)
    except CommandError as error:
        raise BadInput(str(error)) from error
    if target == "head":
        seed(runtime.database)


def backup(file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; must not exist.")]) -> None:
    """Write the database and the artefacts to one file, while the service runs."""
    from app.bootstrap.runtime import open_database
    from app.store.backup import back_up

    with open_database(Settings.from_env()) as runtime, runtime.database.begin(long=True) as connection:
        contents = back_up(connection, file)
    for sha256 in contents.missing:
        print(f"gpucast: a stored version names the artefact {sha256}, which is not there", file=sys.stderr)
    print(f"Wrote {sum(table.rows for table in contents.tables):,} rows of {len(contents.tables)} tables to {file}.")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `gpucast backup`.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove what the database has, instead of refusing to touch it.")
    ] = False,
) -> None:
    """Restore a backup into an empty database: all of it, or nothing. Stop API and workers first."""
    from app.bootstrap.runtime import open_database
    from app.store.backup import restore as restore_file

    with open_database(Settings.from_env()) as runtime, runtime.database.begin(long=True) as connection:
        contents = restore_file(connection, file, replace=replace)
    for sha256 in contents.missing:
        print(f"gpucast: a stored version names the artefact {sha256}, which the backup lacks", file=sys.stderr)
    rows = sum(table.rows for table in contents.tables)
    print(f"Restored {rows:,} rows of {len(contents.tables)} tables, as of {contents.made_at}.")
