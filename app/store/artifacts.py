"""The store of trained predictors: content-addressed joblib files, each with a JSON manifest beside it."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from io import BufferedReader
from pathlib import Path
from typing import Any

from app.errors import GpucastError, StorageFull
from app.store.files import write_whole

FORMAT = 2  # of the payload as a whole
# Those that are read; others are refused. The first has no schema (app.engine.payloads).
READABLE = (1, FORMAT)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
LIBRARIES = ("joblib", "numpy")  # what reads an artefact back; their major versions must match


class ArtifactRefused(GpucastError):
    """An artefact that is missing, damaged, foreign or hostile; nothing of it was run."""

    title = "Artefact refused"
    code = "artefact-refused"


class ArtifactAbsent(ArtifactRefused):
    """An artefact that is missing or damaged here, and may be whole elsewhere."""


def publish(root: Path, payload: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """Store a payload of NumPy arrays and plain containers; returns its SHA-256, by which `load` finds it.

    Both files appear whole or not at all, and reach the disk before this returns. Raises StorageFull.
    """
    import joblib  # noqa: PLC0415 - takes 0.05 s, and most processes publish nothing

    buffer = io.BytesIO()
    joblib.dump(dict(payload), buffer, compress=("zlib", 6))
    data = buffer.getvalue()
    _read(data)  # what could not be loaded again is refused now, not when it should serve
    sha256 = hashlib.sha256(data).hexdigest()
    schema = {"schema": payload["schema"], "schema_sha256": _digest(payload["schema"])} if "schema" in payload else {}
    content = {
        **manifest,
        **schema,
        "sha256": sha256,
        "format": FORMAT,
        "libraries": {name: version(name) for name in LIBRARIES},
    }
    path, beside = files_of(root, sha256)
    try:
        root.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        write_whole(beside, json.dumps(content, indent=1, sort_keys=True).encode())
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise StorageFull(f"The disk of the model store {root} is full.") from error
    return sha256


def files_of(root: Path, sha256: str) -> tuple[Path, Path]:
    """The files of an artefact: its payload and its manifest."""
    return root / f"{sha256}.joblib", root / f"{sha256}.json"


def load(root: Path, sha256: str) -> dict[str, Any]:
    """The payload of that hash. The file is hashed before a byte of it is unpickled; ArtifactRefused otherwise.

    Its schema has the hash that its manifest gives.
    """
    beside = _fitting_manifest(root, sha256)
    path, _ = files_of(root, sha256)
    payload = _read(_content(path))
    if "schema" in payload and beside.get("schema_sha256") != _digest(payload["schema"]):
        raise ArtifactRefused(f"The schema of {sha256} is not the one that its manifest gives.")
    return payload


def verified(root: Path, sha256: str) -> dict[str, Any]:
    """The manifest of an artefact whose file has its hash; ArtifactRefused otherwise. The file is not unpickled."""
    beside = _fitting_manifest(root, sha256)
    path, _ = files_of(root, sha256)
    with _opened(path) as file:
        _check_digest(path, hashlib.file_digest(file, "sha256").hexdigest())
    return beside


def _fitting_manifest(root: Path, sha256: str) -> dict[str, Any]:
    """The manifest, which belongs to this hash, a format that is read, and libraries like those installed."""
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ArtifactRefused(f"{sha256!r} is not a SHA-256.")
    beside = manifest(root, sha256)
    _check_manifest(beside, sha256)
    return beside


def _content(path: Path) -> bytes:
    """The bytes of an artefact's file, which have the hash of its name."""
    with _opened(path) as file:
        data = file.read()
    _check_digest(path, hashlib.sha256(data).hexdigest())
    return data


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ArtifactAbsent(f"{path.name} cannot be read: {error.strerror}.") from error


def _check_digest(path: Path, sha256: str) -> None:
    if sha256 != path.stem:
        raise ArtifactAbsent(f"{path.name} is damaged: its content does not have the hash of its name.")


def _digest(schema: Any) -> str:
    """SHA-256 of a schema, plain containers of text."""
    try:
        return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError) as error:
        raise ArtifactRefused(f"The artefact's schema is not plain text: {error}.") from error


def manifest(root: Path, sha256: str) -> dict[str, Any]:
    """What was written beside the artefact of that hash."""
    _, path = files_of(root, sha256)
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ArtifactAbsent(f"{path.name} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ArtifactAbsent(f"{path.name} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ArtifactAbsent(f"{path.name} is not a manifest.")
    return content


def _check_manifest(beside: Mapping[str, Any], sha256: str) -> None:
    if beside.get("sha256") != sha256 or beside.get("format") not in READABLE:
        raise ArtifactRefused(f"The manifest of {sha256} belongs to another artefact or format.")
    libraries = beside.get("libraries")
    if not isinstance(libraries, dict):
        raise ArtifactRefused(f"The manifest of {sha256} does not tell its library versions.")
    for name, written_with in libraries.items():
        if _major(_installed(name)) != _major(str(written_with)):
            raise ArtifactRefused(f"{sha256} was written with {name} {written_with}, here is {_installed(name)}.")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _major(text: str) -> str:
    return text.split(".", 1)[0]


def _read(data: bytes) -> dict[str, Any]:
    # joblib takes 0.05 s, and most processes read what is cached (app.engine.versions).
    from app.store.unpickle import UNREADABLE, inflated, read_plain  # noqa: PLC0415

    try:
        payload = read_plain(inflated(data))
    except UNREADABLE as error:
        raise ArtifactRefused(f"The artefact holds more than arrays and plain containers: {error}.") from error
    if not isinstance(payload, dict):
        raise ArtifactRefused("The artefact is not a dictionary.")
    return payload
