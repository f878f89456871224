"""`gpucast migrate`: up, down, check, current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.config import Settings
from app.errors import BadInput

if TYPE_CHECKING:
    from app.bootstrap.runtime import Runtime

command = typer.Typer(no_args_is_help=False, invoke_without_command=True)


@command.callback()
def _default(context: typer.Context) -> None:
    """Migrate up to the newest version, unless a sub-command says otherwise."""
    if context.invoked_subcommand is None:
        up()


@command.command()
def up(target: Annotated[str, typer.Argument(help="A version, or head.")] = "head") -> None:
    """Migrate up to a version; at head, also seed the GPU catalogue."""
    from app.bootstrap.runtime import open_database

    with open_database(Settings.from_env()) as runtime:
        _migrate(runtime, target)


@command.command()
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


@command.command()
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


@command.command()
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
