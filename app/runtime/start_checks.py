"""What keeps a service from starting, in a sentence with what to do; checked before anything is started."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path

from app.config import Settings

# An embedded database, its log and a few artefacts.
LEAST_FREE_BYTES = 512 * 2**20


def port_problem(settings: Settings) -> str:
    """Return why nothing can listen on the address of these settings; empty if something can."""
    if not settings.port:
        return ""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        return f"HOST={settings.host} is no address of this machine ({error.strerror}): set HOST to one."
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return _refused(settings, error)
    return ""


def _refused(settings: Settings, error: OSError) -> str:
    port = settings.port
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use: stop what listens there, or set another one, like PORT={port + 1}."
    if error.errno == errno.EACCES:
        return f"Port {port} is not allowed to this user: use one over 1023, like PORT=8000."
    return f"HOST={settings.host} cannot be listened on ({error.strerror}): set HOST to an address of this machine."


def folder_problem(folder: Path) -> str:
    """Return why the data folder cannot be used; empty if it can."""
    mend = "set GPUCAST_DATA_DIR to a folder of your own."
    held = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not held.is_dir():
        return f"The data folder {folder} cannot be made: {held} is a file; {mend}"
    if not os.access(held, os.W_OK | os.X_OK):
        return f"The data folder {folder} is not writable for user {os.getuid()}; {mend}"
    database = folder / "postgres"
    if database.exists() and database.stat().st_uid != os.geteuid():
        return f"The database in {folder} belongs to user {database.stat().st_uid}, not {os.geteuid()}; {mend}"
    free = shutil.disk_usage(held).free
    if free < LEAST_FREE_BYTES:
        return f"The disk of the data folder {folder} has {free >> 20} MiB left of the 512 that a start needs; {mend}"
    return ""
