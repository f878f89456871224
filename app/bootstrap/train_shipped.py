"""The artefacts that ship with the code, made the way that every version is made: import, then retrain jobs.

In a throw-away database: an embedded PostgreSQL in a temporary folder. Kernel measurements are not used, for those at
hand carry no licence that allows a model of them to be given away. Predictors of whole networks come last: their rows
are brought in when those that learn every operator have learned.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from app import __version__
from app.bootstrap.runtime import Runtime, open_runtime
from app.config import Settings
from app.engine.payloads import load_payload
from app.engine.shipped import shipped_versions, write_list
from app.errors import BadInput, GpucastError
from app.predictors import OPERATOR_PREDICTORS, learns_operators
from app.services.learning.retrain import request_retrain
from app.services.learning.retrain_process import ONE_THREAD
from app.services.measurements.import_parts import import_parts
from app.services.measurements.importers.base import PartsImporter
from app.services.measurements.imports import importer_named
from app.services.models.whole_networks import knows_networks_only
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


OPERATORS = (
    Source("neusight", "neusight", "github.com/sitar-lab/NeuSight", "MIT"),
    Source("modern_operators", "aiconfigurator", "github.com/ai-dynamo/aiconfigurator", "Apache-2.0"),
)
NETWORKS = (Source("vision_models", "timm", "github.com/huggingface/pytorch-image-models", "Apache-2.0"),)
# Brought in by every start, that of the throw-away installation included.
OWN = {"origin": "seed_data/measurements", "licence": "Apache-2.0"}


def trainable() -> list[str]:
    """Predictors that ship trained: those that learn from operators, whole networks among them."""
    return [predictor.name for predictor in OPERATOR_PREDICTORS if learns_operators(predictor.name)]


def sources_of(predictor: str) -> tuple[Source, ...]:
    """What it ships trained on."""
    return NETWORKS if knows_networks_only(predictor) else OPERATORS


def train_shipped(data: Path, out: Path, predictors: Sequence[str], tell: Tell) -> int:
    """Train the predictors on the folders of `data` and write their artefacts to `out`; returns the bytes there.

    Of what `out` holds, artefacts of other predictors that ship are kept as they are, and nothing else. BadInput where
    a folder or predictor is missing, GpucastError where a job fails or the artefacts are too large together.
    """
    unknown = [name for name in predictors if name not in trainable()]
    if unknown:
        raise BadInput(f"{', '.join(unknown)} cannot ship trained; those that can: {', '.join(trainable())}.")
    stages = list(_stages(predictors))
    missing = [str(data / one.folder) for sources, _ in stages for one in sources if not (data / one.folder).is_dir()]
    if missing:
        raise BadInput(f"There are no measurements in {', '.join(missing)}.")
    kept = {name: one.sha256 for name, one in shipped_versions(out).items() if name in {*trainable()} - {*predictors}}
    with _throw_away() as runtime:
        for sources, names in stages:
            for importer, folder in _folders(data, sources):
                report = import_parts(runtime.database, importer, folder)
                tell(f"{folder.name}: {report.inserted:,} of {report.received:,} rows taken in")
            for name in names:
                _retrain(runtime, name, tell)
        return _write(runtime, out, kept, tell)


def _stages(predictors: Sequence[str]) -> Iterator[tuple[tuple[Source, ...], list[str]]]:
    """What to bring in, and who then learns: whole networks last, for others would learn them as one more operator."""
    for sources in (OPERATORS, NETWORKS):
        if names := [name for name in predictors if sources_of(name) == sources]:
            yield sources, names


def _folders(data: Path, sources: Sequence[Source]) -> Iterator[tuple[PartsImporter, Path]]:
    """What to import: the data sets."""
    for source in sources:
        importer = importer_named(source.importer)
        if isinstance(importer, PartsImporter):
            yield importer, data / source.folder


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
        [sys.executable, "-m", "app.services.learning.retrain_process", str(job_id)],
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


def _write(runtime: Runtime, out: Path, kept: Mapping[str, str], tell: Tell) -> int:
    """What was trained, beside the artefacts of `out` that are kept; returns the bytes of all together."""
    with runtime.database.begin() as connection:
        served = versions.served(connection)
    with tempfile.TemporaryDirectory(prefix="gpucast-shipped-") as folder:
        made = Path(folder)
        named = {version.predictor: _published(runtime, made, version) for version in served}
        for name, sha256 in named.items():
            tell(f"{name}: {(made / f'{sha256}.joblib').stat().st_size / 1e6:.2f} MB")
        stay = [path for sha256 in kept.values() for path in out.glob(f"{sha256}.*")]
        total = sum(path.stat().st_size for path in (*made.iterdir(), *stay))
        if total >= MOST_BYTES:
            raise GpucastError(
                f"The artefacts take {total / 1e6:.1f} MB together: {MOST_BYTES / 1e6:.0f} MB is the limit."
            )
        out.mkdir(parents=True, exist_ok=True)
        for path in made.iterdir():
            shutil.copy(path, out / path.name)
    write_list(out, {**kept, **named})
    return total


def _published(runtime: Runtime, folder: Path, version: Version) -> str:
    """The artefact again, its manifest with what a reader elsewhere wants to know."""
    sources = [{"origin": source.origin, "licence": source.licence} for source in sources_of(version.predictor)]
    if any(runtime.settings.seed_measurements_dir.glob("*.parquet")):
        sources.append(OWN)
    payload = load_payload(runtime.settings.models_dir, version.artifact_sha256)
    told = {
        "predictor": version.predictor,
        "gpu_id": version.gpu_id,
        "training_set_sha256": version.training_set_sha256,
        "card": version.card,
        "code_version": __version__,
        "sources": sources,
    }
    return artifacts.publish(folder, payload, told)
