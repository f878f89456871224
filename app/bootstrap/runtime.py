"""Open an installation: a database that answers, migrated and seeded, with a first admin key where it requires keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from app.bootstrap.seeded import seed_measurements
from app.config import Settings
from app.engine.catalogue import load_seed_specs
from app.errors import BadInput
from app.store import gpus, keys, schema, versions
from app.store.postgres import EmbeddedPostgres
from app.store.session import PATIENT, Database, TimeLimits

_MESSAGE = """\
This installation requires API keys (GPUCAST_KEYS) and has no admin key yet. This is the first one, shown only once:

    {key}

Send it as 'Authorization: Bearer KEY', or sign in with it in a browser. Create other keys with
'gpucast keys create NAME --role read|predict|contribute|admin' or POST /keys, then revoke this one.
"""


def announce_first_key(database: Database) -> None:
    """Create and print an admin key if there is none. Processes that start together print one key only."""
    with database.begin() as connection:
        key = keys.create_first(connection)
    if key is not None:
        print(_MESSAGE.format(key=key), flush=True)


def _nothing() -> None:
    """Do nothing: a database server outside this installation is not ours to restart."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An installation ready for use. `settings.database_url` names the server in use, embedded or external.

    `ensure_database` restarts the embedded server if it died, and does nothing for an external one.
    """

    settings: Settings
    database: Database
    ensure_database: Callable[[], None] = _nothing


@contextmanager
def open_runtime(settings: Settings, limits: TimeLimits = PATIENT) -> Iterator[Runtime]:
    """Yield an installation: start or join the embedded server unless DATABASE_URL is set; migrate and seed it.

    Any number of processes may do this at once. The last one to leave stops the embedded server.
    """
    with open_database(settings, limits) as runtime:
        schema.upgrade(runtime.database)
        with runtime.database.begin(long=True) as connection:
            versions.share_artifacts(connection, runtime.settings.models_dir)
        seed(runtime.database)
        seed_measurements(runtime.database, runtime.settings)
        yield runtime


def seed(database: Database) -> None:
    """Insert or update the shipped GPUs in the catalogue. Rows that a user changed are left as they are."""
    with database.begin(long=True) as connection:
        gpus.seed(connection, load_seed_specs())


@contextmanager
def open_database(settings: Settings, limits: TimeLimits = PATIENT) -> Iterator[Runtime]:
    """Yield an installation whose database is neither migrated nor seeded."""
    embedded = EmbeddedPostgres(settings.data_dir / "postgres") if settings.database_url is None else None
    holder: Any = embedded or nullcontext()
    with holder:
        url = embedded.url if embedded else settings.database_url
        try:
            database = Database(url or "", limits)
        except ValueError as error:
            raise BadInput(str(error)) from error
        try:
            database.wait(settings.database_wait_s)
            ensure = embedded.ensure_running if embedded else _nothing
            yield Runtime(dataclasses.replace(settings, database_url=database.url), database, ensure)
        finally:
            database.close()
