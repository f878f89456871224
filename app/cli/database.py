"""`gpucast migrate`, `backup`, `restore`, `doctor` and `keys`: the database of an installation, its needs, its keys."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from app import __version__
from app.config import Settings
from app.errors import BadInput, GpucastError
from app.runtime.service_file import running_service
from app.runtime.start_checks import folder_problem, port_problem
from app.store.roles import Role, RoleName

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from app.bootstrap.runtime import Runtime
    from app.store.keys import Key
    from app.store.session import Database
    from app.tables.catalog import Catalog

migrate = typer.Typer(no_args_is_help=False, invoke_without_command=True)


@migrate.callback()
def _default(context: typer.Context) -> None:
    """Migrate up to the newest version, unless a sub-command says otherwise."""
    if context.invoked_subcommand is None:
        up()


@contextmanager
def open_catalog() -> Iterator[tuple[Runtime, Catalog]]:
    """Open this installation, with its catalogue of GPUs."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog

    with open_runtime(Settings.from_env()) as runtime:
        with runtime.database.begin() as connection:
            catalog = load_catalog(connection)
        yield runtime, catalog


@contextmanager
def _migrating() -> Iterator[Database]:
    """Open the database as it is; what a migration cannot do is BadInput, as of a database of a newer release."""
    from alembic.util.exc import CommandError

    from app.bootstrap.runtime import open_database
    from app.store.schema import current, head

    with open_database(Settings.from_env()) as runtime:
        try:
            yield runtime.database
        except CommandError as error:
            with runtime.database.begin() as connection:
                present = current(connection)
            if present is not None and f"'{present}'" in str(error):  # Alembic: Can't locate revision identified by
                step = f"run `gpucast migrate down {head()}` of that release first"
                raise BadInput(f"The database has the schema {present} of a newer release: {step}.") from error
            raise BadInput(str(error)) from error


@migrate.command()
def up(target: Annotated[str, typer.Argument(help="A version, or head.")] = "head") -> None:
    """Migrate up to a version; at head, also seed the GPU catalogue."""
    from app.bootstrap.runtime import seed
    from app.store import schema

    with _migrating() as database:
        schema.upgrade(database, target)
        if target == "head":
            seed(database)


@migrate.command()
def down(target: Annotated[str, typer.Argument(help="A version, -1, or base.")]) -> None:
    """Migrate down to a version; tables that it does not have are dropped with their rows."""
    from app.store import schema

    with _migrating() as database:
        schema.downgrade(database, target)


@migrate.command()
def check() -> None:
    """Fail unless the database is at head and its tables are those that the code describes."""
    from app.store import schema

    with _migrating() as database:
        schema.check(database)


@migrate.command()
def current() -> None:
    """Show the version that the database has."""
    from app.store import schema

    with _migrating() as database, database.begin(long=True) as connection:
        print(schema.current(connection) or "none")


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


_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "psycopg", "numpy", "numba", "scikit-learn", "joblib")


class Finding(NamedTuple):
    """One line: what was looked at, how it is, and what to do if that is a problem (else empty)."""

    what: str
    state: str
    problem: str = ""


def doctor() -> None:
    """Check versions, data folder, database, port and artefacts; the exit status is 1 if something is wrong."""
    settings = Settings.from_env()
    wrong = 0
    for check in (_versions, _folder, _database, _port, _artefacts):
        for finding in _findings(check, settings):
            wrong += bool(finding.problem)
            print(f"{'problem' if finding.problem else 'ok':<9}{finding.what:<14}{finding.problem or finding.state}")
    raise typer.Exit(int(wrong > 0))


def _findings(check: Callable[[Settings], Iterator[Finding]], settings: Settings) -> Iterator[Finding]:
    """Yield the findings of a check; what it raises is one more."""
    try:
        yield from check(settings)
    except GpucastError as error:
        yield Finding(check.__name__.strip("_"), "", error.detail)
    except OSError as error:
        yield Finding(check.__name__.strip("_"), "", f"{error.filename or 'the system'}: {error.strerror}")


def _versions(settings: Settings) -> Iterator[Finding]:
    yield Finding("versions", f"gpucast {__version__}, Python {platform.python_version()}, {platform.platform()}")
    installed = []
    for name in _PACKAGES:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("packages", "", f"{name} is not installed for {sys.executable}: make install")
    yield Finding("packages", ", ".join(installed))


def _folder(settings: Settings) -> Iterator[Finding]:
    yield Finding("data folder", str(settings.data_dir), folder_problem(settings.data_dir))


def _database(settings: Settings) -> Iterator[Finding]:
    from app.bootstrap.runtime import open_database
    from app.store import schema

    where = "embedded in the data folder" if settings.database_url is None else "of DATABASE_URL"
    with open_database(settings) as runtime, runtime.database.begin() as connection:
        present = schema.current(connection)
    migrated = "its schema is this release's" if present == schema.head() else "the next start migrates its schema"
    yield Finding("database", f"{where}, answers; {migrated}")


def _port(settings: Settings) -> Iterator[Finding]:
    place = running_service(settings)
    if place is not None:
        yield Finding("port", f"gpucast of this installation answers on http://{place[0]}:{place[1]}")
        return
    yield Finding("port", f"{settings.host}:{settings.port} is free", port_problem(settings))


def _artefacts(settings: Settings) -> Iterator[Finding]:
    from app.engine.shipped import shipped_versions

    for name, shipped in shipped_versions(settings.shipped_dir).items():
        try:
            shipped.payload()
        except GpucastError as error:
            yield Finding("artefacts", "", f"{name} {shipped.version}: {error.detail}")
        else:
            yield Finding("artefacts", f"{name} {shipped.version}")


Id: TypeAlias = Annotated[int, typer.Argument(metavar="ID", help="Id from `gpucast keys list`.")]

keys = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")


@contextmanager
def _connection() -> Iterator[Connection]:
    """Open this installation for one transaction."""
    from app.bootstrap.runtime import open_runtime

    with open_runtime(Settings.from_env()) as runtime, runtime.database.begin() as connection:
        yield connection


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Owner of the key.")],
    role: Annotated[RoleName, typer.Option(help="Permissions; each role includes those before it.")],
    days: Annotated[float | None, typer.Option(min=0.001, max=3650, help="Lifetime; default: no end.")] = None,
) -> None:
    """Create a key and print it; it is shown only once, because only its SHA-256 is stored."""
    from app.store import keys as store

    with _connection() as connection:
        lifetime = None if days is None else timedelta(days=days)
        _, secret = store.create(connection, name, Role[role.upper()], lifetime=lifetime)
    print(secret)


@keys.command("rotate")
def rotate(
    key_id: Id,
    grace_hours: Annotated[float, typer.Option(min=0, max=87600, help="Time that the old key stays valid.")] = 24.0,
) -> None:
    """Create a key's successor and print it: same name, role and lifetime; the old one expires."""
    from app.store import keys as store

    with _connection() as connection:
        _, secret = store.rotate(connection, key_id, grace=timedelta(hours=grace_hours))
    print(secret)


@keys.command("events")
def list_events() -> None:
    """List what was done to keys, by whom and when; the newest first."""
    from app.store import keys as store

    with _connection() as connection:
        events = store.events(connection)
    for event in events:
        print(f"{event.created_at:%Y-%m-%d %H:%M:%S}  key {event.key_id:>4}  {event.action:<8}  by {event.actor}")


@keys.command("list")
def list_keys() -> None:
    """List all keys, including revoked ones."""
    from app.store import keys as store

    with _connection() as connection:
        listed = store.listed(connection)
    if not listed:
        print("No keys: `gpucast keys create NAME --role ROLE` creates one.")
    for key in listed:
        state = _state(key)
        print(f"{key.id:>4}  {key.role.name.lower():<10}  {key.created_at:%Y-%m-%d}  {state:<18}  {key.name}")


@keys.command("revoke")
def revoke(key_id: Id) -> None:
    """Revoke a key: running services refuse it within a second."""
    from app.store import keys as store

    with _connection() as connection:
        store.revoke(connection, key_id)
    print(f"Revoked {key_id}.")


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "in use"
    return f"{'expired' if key.is_expired() else 'until'} {key.expires_at:%Y-%m-%d}"
