"""Open an installation: a database that answers, migrated and seeded, with a first admin key where it requires keys.

The first process to start imports the measurements that ship with the code, once per database. The import runs in a
subprocess, `python -m app.bootstrap.runtime FILE...`, because the memory it needs (over 100 MB) would otherwise stay
with the server.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import Settings
from app.engine.catalogue import load_seed_specs
from app.engine.prices import shipped_prices
from app.errors import BadInput, NotFound
from app.runtime import logs
from app.store import gpus, keys, schema, uploads, versions
from app.store.postgres import EmbeddedPostgres
from app.store.session import PATIENT, Database, TimeLimits

LOG = logging.getLogger(__name__)


def seed_measurements(database: Database, settings: Settings) -> None:
    """Import the Parquet files of `settings.seed_measurements_dir` that this database does not have yet.

    A file that cannot be read is logged and skipped: the service still answers without these rows, less accurately.
    """
    files = {_sha256(path): path for path in sorted(settings.seed_measurements_dir.glob("*.parquet"))}
    if not files:
        return
    with database.begin(long=True) as connection:
        if not files.keys() - uploads.known_seed_files(connection):
            return
    with database.begin(long=True) as connection:
        uploads.lock_seed_files(connection)
        if new := [str(files[sha256]) for sha256 in files.keys() - uploads.known_seed_files(connection)]:
            command = [sys.executable, "-m", __name__, *new]
            environment = os.environ | settings.environment()
            if not LOG.isEnabledFor(logging.INFO):  # a command, whose output has no log lines
                print("gpucast: imports the measurements that ship with it, once", file=sys.stderr, flush=True)
                environment["GPUCAST_LOG_LEVEL"] = "warning"
            code = subprocess.run(command, env=environment, check=False).returncode
            if code != 0:
                LOG.error("the import of shipped measurements exited with code %d", code)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _bring_in(database: Database, path: Path) -> bool:
    # Imported here because a start that has nothing to import should not load the importers.
    from app.formats.own import IMPORTERS  # noqa: PLC0415
    from app.services.measurements.importing import import_parts  # noqa: PLC0415

    began = time.monotonic()
    try:
        report = import_parts(database, IMPORTERS["measurements"], path)
    except (BadInput, NotFound) as error:
        LOG.error("%s was not imported: %s", path.name, error.detail)
        return False
    seconds = time.monotonic() - began
    LOG.info("%s: %d measurements imported in %.1f s", path.name, report.inserted, seconds)
    return True


def main() -> None:
    """Import the files named by the arguments. The parent process holds the lock."""
    settings = Settings.from_env()
    logs.configure(settings)
    database = Database(settings.database_url or "")
    try:
        for path in map(Path, sys.argv[1:]):
            if _bring_in(database, path):
                with database.begin(long=True) as connection:
                    uploads.add_seed_file(connection, _sha256(path), path.name)
    finally:
        database.close()


if __name__ == "__main__":
    main()


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
    """Insert or update the shipped GPUs and prices. Rows that a user changed or sent are left as they are."""
    with database.begin(long=True) as connection:
        gpus.seed(connection, load_seed_specs())
        gpus.seed_prices(connection, shipped_prices())


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
