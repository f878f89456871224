"""Build an engine from the database and the artefact stores."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from app.bootstrap.runtime import Runtime, open_runtime
from app.config import Settings
from app.engine.catalogue import load_catalog
from app.engine.engine import Engine, KernelIndex
from app.engine.gpu_rows import Snapshot
from app.engine.measured_operators import measured_operators
from app.engine.power_model import measured_power
from app.engine.prices import PriceBook
from app.engine.stored_kernels import stored_kernels
from app.engine.versions import ALL, Stores, ready_versions
from app.services.learning.manage_versions import retrain_refused
from app.services.models.network_hits import measured_models
from app.store import measurements, prices, revision
from app.tables.gpus import GpuTable


def assemble(
    stores: Stores, connection: Connection, last: Engine | None, *, only: Collection[str] = ALL
) -> tuple[Engine, tuple[str, ...]]:
    """Return the engine that the database describes, and one message per version that was refused.

    Only artefacts of the predictors in `only` are read. The shipped version is used where the database serves none. A
    version that `last` already serves is reused. If a version is refused, the predictor keeps what `last` serves, or
    else what ships or needs no training.
    """
    value = revision.current(connection)
    catalog = load_catalog(connection)
    table = GpuTable.from_specs(catalog.specs)
    versions = ready_versions(connection, stores, table, last, only=only)
    launched = measurements.load(connection, kind="kernel")
    kernels, _ = stored_kernels(launched, table)
    operators, ready, uncalibrated = measured_operators(connection, table, versions.served, last)
    models = measured_models(measurements.load(connection, kind="model"), last.models if last else None)
    book = PriceBook.of(prices.load(connection))
    power = measured_power(connection, table, launched, last.power if last else None)
    refused = tuple(versions.refused)
    engine = Engine(catalog, table, ready, KernelIndex.build(kernels), value, operators, models, book, power, refused)
    return engine, (*map(str, refused), *versions.problems, *uncalibrated)


def assemble_to_serve(stores: Stores, connection: Connection, last: Engine | None) -> tuple[Engine, tuple[str, ...]]:
    """Return what `assemble` does; queue the retraining of versions that the code reads no more."""
    engine, messages = assemble(stores, connection, last)
    for one in engine.refused:
        if not one.absent and one not in (last.refused if last else ()):
            retrain_refused(connection, one.predictor, one.gpu_id)
    return engine, messages


def assemble_for(runtime: Runtime, *, only: Collection[str] = ALL) -> tuple[Engine, tuple[str, ...]]:
    """Return the engine of an installation with the predictors `only`, and one message per version that was refused."""
    with runtime.database.begin(long=True) as connection:
        return assemble(Stores.of(runtime.settings), connection, None, only=only)


def installed_snapshot(settings: Settings) -> tuple[Snapshot, tuple[str, ...]]:
    """Return a snapshot of an installation for a process that is not the service, and one message per refused version.

    The database is closed before this returns.
    """
    with open_runtime(settings) as runtime:
        engine, refused = assemble_for(runtime)
    return Snapshot.of(engine), refused
