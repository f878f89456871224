"""Shipped versions as they are served, in files beside the compiled code.

To decompress, unpickle and check an artefact anew takes half a second, and each process would hold a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from app.config import SHIPPED_MODELS
from app.engine.engine import Served
from app.engine.shipped import Shipped
from app.runtime.cache_base import BESIDE, sources_digest, writable_base
from app.store import artifacts, mapped_file

# Folders of the code that reads an artefact, and of the classes that it becomes.
_SOURCES = ("runtime", "tables", "ops", "bands", "predictors", "store", "training", "engine")


def cached(ships: Shipped, build: Callable[[], Served]) -> Served:
    """Return a shipped version from its file, else as `build` returns it, for which a file is then written.

    ArtifactRefused if the artefact is missing or damaged. Versions of a folder other than the code's own are built.
    """
    if ships.folder != SHIPPED_MODELS:
        return build()
    name = _file_name(ships, artifacts.verified(ships.folder, ships.sha256).get("schema_sha256"))
    own = writable_base() / name
    found = _read(BESIDE / name) or _read(own)
    if found is None:
        found = build()
        with suppress(OSError):  # no space: the next process builds it again
            _write(own, found)
        found = _read(own) or found  # its memory is shared
    return found


def _read(path: Path) -> Served | None:
    found = mapped_file.load(path)
    return found if isinstance(found, Served) else None


def _file_name(ships: Shipped, schema_sha256: str | None) -> str:
    parts = f"{_code_digest()} {ships.sha256} {schema_sha256}"
    return f"version-{ships.predictor}-{blake2b(parts.encode(), digest_size=8).hexdigest()}"


@cache
def _code_digest() -> str:
    return sources_digest(_SOURCES)


def _write(path: Path, built: Served) -> None:
    """Write the file, and remove those of the predictor that other code or another artefact made."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mapped_file.save(path, built)
    predictor = path.name.rpartition("-")[0]
    for other in path.parent.glob(f"{predictor}-*"):
        if other.name.rpartition("-")[0] == predictor and other != path:
            other.unlink(missing_ok=True)
