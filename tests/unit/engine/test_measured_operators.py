"""The engine's cache of stored operators between two polls of the database."""

import pytest

from app.bootstrap.assemble import assemble
from app.config import Settings
from app.engine.engine import Engine
from app.engine.versions import Stores
from app.services.measurements.ingest import ingest
from app.services.measurements.removal import remove
from app.store.measurement_filters import Filters
from app.store.session import Database
from app.tables.measurements import Measurements
from app.wire.measurements.upload import Objects, Upload
from tests.api.test_operator_learning import uploads
from tests.kernels_data import SAXPY
from tests.unit.training.test_candidate import made

V100 = "tesla-v100-pcie-32gb"
MODEL = {"kind": "model", "name": "resnet18", "mode": "inference", "batch": 8, "image_size": 224, "dtype": "fp32"}


def upload(rows: Measurements) -> Upload:
    return Upload((Objects.of(uploads(rows, V100)),))


def test_rows_are_read_again_only_if_some_were_added(settings: Settings, database: Database) -> None:
    stores = Stores.of(settings)

    def look(last: Engine | None = None) -> Engine:
        with database.begin() as connection:
            return assemble(stores, connection, last)[0]

    empty = look()
    assert len(empty.operators.index) == 0
    ingest(database, empty, upload(made(V100).rows))
    first = look(empty)
    assert first.operators.counts == {V100: 27}
    again = look(first)
    assert again.operators is first.operators
    assert all(again.served[key] is one for key, one in first.served.items())
    auto = first.served["auto", "*"]
    assert auto.uncalibrated is not None
    ingest(database, again, upload(made(V100, seed=7).rows))
    more = look(again)
    assert more.operators.counts == {V100: 54}
    assert more.served["auto", "*"].uncalibrated is auto.uncalibrated


def test_replaced_rows_are_read_again(settings: Settings, database: Database) -> None:
    stores = Stores.of(settings)

    def look(last: Engine | None = None) -> Engine:
        with database.begin() as connection:
            return assemble(stores, connection, last)[0]

    def replaced(engine: Engine, latency_ms: float) -> None:
        remove(database, Filters(gpu=V100))
        about = {"gpu": V100, "software": "pytorch-2.1", "source": "made up", "latency_ms": latency_ms, "power_w": 200}
        rows = [about | {"workload": workload} for workload in (SAXPY, MODEL)]
        ingest(database, engine, Upload((Objects.of(rows),)))
        ingest(database, engine, upload(made(V100, seed=int(latency_ms)).rows))

    replaced(look(), 100.0)
    first = look()
    replaced(first, 200.0)
    then = look(first)
    assert then.operators.counts == first.operators.counts
    assert then.operators.index is not first.operators.index
    assert [list(one.values()) for one in then.models.times.values()] == [[pytest.approx(0.2)]]
    assert then.power is not first.power
    remove(database, Filters(source="made up"))
    last = look(then)
    assert (len(last.operators.index), last.models.times, last.kernels.rows) == (0, {}, None)
    assert last.served["auto", "*"].uncalibrated is None
    assert last.served["auto", "*"].predictor is first.served["auto", "*"].uncalibrated
