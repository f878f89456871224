"""The artefacts that ship with the code, made the way that every version is made: import, then retrain jobs.

In a throw-away database: an embedded PostgreSQL in a temporary folder. Kernel measurements are not used, for those at
hand carry no licence that allows a model of them to be given away.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from app import __version__
from app.config import SEED_DATA, Settings
from app.errors import BadInput, GpucastError
from app.predictors import OPERATOR_PREDICTORS, learns_only, learns_operators
from app.services.import_parts import import_parts
from app.services.importers.base import PartsImporter
from app.services.imports import importer_named
from app.services.retrain import request_retrain
from app.services.retrain_process import ONE_THREAD
from app.services.runtime import Runtime, open_runtime
from app.services.shipped import write_list
from app.store import artifacts, jobs, versions
from app.store.versions import Version

MOST_BYTES = 30_000_000
Tell = Callable[[str], None]


class Source(NamedTuple):
    """Measurements to learn from: their folder, the importer that reads it, and what they may be used for."""

    folder: str
    importer: str
    origin: str
    licence: str


SOURCES = (
    Source("neusight", "neusight", "github.com/sitar-lab/NeuSight", "MIT"),
    Source("modern_operators", "aiconfigurator", "github.com/ai-dynamo/aiconfigurator", "Apache-2.0"),
)


def trainable() -> list[str]:
    """Predictors that ship trained: those that learn from the operators of SOURCES."""
    names = [predictor.name for predictor in OPERATOR_PREDICTORS]
    return [name for name in names if learns_operators(name) and learns_only(name) is None]


def train_shipped(data: Path, out: Path, predictors: Sequence[str], tell: Tell) -> int:
    """Train the predictors on the folders of `data` and write their artefacts to `out`; returns their bytes.

    `out` keeps nothing else. BadInput where a folder or predictor is missing, GpucastError where a job fails or the
    artefacts are too large together.
    """
    missing = [str(data / source.folder) for source in SOURCES if not (data / source.folder).is_dir()]
    unknown = [name for name in predictors if name not in trainable()]
    if missing:
        raise BadInput(f"There are no measurements in {', '.join(missing)}.")
    if unknown:
        raise BadInput(f"{', '.join(unknown)} cannot ship trained; those that can: {', '.join(trainable())}.")
    with _throw_away() as runtime:
        for importer, folder in _folders(data):
            report = import_parts(runtime.database, importer, folder)
            tell(f"{folder.name}: {report.inserted:,} of {report.received:,} rows taken in")
        for name in predictors:
            _retrain(runtime, name, tell)
        return _write(runtime, out, tell)


def _folders(data: Path) -> Iterator[tuple[PartsImporter, Path]]:
    """What to import: the data sets, and measurements of our own where there are any."""
    for source in SOURCES:
        importer = importer_named(source.importer)
        if isinstance(importer, PartsImporter):
            yield importer, data / source.folder
    own = importer_named("measurements")
    if (SEED_DATA / "measurements").is_dir() and isinstance(own, PartsImporter):
        yield own, SEED_DATA / "measurements"


@contextmanager
def _throw_away() -> Iterator[Runtime]:
    """An installation of its own, which nothing ships with."""
    with tempfile.TemporaryDirectory(prefix="gpucast-train-") as folder:
        settings = dataclasses.replace(
            Settings.from_env(), database_url=None, data_dir=Path(folder), shipped_dir=Path(folder) / "nothing"
        )
        with open_runtime(settings) as runtime:
            yield runtime


def _retrain(runtime: Runtime, name: str, tell: Tell) -> None:
    """The job of a retraining, run at once in a process like the worker's."""
    job_id = request_retrain(runtime.database, name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "app.services.retrain_process", str(job_id)],
        stdin=subprocess.PIPE,
        env={**os.environ, **runtime.settings.environment(), **ONE_THREAD},
    )
    try:
        process.wait(runtime.settings.retrain_timeout_s)
    finally:
        process.kill()
        process.wait()
    with runtime.database.begin() as connection:
        job = jobs.get(connection, job_id)
    if job.state != "succeeded" or job.finished_at is None or job.started_at is None:
        raise GpucastError(f"Training {name} failed: {job.reason or 'its process ended'}")
    tell(f"{name}: trained in {(job.finished_at - job.started_at).total_seconds():.0f} s")


def _write(runtime: Runtime, out: Path, tell: Tell) -> int:
    with runtime.database.begin() as connection:
        served = versions.served(connection)
    with tempfile.TemporaryDirectory(prefix="gpucast-shipped-") as folder:
        made = Path(folder)
        named = {version.predictor: _published(runtime, made, version) for version in served}
        sizes = {name: (made / f"{sha256}.joblib").stat().st_size for name, sha256 in named.items()}
        for name, size in sizes.items():
            tell(f"{name}: {size / 1e6:.2f} MB")
        total = sum(path.stat().st_size for path in made.iterdir())
        if total >= MOST_BYTES:
            raise GpucastError(
                f"The artefacts take {total / 1e6:.1f} MB together: {MOST_BYTES / 1e6:.0f} MB is the limit."
            )
        out.mkdir(parents=True, exist_ok=True)
        for path in made.iterdir():
            shutil.copy(path, out / path.name)
    write_list(out, named)
    return total


def _published(runtime: Runtime, folder: Path, version: Version) -> str:
    """The artefact again, its manifest with what a reader elsewhere wants to know."""
    payload = artifacts.load(runtime.settings.models_dir, version.artifact_sha256)
    told = {
        "predictor": version.predictor,
        "gpu_id": version.gpu_id,
        "training_set_sha256": version.training_set_sha256,
        "card": version.card,
        "code_version": __version__,
        "sources": [{"origin": source.origin, "licence": source.licence} for source in SOURCES],
    }
    return artifacts.publish(folder, payload, told)
