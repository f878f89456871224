"""Measurements that ship with the code, brought in by whichever process starts first."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path

from app.errors import BadInput, NotFound
from app.store import seed_files
from app.store.session import Database

LOG = logging.getLogger(__name__)


def seed_measurements(database: Database, folder: Path) -> None:
    """Bring in the Parquet files of `folder` that this database has not seen, as they are now.

    A file that cannot be read is logged and left out: a service without these rows answers, if less well.
    """
    files = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in sorted(folder.glob("*.parquet"))}
    if not files:
        return
    with database.begin() as connection:
        if not files.keys() - seed_files.known(connection):
            return
    with database.begin() as connection:
        seed_files.lock(connection)
        for sha256 in files.keys() - seed_files.known(connection):
            if _bring_in(database, files[sha256]):
                seed_files.add(connection, sha256, files[sha256].name)


def _bring_in(database: Database, path: Path) -> bool:
    # Most starts bring in nothing, and need not load what does.
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
