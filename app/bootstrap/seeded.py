"""Import the measurements that ship with the code. The first process to start does it, once per database.

The import runs in a subprocess, `python -m app.bootstrap.seeded FILE...`, because the memory it needs (over 100 MB)
would otherwise stay with the server.
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
from app.store import uploads
from app.store.session import Database

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
