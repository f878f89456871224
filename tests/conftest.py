"""Real PostgreSQL for every test: one server for the session, a database of its own per module."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
import sqlalchemy as sa

from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.store.postgres import VOLATILE, EmbeddedPostgres
from app.store.session import Database, conninfo
from tests import forked
from tests.service import Service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: processes that share the files then end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage rarely: it took an eighth of a process's time. Start what processes of tests share."""
    gc.set_threshold(20_000, 10, 10)
    if config.getoption("numprocesses", None):  # of the process that starts them
        forked.share()


def pytest_collection_finish() -> None:
    """Leave the tests themselves, and what they import, out of collections."""
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server: that of TEST_DATABASE_URL, or an embedded one of this session."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        yield conninfo(given)
        return
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), VOLATILE) as server:
        yield server.url


@pytest.fixture(scope="session")
def template(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a database that is migrated and seeded; the others are copies of it."""
    with new_database(postgres_url) as url:
        folder = tmp_path_factory.mktemp("template")
        with open_runtime(Settings(database_url=url, data_dir=folder, seed_measurements_dir=folder)):
            pass
        yield database_name(url)


@pytest.fixture(scope="module")
def settings(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of an installation with a fresh database, shared by the module's tests: all GPUs, no measurements."""
    folder = tmp_path_factory.mktemp("data")
    with new_database(postgres_url, template) as url:
        yield Settings(
            database_url=url,
            data_dir=folder,
            seed_measurements_dir=folder / "none",
            doubtful_factor=0.0,  # most tests make their times up
        )


@pytest.fixture(scope="module")
def database(settings: Settings) -> Iterator[Database]:
    """The module's database."""
    opened = Database(settings.database_url or "")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """API and worker running on the module's database, as processes."""
    with Service(settings, tmp_path_factory.mktemp("service") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def server(service: Service) -> httpx.Client:
    """An HTTP client of the running service."""
    return service.client


@contextmanager
def new_database(server_url: str, template: str = "template1") -> Iterator[str]:
    """A database of its own on the server, dropped afterwards."""
    name = f"gpucast_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
        try:
            yield sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def database_name(url: str) -> str:
    return sa.make_url(url).database or ""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty data folder."""
    return tmp_path / "data"
