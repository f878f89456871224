"""Retrain: turn stored measurements into a version that is served, or held back with a reason."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from sqlalchemy import Connection

from app.config import Settings
from app.engine.engine import Engine, import_hint
from app.engine.measurement_tables import stored_kernels, stored_operators
from app.engine.payloads import stored_payload
from app.engine.serving_hosts import SERVING_HOSTS
from app.engine.shipped import shipped_version
from app.errors import BadInput, GpucastError, NotFound, NotTrained, Unavailable
from app.ops.network import NETWORK
from app.predictors import BY_NAME, capabilities
from app.services.learning.fit_hosts import fit_hosts
from app.services.measurements.stored import stored_networks
from app.services.models.whole_networks import NETWORKS_ONLY
from app.store import artifacts, gpus, jobs, measurements, operators, queue, revision, versions
from app.store.artifacts import ArtifactRefused
from app.store.measurements import training_set_hash
from app.store.session import Database
from app.store.versions import POOLED, Version
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.training.candidate import TrainingData, candidate, kept_back
from app.training.fit import Trained
from app.training.operator_start import Start

LOG = logging.getLogger(__name__)
AGAIN_S = 2.0
T = TypeVar("T")
# Returns the engine of an installation.
Assemble = Callable[[Settings, Database], Engine]


class _OvertakenError(Exception):
    """The job was restarted or ended elsewhere while it ran here. Nothing of this run is kept."""


class _WithdrawnError(Exception):
    """Rows were removed since the training read them: what it learned must not be served."""


def queue_retrain(database: Database, predictor: str, gpu: str | None) -> int:
    """Queue a retraining, pooled or for one GPU id, and return the job's id; simultaneous requests share one job."""
    _check_trainable(predictor)
    with database.begin() as connection:
        return enqueue(connection, predictor, gpu or POOLED)


def enqueue(connection: Connection, predictor: str, gpu_id: str) -> int:
    """Queue a retraining in the caller's transaction, and return the job's id, of the queued one if there is one."""
    job, made = jobs.enqueue(connection, predictor, gpu_id)
    if made:
        queue.defer_retrain(connection, job.id, job.predictor, job.gpu_id)
    return job.id


def _check_trainable(predictor: str) -> None:
    trainable = sorted(name for name, cls in BY_NAME.items() if cls.can.trainable)
    if predictor in (*trainable, SERVING_HOSTS):
        return
    if predictor in BY_NAME:
        raise BadInput(f"Predictor {predictor!r} cannot be trained; trainable predictors: {', '.join(trainable)}.")
    raise NotFound(f"Unknown predictor {predictor!r}.", near=trainable)


def run_job(settings: Settings, database_url: str, job_id: int, assemble: Assemble) -> None:
    """Run one job to its end: succeeded (served, or held back with a reason) or failed with a reason.

    `assemble` gives the engine whose predictions of served loads are fitted to the measured ones.
    Safe to run twice. Raises Unavailable if the database is lost, or a disk full, for longer than
    `settings.retrain_wait_s`; the job then stays open.
    """
    database = Database(database_url)
    try:
        job = _patiently(settings, lambda: _start(database, job_id))
        try:
            train = partial(_retrain_hosts, assemble=assemble) if job.predictor == SERVING_HOSTS else _retrain
            _until_undisturbed(partial(train, settings, database, job))
        except (Unavailable, _OvertakenError):
            raise
        except GpucastError as error:
            _fail(database, job, error.detail)
        except MemoryError:
            _fail(database, job, f"It needs more than {settings.retrain_memory_bytes / 1e9:.1f} GB of memory.")
        except Exception as error:
            LOG.exception("retraining %s failed", job.predictor)
            _fail(database, job, f"Internal error: {type(error).__name__}: {error}")
    except (NotFound, _OvertakenError):
        LOG.warning("job %d was restarted or ended elsewhere", job_id)
    finally:
        database.close()


def _patiently(settings: Settings, step: Callable[[], T], report: Callable[[str], object] = LOG.warning) -> T:
    """Return the result of a step, done again every few seconds while the database is away or a disk is full.

    So a pause does not cost what was trained. Raises Unavailable after `settings.retrain_wait_s` seconds.
    """
    deadline = time.monotonic() + settings.retrain_wait_s
    while True:
        try:
            return step()
        except Unavailable as error:
            if time.monotonic() > deadline:
                raise
            report(f"waiting: {error.detail}")
        time.sleep(AGAIN_S)


def _start(database: Database, job_id: int) -> jobs.Job:
    with database.begin() as connection:
        return jobs.start(connection, job_id)


def _fail(database: Database, job: jobs.Job, reason: str) -> None:
    with database.begin() as connection:
        jobs.finish(connection, job, reason=reason, failed=True)


def _until_undisturbed(train: Callable[[], None]) -> None:
    """Train, and again if rows were removed meanwhile; the job's time limit ends that."""
    while True:
        try:
            return train()
        except _WithdrawnError:
            LOG.info("measurements were removed during the training: it begins again")


def _retrain(settings: Settings, database: Database, job: jobs.Job) -> None:
    target = None if job.gpu_id == POOLED else job.gpu_id
    report = partial(_report, database, job)
    patiently = partial(_patiently, settings, report=report)
    report("reading measurements")
    data, rows_hash, as_of = patiently(lambda: _training_data(database, job))
    if not data.rows:
        raise NotTrained(
            f"There are no measurements that {job.predictor} can learn from. {import_hint(job.predictor)}."
        )
    shipped = shipped_version(job.predictor, settings.shipped_dir)
    start = Start.on(job.predictor, None if shipped is None else shipped.payload())
    card = [] if shipped is None else shipped.card["validation"]
    trained = candidate(start, data, card, target_gpu=target, report=report)
    while True:
        report("comparing with the served version")
        now = patiently(partial(_served, database, job))
        answers = now or patiently(partial(_served, database, job, POOLED))
        served = patiently(partial(_payload, settings, database, answers)) or start.payload
        limits = (settings.retrain_gate_tolerance, settings.retrain_most_error)
        reason = kept_back(trained, served, data, *limits)
        report("publishing")
        outcome = _Outcome(trained.trained, rows_hash, as_of, reason, now)
        if patiently(partial(_publish, settings, database, job, outcome)):
            return


def _retrain_hosts(settings: Settings, database: Database, job: jobs.Job, *, assemble: Assemble) -> None:
    report = partial(_report, database, job)
    patiently = partial(_patiently, settings, report=report)
    while True:
        report("reading measurements")
        now = patiently(partial(_served, database, job))
        engine = patiently(partial(assemble, settings, database))
        fitted = fit_hosts(engine, report)
        report("publishing")
        outcome = _Outcome(fitted.trained, engine.served_points.fingerprint, engine.revision, fitted.reason, now)
        if patiently(partial(_publish, settings, database, job, outcome)):
            return


def _training_data(database: Database, job: jobs.Job) -> tuple[TrainingData, str, int]:
    """Return the rows, the hash of their set, and a revision that is no later than they are."""
    with database.begin(long=True) as connection:
        as_of = revision.current(connection)
        return *load_training_data(connection, job.predictor), as_of


def _report(database: Database, job: jobs.Job, what: str) -> None:
    """Log the progress, and record it in the job unless the database is away."""
    LOG.info("job %d, %s: %s", job.id, job.predictor, what)
    with suppress(Unavailable), database.begin() as connection:
        jobs.report_progress(connection, job, f"{job.predictor}: {what}")


def _served(database: Database, job: jobs.Job, gpu_id: str | None = None) -> Version | None:
    """Return the served version of the job's predictor for its GPU, or for `gpu_id`."""
    with database.begin() as connection:
        return versions.served_for(connection, job.predictor, gpu_id or job.gpu_id)


def _payload(settings: Settings, database: Database, version: Version | None) -> dict[str, Any] | None:
    """Return the payload of a version; None if there is none that can be read."""
    if version is None:
        return None
    with database.begin() as connection:
        try:
            return stored_payload(connection, settings.models_dir, version.artifact_sha256)
        except ArtifactRefused as error:
            LOG.warning("version %s of %s cannot be compared: %s", version.version, version.predictor, error.detail)
            return None


class _Outcome(NamedTuple):
    """Result of a training on the rows as of a revision.

    `reason`: why it must not replace the version `compared`, None if it may.
    """

    trained: Trained
    rows_hash: str
    as_of: int
    reason: str | None
    compared: Version | None


def _publish(settings: Settings, database: Database, job: jobs.Job, outcome: _Outcome) -> bool:
    """Write the artefact to disk; then its copy, version, pointer and the job's end in one transaction.

    False if the compared version is served no more, as after a rollback: `reason` is of another one. Raises
    _WithdrawnError if rows were removed since they were read.
    """
    trained, rows_hash, as_of, reason, compared = outcome
    about = {"predictor": job.predictor, "gpu_id": job.gpu_id, "training_set_sha256": rows_hash}
    sha256 = artifacts.publish(settings.models_dir, trained.payload, {**about, "card": trained.card})
    with database.begin() as connection:
        versions.share_artifact(connection, settings.models_dir, sha256)
        revision.lock(connection)  # which rollbacks and removals take too
        if "withdrawn" in revision.changed(connection, as_of)[1]:
            raise _WithdrawnError
        now = versions.served_for(connection, job.predictor, job.gpu_id)
        if (now and now.id) != (compared and compared.id):
            return False
        version = versions.add(
            connection,
            predictor=job.predictor,
            gpu_id=job.gpu_id,
            artifact_sha256=sha256,
            training_set_sha256=rows_hash,
            card=trained.card,
            state="kept_back" if reason else "candidate",
        )
        if reason is None:
            versions.serve(connection, version.id)
        result = {"served": reason is None, **trained.card}
        if not jobs.finish(connection, job, version=version.version, result=result, reason=reason):
            raise _OvertakenError
    return True


def measured_gpus(connection: Connection, predictor: str) -> set[str]:
    """Return ids of GPUs with rows that the predictor can learn from."""
    gpu_ids: set[str] = set()
    if capabilities(predictor).learns_launches:
        gpu_ids |= {gpu for kind, gpu in measurements.counts(connection) if kind == "kernel"}
    if capabilities(predictor).learns_operators:
        gpu_ids |= set(operators.counts(connection, ops=_rows_of(predictor)))
    if predictor in NETWORKS_ONLY:
        gpu_ids |= {gpu for kind, gpu in measurements.counts(connection) if kind == "model"}
    return gpu_ids


def _rows_of(predictor: str) -> tuple[str, ...] | None:
    """Return the operators whose rows it learns from; None: all of them."""
    return (NETWORK.name,) if predictor in NETWORKS_ONLY else None


def load_training_data(connection: Connection, predictor: str) -> tuple[TrainingData, str]:
    """Return all rows that the predictor can learn from, and a SHA-256 of their set."""
    table = GpuTable.from_specs(gpus.load_specs(connection))
    rows = measurements.load(connection, kind="kernel") if capabilities(predictor).learns_launches else []
    kernels, ids = stored_kernels(rows, table)
    if predictor in NETWORKS_ONLY:
        runs = stored_networks(connection, table)
    else:
        learns = capabilities(predictor).learns_operators
        runs = stored_operators(connection, table, ops=_rows_of(predictor)) if learns else []
    data = TrainingData(table, kernels, ids, [run for run in runs if len(run)])
    return data, set_hash(data.operators, training_set_hash(rows))


def set_hash(runs: Sequence[OperatorRuns], kernels: str = training_set_hash([])) -> str:
    """Return a SHA-256 of the set of the rows of operators and of kernels, whose own SHA-256 is `kernels`."""
    if not runs:
        return kernels
    digest = hashlib.sha256(kernels.encode())
    for run in runs:
        digest.update(f"{run.op}/{run.dtype}".encode())
        digest.update(np.sort(run.key).tobytes())
    return digest.hexdigest()
