"""`gpucast doctor`: what a service needs here, and what to do about what is missing."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import typer

from app import __version__
from app.config import Settings
from app.errors import GpucastError
from app.runtime.service_file import running_service
from app.runtime.start_checks import folder_problem, port_problem

_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "psycopg", "numpy", "numba", "scikit-learn", "joblib")


class Finding(NamedTuple):
    """One line: what was looked at, how it is, and what to do if that is a problem (else empty)."""

    what: str
    state: str
    problem: str = ""


def command() -> None:
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
