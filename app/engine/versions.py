"""Versions of predictors loaded from the artefact stores, and why others are refused.

Shipped versions are kept as they are served, in files beside the compiled code: to decompress, unpickle and check an
artefact anew takes half a second, and each process would hold a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from app.bands.conformal import Intervals
from app.config import SHIPPED_MODELS, Settings
from app.engine.engine import Engine, Refusal, Served, untrained
from app.engine.payloads import stored_payload
from app.engine.shipped import Shipped, shipped_versions
from app.engine.trial import tried
from app.predictors import BY_NAME
from app.runtime.cache_base import BESIDE, sources_digest, writable_base
from app.store import artifacts, files, versions
from app.store.artifacts import ArtifactAbsent, ArtifactRefused
from app.store.versions import POOLED, Version
from app.tables.gpus import GpuTable
from app.training.operator_start import learned_from

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
    version = _read(BESIDE / name) or _read(own)
    if version is None:
        version = build()
        with suppress(OSError):  # no space: the next process builds it again
            _write(own, version)
        version = _read(own) or version  # its memory is shared
    return version


def _read(path: Path) -> Served | None:
    content = files.load(path)
    return content if isinstance(content, Served) else None


def _file_name(ships: Shipped, schema_sha256: str | None) -> str:
    parts = f"{_code_digest()} {ships.sha256} {schema_sha256}"
    return f"version-{ships.predictor}-{blake2b(parts.encode(), digest_size=8).hexdigest()}"


@cache
def _code_digest() -> str:
    return sources_digest(_SOURCES)


def _write(path: Path, built: Served) -> None:
    """Write the file, and remove those of the predictor that other code or another artefact made."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.save(path, built)
    predictor = path.name.rpartition("-")[0]
    for other in path.parent.glob(f"{predictor}-*"):
        if other.name.rpartition("-")[0] == predictor and other != path:
            other.unlink(missing_ok=True)


Key = tuple[str, str]
ALL = frozenset(BY_NAME)
# Shipped versions in use, by predictor, folder and hash: a second engine of a process does not read the files again.
_in_use: WeakValueDictionary[tuple[str, Path, str], Served] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Stores:
    """Where artefacts are: those of this installation, and those that ship with the code."""

    own: Path
    shipped: Path

    @classmethod
    def of(cls, settings: Settings) -> Stores:
        """Those of an installation."""
        return cls(settings.models_dir, settings.shipped_dir)


def load_version(connection: Connection, stores: Stores, gpus: GpuTable, key: Key, version: str) -> Served:
    """A version that may be served no more, tried on `gpus`; ArtifactRefused says why where it is gone."""
    predictor, gpu_id = key
    plain = untrained().get(key)
    if plain is not None and plain.version == version:
        return plain
    ships = shipped_versions(stores.shipped).get(predictor)
    if ships is not None and ships.version == version:
        return _shipped(ships, gpus)
    for item in versions.history(connection, predictor):
        if (item.gpu_id, item.version) == (gpu_id, version):
            return _own(connection, item, stores, gpus)
    raise ArtifactRefused(f"Version {version} of {predictor} is gone: neither this release nor this store has it.")


class Ready(NamedTuple):
    """What can be served: versions, and those refused, of the database and of what ships (`problems`, messages)."""

    served: dict[Key, Served]
    refused: list[Refusal]
    problems: list[str]


def ready_versions(
    connection: Connection, stores: Stores, gpus: GpuTable, last: Engine | None, *, only: Collection[str] = ALL
) -> Ready:
    """The versions that the database serves, and where there is none what ships or needs no training.

    Of the predictors in `only`: reading an artefact takes up to half a second. Each is tried on `gpus` before it is
    served.
    """
    refused: list[Refusal] = []
    own = [
        _Source((item.predictor, item.gpu_id), item.version, partial(_own, connection, item, stores, gpus))
        for item in versions.served(connection)
        if item.predictor in only
    ]
    ready = _loaded(own, last, refused)
    others = shipped_or_untrained(stores, gpus, last, only=only, but=ready)
    return Ready({**others.served, **ready}, refused, others.problems)


def shipped_or_untrained(
    stores: Stores,
    gpus: GpuTable,
    last: Engine | None,
    *,
    only: Collection[str] = ALL,
    but: Collection[Key] = (),
) -> Ready:
    """The versions that ship or need no training, of the predictors in `only`, without the keys `but`."""
    refused: list[Refusal] = []
    problems: list[str] = []
    try:
        ships = shipped_versions(stores.shipped)
    except ArtifactRefused as error:
        problems.append(f"nothing that ships is served: {error.detail}")
        ships = {}
    missing = [
        _Source((name, POOLED), item.version, partial(_shipped, item, gpus))
        for name, item in ships.items()
        if name in only and (name, POOLED) not in but
    ]
    plain = [_Source(key, item.version, partial(_as_is, item)) for key, item in untrained().items()]
    served = {**_loaded(plain, last, refused), **_loaded(missing, last, refused)}
    return Ready(served, [], [*problems, *map(str, refused)])


def _as_is(version: Served) -> Served:
    return version


class _Source(NamedTuple):
    """A version to serve, and how to load it."""

    key: Key
    version: str
    load: Callable[[], Served]


def _loaded(sources: Sequence[_Source], last: Engine | None, refused: list[Refusal]) -> dict[Key, Served]:
    """Those that can be served; the others are added to `refused`.

    A version that did not fit is not tried again: the code of a process does not change.
    """
    ready: dict[Key, Served] = {}
    unfit = {(one.predictor, one.gpu_id, one.version): one for one in (last.refused if last else ()) if not one.absent}
    for key, version, load in sources:
        before = last.served.get(key) if last else None
        if before is not None and before.version == version:
            ready[key] = before
            continue
        try:
            if (again := unfit.get((*key, version))) is not None:
                raise ArtifactRefused(again.reason)
            ready[key] = load()
        except ArtifactRefused as error:
            refused.append(Refusal(*key, version, error.detail, isinstance(error, ArtifactAbsent)))
            if before is not None:
                ready[key] = before
    return ready


def _own(connection: Connection, version: Version, stores: Stores, gpus: GpuTable) -> Served:
    payload = partial(stored_payload, connection, stores.own, version.artifact_sha256)
    return tried(_from(payload(), version.predictor, version.version), gpus)


def _shipped(ships: Shipped, gpus: GpuTable) -> Served:
    key = (ships.predictor, ships.folder, ships.sha256)
    served = _in_use.get(key)
    if served is None:
        served = _in_use[key] = cached(ships, lambda: built(ships))
    return tried(served, gpus)


def built(ships: Shipped) -> Served:
    """A shipped version from its artefact; ArtifactRefused says why not."""
    return _from(ships.payload(), ships.predictor, ships.version)


def _from(payload: Mapping[str, Any], name: str, version: str) -> Served:
    if payload["predictor"] != name or name not in BY_NAME:
        raise ArtifactRefused(f"It holds {payload['predictor']!r}, not a known {name!r}.")
    predictor: Any = BY_NAME[name]
    try:
        learned, rows = learned_from(payload)
        return Served(
            predictor.from_state(payload["state"]),
            Intervals.from_state(payload["intervals"]),
            version,
            # Only predictors that take measured rows need the keys of those they were trained on.
            rows if predictor.can.takes_measured else (),
            cells=tuple(predictor.learned_cells(payload["state"])),
            gpus=learned,
        )
    except Exception as error:
        raise ArtifactRefused(f"Its state does not fit this version of the code: {error!r}.") from error
