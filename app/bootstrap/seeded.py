"""Measurements that ship with the code, brought in by whichever process starts first.

They are brought in by a process of its own, `python -m app.bootstrap.seeded FILE...`: what reading and
checking them takes, over 100 MB, would stay with a server for as long as it runs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from app.config import Settings
from app.errors import BadInput, NotFound
from app.runtime import logs
from app.store import seed_files
from app.store.session import Database

LOG = logging.getLogger(__name__)


def seed_measurements(database: Database, settings: Settings) -> None:
    """Bring in the Parquet files of the settings' folder that this database has not seen, as they are now.

    A file that cannot be read is logged and left out: a service without these rows answers, if less well.
    """
    files = {_sha256(path): path for path in sorted(settings.seed_measurements_dir.glob("*.parquet"))}
    if not files:
        return
    with database.begin() as connection:
        if not files.keys() - seed_files.known(connection):
            return
    with database.begin() as connection:
        seed_files.lock(connection)
        if new := [str(files[sha256]) for sha256 in files.keys() - seed_files.known(connection)]:
            command = [sys.executable, "-m", __name__, *new]
            code = subprocess.run(command, env={**os.environ, **settings.environment()}, check=False).returncode
            if code != 0:
                LOG.error("the process that brings in shipped measurements ended with code %d", code)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _bring_in(database: Database, path: Path) -> bool:
    # A start that only looks need not load what brings in.
    from app.services.measurements.import_parts import import_parts  # noqa: PLC0415
    from app.services.measurements.importers.measurements import IMPORTER  # noqa: PLC0415

    began = time.monotonic()
    try:
        report = import_parts(database, IMPORTER, path)
    except (BadInput, NotFound) as error:
        LOG.error("%s was not brought in: %s", path.name, error.detail)
        return False
    seconds = time.monotonic() - began
    LOG.info("%s: %d measurements brought in within %.1f s", path.name, report.inserted, seconds)
    return True


def main() -> None:
    """Bring in the files that the arguments name; the process that started this one holds the lock."""
    settings = Settings.from_env()
    logs.configure(settings)
    database = Database(settings.database_url or "")
    try:
        for path in map(Path, sys.argv[1:]):
            if _bring_in(database, path):
                with database.begin() as connection:
                    seed_files.add(connection, _sha256(path), path.name)
    finally:
        database.close()


if __name__ == "__main__":
    main()
