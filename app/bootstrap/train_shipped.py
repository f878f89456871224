"""Train the artefacts that ship with the code, with the same import and retrain jobs as any other version.

This runs in a throw-away database, an embedded PostgreSQL in a temporary folder. Of kernels only our own measurements
are used, because the licences of others do not allow a derived model to be distributed. Predictors that learn from
different data sets are trained in databases of their own.

Of a predictor only some operators may be trained: the others are taken over from its artefact (app.training.candidate).
They are taken over only if a whole training would learn them again from the same rows. The artefact's manifest has a
SHA-256 of every operator's rows. One from before that has a SHA-256 of all rows together, which is compared instead.

GPUs that a predictor does not know may be added to its artefact, which takes minutes: what it learned of others stays.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import parallel_config

from app import __version__
from app.bootstrap.retrain_process import ONE_THREAD
from app.bootstrap.runtime import Runtime, open_runtime
from app.config import Settings
from app.engine.payloads import load_payload
from app.engine.shipped import Shipped, shipped_versions, write_list
from app.errors import BadInput, GpucastError
from app.formats.base import PartsImporter
from app.predictors import OPERATOR_PREDICTORS
from app.services.learning.retrain import load_training_data, queue_retrain, set_hash
from app.services.measurements.importing import find_importer, import_parts
from app.services.models.whole_networks import NETWORKS_ONLY
from app.store import artifacts, jobs, versions
from app.store.postgres import VOLATILE, EmbeddedPostgres
from app.store.versions import POOLED, Version
from app.tables.arrays import Bools
from app.tables.measurements import OperatorRuns
from app.training import operator_start
from app.training.candidate import (
    TrainingData,
    candidate,
    changed_rows,
    joined,
    row_hashes,
    trained_together,
    with_new_gpus,
)
from app.training.fit import Trained

Report = Callable[[str], None]
Parts = Mapping[str, Mapping[str, str]]


class Start(NamedTuple):
    """A predictor of which some operators are to be trained, or that learns those of new GPUs.

    name     the predictor's
    shipped  its version, which has the others
    ops      operators to train
    gpus     ids of new GPUs
    """

    name: str
    shipped: Shipped
    ops: tuple[str, ...]
    gpus: tuple[str, ...] = ()


def start_of(name: str, shipped: Shipped | None, operators: Sequence[str], gpus: Sequence[str] = ()) -> Start:
    """Return the start of a training of `operators`, with all that are trained together with them, or of new `gpus`.

    BadInput: both, or unknown operators; a predictor without artefact, or one whose operators depend on one another.
    """
    if operators and gpus:
        raise BadInput("Train with --operator or with --gpu, one after the other.")
    if name != "auto":
        raise BadInput(f"{name} learns its operators together: train it without --operator and --gpu.")
    if shipped is None:
        raise BadInput(f"No artefact of {name} has the other operators: train it without --operator and --gpu.")
    return Start(name, shipped, () if gpus else trained_together(operators), tuple(gpus))


def train_operators(start: Start, data: TrainingData, report: Report) -> Trained:
    """Return the shipped version with the operators of `start` trained anew on their rows in `data`."""
    mine = [run for run in data.operators if run.op in start.ops]
    _refuse_changes(start, data.operators)
    others = start.shipped.payload(start.ops)
    report(f"{start.name}: training {', '.join(dict.fromkeys(run.op for run in mine))}; others are kept")
    some = TrainingData(data.gpus, data.kernels, [], mine)
    new = candidate(operator_start.Start.on(start.name), some, [], target_gpu=None, report=report)
    return joined(others, start.shipped.card, new.trained, data.operators, start.ops)


def add_gpus(start: Start, data: TrainingData, report: Report) -> tuple[Trained, Parts]:
    """Return the shipped version with the operators of the start's GPUs learned, and its manifest's `operators`.

    BadInput: a GPU without rows, or whose operators it knows.
    """
    before = operator_start.Start.on(start.name, start.shipped.payload())
    if known := before.gpus & {*start.gpus}:
        raise BadInput(f"{start.name} is trained on {', '.join(sorted(known))}: train operators anew with --operator.")
    on = np.isin(data.gpus.ids, start.gpus)
    new, others = _rows_on(data.operators, on), _rows_on(data.operators, ~on)
    if unmeasured := {*start.gpus} - {data.gpus.ids[gpu] for run in new for gpu in np.unique(run.rows.gpu)}:
        raise BadInput(f"The data sets have no operators of {', '.join(sorted(unmeasured))}.")
    report(f"{start.name}: adding {', '.join(start.gpus)}; what it learned of other GPUs stays")
    trained = with_new_gpus(before, start.shipped.card, TrainingData(data.gpus, data.kernels, [], new), report)
    # Operators whose other rows changed keep the SHA-256 of those that were learned.
    parts, now, kept = start.shipped.manifest["operators"], trained_parts(data.operators), row_hashes(others)
    same = (run.op for run in new if kept.get(run.op) == parts.get(run.op, {}).get("rows_sha256"))
    return trained, {**parts, **{op: now[op] for op in same}}


def _rows_on(runs: Sequence[OperatorRuns], gpus: Bools) -> list[OperatorRuns]:
    """Return the rows on GPUs, bool [gpus], without tables that have none."""
    parts = (run.take(np.flatnonzero(gpus[run.rows.gpu])) for run in runs)
    return [run for run in parts if len(run)]


def trained_parts(runs: Sequence[OperatorRuns], start: Start | None = None) -> Parts:
    """Return when, with which code and on which rows each operator was trained; `start`: only some were trained now."""
    now = {"trained": f"{datetime.now(UTC):%Y-%m-%d}", "code_version": __version__}
    parts = {op: {"rows_sha256": digest, **now} for op, digest in row_hashes(runs).items()}
    if start is None:
        return parts
    before = start.shipped.manifest
    unknown = {"trained": "unknown", "code_version": before["code_version"]}
    kept = before.get("operators", {})
    return {op: part if op in start.ops else {**part, **unknown, **kept.get(op, {})} for op, part in parts.items()}


def _refuse_changes(start: Start, runs: Sequence[OperatorRuns]) -> None:
    """Raise BadInput if an operator that would be kept was trained on other rows."""
    others = [run for run in runs if run.op not in start.ops]
    known = start.shipped.manifest.get("operators")
    if known:
        changed = changed_rows({op: part["rows_sha256"] for op, part in known.items()}, others)
    else:
        learned = start.shipped.manifest["schema"]["operators"]
        changed = [run.op for run in others if run.op not in learned]
        if set_hash([run for run in runs if run.op in learned]) != start.shipped.manifest["training_set_sha256"]:
            changed = changed or ["some operators"]
    if changed:
        raise BadInput(
            f"The rows of {', '.join(changed)} are not those that {start.name} ships trained on: train it without "
            "--operator, or these too."
        )


MOST_BYTES = 40_000_000


class Source(NamedTuple):
    """A training data set: its folder, the importer that reads it, its origin and its licence."""

    folder: str
    importer: str
    origin: str
    licence: str


NEUSIGHT = Source("neusight", "neusight", "github.com/sitar-lab/NeuSight", "MIT")
# Papers' predictors learn from one serving stack per GPU, hence not from our own operators, whose stack is another;
# those below tell stacks apart, and learn from all of them.
OPERATORS = (
    NEUSIGHT,
    Source("modern_operators", "aiconfigurator", "github.com/ai-dynamo/aiconfigurator", "Apache-2.0"),
)
OPERATORS_BY_STACK = (
    NEUSIGHT,
    Source("serving_operators", "aiconfigurator", "github.com/ai-dynamo/aiconfigurator", "Apache-2.0"),
    Source("whole_models", "llmservingsim", "github.com/casys-kaist/LLMServingSim", "MIT"),
    Source("aiter_operators", "aiter", "github.com/ROCm/aiter", "MIT"),
)
TELL_STACKS_APART = ("auto",)
NETWORKS = (Source("vision_models", "timm", "github.com/huggingface/pytorch-image-models", "Apache-2.0"),)
OWN = {"origin": "seed_data/measurements", "licence": "Apache-2.0"}


def trainable() -> list[str]:
    """Return the names of predictors that ship trained: those that learn from operators or whole networks."""
    return [predictor.name for predictor in OPERATOR_PREDICTORS if predictor.can.learns_operators]


def sources_of(predictor: str) -> tuple[Source, ...]:
    """Return the data sets that the shipped version of a predictor is trained on."""
    if predictor in NETWORKS_ONLY:
        return NETWORKS
    return OPERATORS_BY_STACK if predictor in TELL_STACKS_APART else OPERATORS


def train_shipped(
    data: Path,
    out: Path,
    predictors: Sequence[str],
    report: Report,
    *,
    operators: Sequence[str] = (),
    gpus: Sequence[str] = (),
) -> int:
    """Train the predictors on the folders of `data`, write their artefacts to `out` and return the bytes in `out`.

    With `operators` only these are trained, of a predictor whose artefact in `out` has the others; with `gpus` these
    are added to what the artefact knows (app.bootstrap.train_shipped). Shipped artefacts of other predictors in `out`
    are kept; everything else there is removed. Raises BadInput if a folder or predictor is missing, and GpucastError if
    a job fails or the artefacts exceed MOST_BYTES together.
    """
    unknown = [name for name in predictors if name not in trainable()]
    if unknown:
        raise BadInput(f"{', '.join(unknown)} cannot ship trained; those that can: {', '.join(trainable())}.")
    stages = list(_stages(predictors))
    missing = [
        str(data / source.folder) for sources, _ in stages for source in sources if not (data / source.folder).is_dir()
    ]
    if missing:
        raise BadInput(f"No measurements found in {', '.join(missing)}.")
    before = shipped_versions(out)
    kept = {name: item.sha256 for name, item in before.items() if name in {*trainable()} - {*predictors}}
    some = bool(operators or gpus)
    starts = {name: start_of(name, before.get(name), operators, gpus) for name in predictors} if some else {}
    with tempfile.TemporaryDirectory(prefix="gpucast-shipped-") as folder:
        made, named = Path(folder), dict[str, str]()
        for sources, names in stages:
            named |= _trained(data, sources, names, (made, starts), report)
        return _write(out, made, named, kept, report)


def _trained(
    data: Path,
    sources: tuple[Source, ...],
    names: Sequence[str],
    made: tuple[Path, Mapping[str, Start]],
    report: Report,
) -> dict[str, str]:
    """Train predictors on the same data sets, publish them in a folder and return their SHA-256 by predictor.

    `made`: the folder, and the starts of predictors of which only some operators are trained.
    """
    folder, starts = made
    with _throw_away(own=sources != OPERATORS) as runtime:
        for importer, path in _folders(data, sources):
            imported = import_parts(runtime.database, importer, path)
            report(f"{path.name}: {imported.inserted:,} of {imported.received:,} rows imported")
        if starts:
            return {name: _some_operators(runtime, start, folder, report) for name, start in starts.items()}
        for name in names:
            _retrain(runtime, name, report)
        with runtime.database.begin() as connection:
            served = versions.served(connection)
        return {version.predictor: _published(runtime, folder, version) for version in served}


def _stages(predictors: Sequence[str]) -> Iterator[tuple[tuple[Source, ...], list[str]]]:
    """Yield data sets and the predictors that are trained on them."""
    for sources in (OPERATORS, OPERATORS_BY_STACK, NETWORKS):
        if names := [name for name in predictors if sources_of(name) == sources]:
            yield sources, names


def _folders(data: Path, sources: Sequence[Source]) -> Iterator[tuple[PartsImporter, Path]]:
    """Yield the importer and folder of each data set."""
    for source in sources:
        importer = find_importer(source.importer)
        if isinstance(importer, PartsImporter):
            yield importer, data / source.folder


@contextmanager
def _throw_away(*, own: bool) -> Iterator[Runtime]:
    """Yield an installation in a temporary folder, without artefacts, and empty but for our `own` measurements."""
    with (
        tempfile.TemporaryDirectory(prefix="gpucast-train-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres", VOLATILE) as server,
    ):
        nothing, from_env = Path(folder) / "nothing", Settings.from_env()
        settings = dataclasses.replace(
            from_env,
            database_url=server.url,
            data_dir=Path(folder),
            shipped_dir=nothing,
            seed_measurements_dir=from_env.seed_measurements_dir if own else nothing,
            retrain_threads=os.cpu_count() or 1,  # nothing is served meanwhile
        )
        with open_runtime(settings) as runtime:
            yield runtime


def _retrain(runtime: Runtime, name: str, report: Report) -> None:
    """Run one retrain job now, in a subprocess like the worker's, for as long as it takes."""
    job_id = queue_retrain(runtime.database, name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "app.bootstrap.retrain_process", str(job_id)],
        stdin=subprocess.PIPE,
        env={**os.environ, **runtime.settings.environment(), **ONE_THREAD},
    )
    try:
        process.wait()
    finally:
        process.kill()
        process.wait()
    with runtime.database.begin() as connection:
        job = jobs.get(connection, job_id)
    if job.state != "succeeded" or job.finished_at is None or job.started_at is None:
        raise GpucastError(f"Training {name} failed: {job.reason or 'its process exited'}")
    report(f"{name}: trained in {(job.finished_at - job.started_at).total_seconds():.0f} s")


def _write(out: Path, made: Path, named: Mapping[str, str], kept: Mapping[str, str], report: Report) -> int:
    """Write the artefacts `made` beside the kept ones and return the bytes of all of them."""
    for name, sha256 in named.items():
        report(f"{name}: {(made / f'{sha256}.joblib').stat().st_size / 1e6:.2f} MB")
    kept_paths = [path for sha256 in kept.values() for path in out.glob(f"{sha256}.*")]
    total = sum(path.stat().st_size for path in (*made.iterdir(), *kept_paths))
    if total >= MOST_BYTES:
        raise GpucastError(f"The artefacts take {total / 1e6:.1f} MB together; the limit is {MOST_BYTES / 1e6:.0f} MB.")
    out.mkdir(parents=True, exist_ok=True)
    for path in made.iterdir():
        shutil.copy(path, out / path.name)
    write_list(out, {**kept, **named})
    return total


def _some_operators(runtime: Runtime, start: Start, folder: Path, report: Report) -> str:
    """Train some operators or GPUs, publish them with the shipped ones in `folder`, and return the SHA-256."""
    with runtime.database.begin(long=True) as connection:
        data, rows_hash = load_training_data(connection, start.name)
    with parallel_config("threading", n_jobs=runtime.settings.retrain_threads):
        if start.gpus:
            trained, parts = add_gpus(start, data, report)
        else:
            trained, parts = train_operators(start, data, report), trained_parts(data.operators, start)
    about = {**trained.card, "training_set_sha256": rows_hash}
    manifest = _manifest(runtime, start.name, about, parts)
    return artifacts.publish(folder, trained.payload, manifest)


def _published(runtime: Runtime, folder: Path, version: Version) -> str:
    """Publish an artefact with a manifest of origin, licence and code version. Return its SHA-256."""
    payload = load_payload(runtime.settings.models_dir, version.artifact_sha256)
    with runtime.database.begin(long=True) as connection:
        data, _ = load_training_data(connection, version.predictor)
    about = {**version.card, "training_set_sha256": version.training_set_sha256}
    parts = {} if version.predictor in NETWORKS_ONLY else trained_parts(data.operators)
    return artifacts.publish(folder, payload, _manifest(runtime, version.predictor, about, parts))


def _manifest(
    runtime: Runtime, predictor: str, about: Mapping[str, Any], parts: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return what is written beside an artefact: origins and licences, versions, the card, and each operator's part.

    `about`: the card, with the SHA-256 of the training rows.
    """
    sources = [{"origin": source.origin, "licence": source.licence} for source in sources_of(predictor)]
    if any(runtime.settings.seed_measurements_dir.glob("*.parquet")):
        sources.append(OWN)
    card = {name: value for name, value in about.items() if name != "training_set_sha256"}
    return {
        "predictor": predictor,
        "gpu_id": POOLED,
        "training_set_sha256": about["training_set_sha256"],
        "card": card,
        "code_version": __version__,
        "sources": sources,
        "operators": parts,
    }
