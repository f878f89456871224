"""An engine from the database and the artefact store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from app.config import SHIPPED_MODELS
from app.predictors import BY_NAME
from app.predictors.intervals import Intervals
from app.services.catalogue import load_catalog
from app.services.engine import Engine, KernelIndex, Served, untrained
from app.services.runtime import Runtime
from app.services.stored_kernels import stored_kernels
from app.store import artifacts, measurements, revision, versions
from app.store.artifacts import ArtifactRefused
from app.store.versions import Version
from app.tables.gpus import GpuTable


def assemble(connection: Connection, folders: Sequence[Path], last: Engine | None) -> tuple[Engine, tuple[str, ...]]:
    """The engine that the database describes, and why each version left out was refused.

    `folders` are artefact stores, the first that has an artefact wins. A version that `last` serves already is taken
    from there; a refused one leaves the predictor on what `last` serves, or on what needs no training.
    """
    value = revision.current(connection)
    catalog = load_catalog(connection)
    served, refused = _served(versions.served(connection), folders, last)
    table = GpuTable.from_specs(catalog.specs)
    kernels, _ = stored_kernels(measurements.load(connection, kind="kernel"), table)
    return Engine(catalog, table, served, KernelIndex.build(kernels), value), tuple(refused)


def assemble_for(runtime: Runtime) -> tuple[Engine, tuple[str, ...]]:
    """The engine of an installation for one use, and why each version left out was refused."""
    with runtime.database.begin() as connection:
        return assemble(connection, (runtime.settings.models_dir, SHIPPED_MODELS), None)


def _served(
    found: Sequence[Version], folders: Sequence[Path], last: Engine | None
) -> tuple[dict[tuple[str, str], Served], list[str]]:
    ready, refused = untrained(), []
    for version in found:
        key = (version.predictor, version.gpu_id)
        before = last.served.get(key) if last else None
        if before is not None and before.version == version.version:
            ready[key] = before
            continue
        try:
            ready[key] = _loaded(version, folders)
        except ArtifactRefused as error:
            refused.append(f"{version.predictor} {version.version} for {version.gpu_id} is not served: {error.detail}")
            if before is not None:
                ready[key] = before
    return ready, refused


def _loaded(version: Version, folders: Sequence[Path]) -> Served:
    payload = _payload(version.artifact_sha256, folders)
    if payload.get("predictor") != version.predictor or version.predictor not in BY_NAME:
        raise ArtifactRefused(f"It holds {payload.get('predictor')!r}, not a known {version.predictor!r}.")
    predictor: Any = BY_NAME[version.predictor]
    try:
        ready = predictor.from_state(payload["state"])
        return Served(ready, Intervals.from_state(payload["intervals"]), version.version)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ArtifactRefused(f"Its state does not fit this version of the code: {error!r}.") from error


def _payload(sha256: str, folders: Sequence[Path]) -> dict[str, Any]:
    present = [folder for folder in folders if (folder / f"{sha256}.joblib").exists()]
    return artifacts.load((present or list(folders))[0], sha256)
