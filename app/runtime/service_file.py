"""Where the running service of an installation answers, for commands that can ask it and need load nothing.

The service holds a lock on a file of its data folder for as long as it runs, however it ends. The file says where it
listens and what it answers from.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import IO

from app import __version__
from app.config import Settings

_FILE = "service.json"
_TRIES, _PAUSE_S = 5, 0.02
# Of requests that a service answers as a command would: no other status is.
_OK = (200, 201)
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@contextmanager
def announced(settings: Settings) -> Iterator[None]:
    """Say as long as this lasts where the service of these settings listens.

    Not of one that asks for keys or takes any free port, nor beside another one on the same folder.
    """
    if settings.needs_keys or not settings.port:
        yield
        return
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (settings.data_dir / _FILE).open("a+") as file:
        if _locked(file):
            file.truncate(0)
            json.dump({"host": settings.host, "port": settings.port, "answers_from": _answers_from(settings)}, file)
            file.flush()
        yield


def answer_of_service(settings: Settings, path: str, body: bytes, *, media: str = "application/json") -> bytes | None:
    """What the running service of this installation answers; None if there is none, or it refuses."""
    place = running_service(settings)
    if place is None:
        return None
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - most have no service, and it takes 0.01 s

    # Nothing older than the request: what a command stored just before counts.
    headers = {"content-type": media, "cache-control": "no-cache"}
    connection = HTTPConnection(*place, timeout=settings.request_timeout_s)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.read() if response.status in _OK else None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _locked(file: IO[str]) -> bool:
    """Take the lock unless another service has it; a command that looks holds it for a moment."""
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE_S)
    return False


def running_service(settings: Settings) -> tuple[str, int] | None:
    """Host and port of the service that answers from what these settings name; None if none runs."""
    try:
        with (settings.data_dir / _FILE).open("r") as file:
            if not _held(file):
                return None
            service = json.load(file)
        if service["answers_from"] != _answers_from(settings):
            return None
        return _EVERYWHERE.get(service["host"], service["host"]), int(service["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _held(file: IO[str]) -> bool:
    """Whether a service holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _answers_from(settings: Settings) -> str:
    """Digest of what answers follow from and of how large requests may be; DATABASE_URL may hold a password."""
    folders = [str(folder.resolve()) for folder in (settings.shipped_dir, settings.seed_measurements_dir)]
    sources = [__version__, settings.database_url, *folders, settings.max_batch_rows]
    return blake2b(json.dumps(sources).encode(), digest_size=16).hexdigest()
