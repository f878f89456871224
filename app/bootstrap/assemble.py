"""Build an engine from the database and the artefact stores, and correct it by what was measured."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from app.bootstrap.runtime import Runtime, open_runtime
from app.config import Settings
from app.engine.catalogue import load_catalog
from app.engine.correction_process import CorrectionProcess
from app.engine.corrections import Corrected, FitHere, Fitter, amended, corrected
from app.engine.engine import Engine, KernelIndex, Refusal
from app.engine.exact_hits import MeasuredModels, ServedPoints
from app.engine.measured_operators import measured_operators
from app.engine.measurement_tables import stored_kernels
from app.engine.power import PowerModel, measured_power
from app.engine.prices import PriceBook
from app.engine.serving_hosts import SERVING_HOSTS, served_version, stored_hosts
from app.engine.snapshot import Snapshot
from app.engine.versions import ALL, Ready, Stores, ready_versions
from app.predictors.auto.predictor import Auto
from app.services.models.predict_networks import measured_models
from app.services.serving.served_points import served_points
from app.stacks.release import ServingHosts
from app.store import gpus, measurements, revision
from app.store.artifacts import ArtifactAbsent, ArtifactRefused
from app.store.revision import Part
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable

# What corrections and the power model depend on.
_CORRECTING: frozenset[Part] = frozenset({"gpus", "measurements", "added", "removed", "versions"})


def assemble(stores: Stores, connection: Connection, last: Engine | None, *, only: Collection[str] = ALL) -> Engine:
    """Return the engine that the database describes, with the corrections that `last` has.

    Reads what changed since `last`, and only artefacts of the predictors in `only`. The shipped version is used where
    the database serves none. A version that `last` already serves is reused. If a version is refused, the predictor
    keeps what `last` serves, or else what ships or needs no training.
    """
    now, changed = revision.changed(connection, None if last is None else last.revision)
    catalog, table = (last.catalog, last.gpus) if last and "gpus" not in changed else _catalogue(connection)
    versions = _versions(connection, stores, table, last, changed, only)
    hosts = _hosts(connection, stores, last, changed, versions.refused)
    operators, served = measured_operators(connection, catalog, table, versions.served, last, changed)
    kernels, models, points = _measured(connection, table, last, changed)
    return Engine(
        catalog,
        table,
        served,
        kernels,
        now,
        operators,
        models,
        PriceBook.of(gpus.load_prices(connection)) if last is None or "prices" in changed else last.prices,
        PowerModel() if last is None else last.power,
        tuple(versions.refused),
        tuple(versions.problems),
        _corrected(now, last, changed),
        points,
        hosts,
    )


def _corrected(now: int, last: Engine | None, changed: frozenset[Part]) -> int:
    """The revision up to which the corrections of `last` hold."""
    if last is None:
        return -1
    return now if last.corrected == last.revision and not changed & _CORRECTING else last.corrected


def _catalogue(connection: Connection) -> tuple[Catalog, GpuTable]:
    catalog = load_catalog(connection)
    return catalog, GpuTable.from_specs(catalog.specs)


def _versions(
    connection: Connection,
    stores: Stores,
    table: GpuTable,
    last: Engine | None,
    changed: frozenset[Part],
    only: Collection[str],
) -> Ready:
    if last and "versions" not in changed and not any(one.absent for one in last.refused):
        return Ready(dict(last.served), [*last.refused], [*last.problems])
    return ready_versions(connection, stores, table, last, only=only)


def _hosts(
    connection: Connection, stores: Stores, last: Engine | None, changed: frozenset[Part], refused: list[Refusal]
) -> ServingHosts:
    """Return the times of serving stacks' hosts; a version that cannot be served is added to `refused`."""
    if last and "versions" not in changed and not any(one.absent for one in last.refused):
        return last.hosts
    version = served_version(connection)
    if version is None:
        return ServingHosts()
    try:
        return stored_hosts(connection, stores.own, version)
    except ArtifactRefused as error:
        absent = isinstance(error, ArtifactAbsent)
        refused.append(Refusal(SERVING_HOSTS, version.gpu_id, version.version, error.detail, absent))
        return last.hosts if last else ServingHosts()


def _measured(
    connection: Connection, table: GpuTable, last: Engine | None, changed: frozenset[Part]
) -> tuple[KernelIndex, MeasuredModels, ServedPoints]:
    """Measured launches, networks and loads on served models; the latter two of `last` if they are the same."""
    if last and not changed & {"measurements", "gpus"}:
        return last.kernels, last.models, last.served_points
    launched, _ = stored_kernels(measurements.load(connection, kind="kernel"), table)
    networks, points = (last.models, last.served_points) if last else (None, None)
    if networks is None or networks.fingerprint != measurements.stored_set_hash(connection, kind="model"):
        networks = measured_models(measurements.load(connection, kind="model"))
    if points is None or points.fingerprint != measurements.stored_set_hash(connection, kind="serving"):
        points = served_points(measurements.load(connection, kind="serving"))
    return KernelIndex.build(launched), networks, points


def corrections(database: Database, fitter: Fitter, engine: Engine) -> Corrected:
    """Return the corrections of an engine by all measured rows, fitted by `fitter`, and its power model.

    Takes seconds where many rows are new. Raises Unavailable without the database.
    """
    with database.begin(long=True) as connection:
        power = measured_power(connection, engine.gpus, engine.power)
    served, problems = {}, list[str]()
    for key, item in engine.served.items():
        served[key], failed = corrected(key[0], item, engine.gpus, fitter)
        problems += failed
    return Corrected(engine.revision, served, power, tuple(problems))


def assemble_to_serve(stores: Stores, database: Database, connection: Connection, last: Engine | None) -> Engine:
    """Return what `assemble` does; queue the retraining of versions that the code reads no more.

    They are queued in a transaction of their own, because that of `connection` keeps to one state.
    """
    engine = assemble(stores, connection, last)
    unfit = [one for one in engine.refused if not one.absent and one not in (last.refused if last else ())]
    if unfit:
        from app.services.learning.manage_versions import retrain_refused  # noqa: PLC0415 - with its queue 0.15 s

        with database.begin() as apart:
            for one in unfit:
                retrain_refused(apart, one.predictor, one.gpu_id)
    return engine


def assemble_for(runtime: Runtime, *, only: Collection[str] = ALL) -> tuple[Engine, tuple[str, ...]]:
    """Return the corrected engine of an installation, with the predictors `only`, and what is wrong with versions."""
    return _installed(runtime.settings, runtime.database, only)


def installed_engine(settings: Settings, database: Database) -> Engine:
    """Return the corrected engine of an installation with `auto` alone."""
    return _installed(settings, database, {Auto.name})[0]


def _installed(settings: Settings, database: Database, only: Collection[str]) -> tuple[Engine, tuple[str, ...]]:
    with database.begin(long=True, one_state=True) as connection:
        engine = assemble(Stores.of(settings), connection, None, only=only)
    correction = corrections(database, FitHere(), engine)
    return amended(engine, correction), (*engine.messages, *correction.problems)


def installed_snapshot(settings: Settings) -> tuple[Snapshot, tuple[str, ...]]:
    """Return a snapshot of an installation for a process that is not the service, and what is wrong with its versions.

    The database is closed before this returns.
    """
    with open_runtime(settings) as runtime:
        engine, problems = assemble_for(runtime)
    return Snapshot.of(engine), problems


class CorrectInProcess:
    """Fits the corrections of engines: app.engine.snapshot_holder.Correct."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._process = CorrectionProcess()

    def __call__(self, engine: Engine) -> Corrected:
        """Return what corrects an engine; raises Unavailable without database, EOFError or OSError if it is ended."""
        return corrections(self._database, self._process, engine)

    def rest(self) -> None:
        """End the process until it is needed again."""
        self._process.end()

    def stop(self) -> None:
        """End the process for good."""
        self._process.stop()
