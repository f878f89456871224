"""The engine's measured operators between two polls of the database."""

from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from app.bootstrap.assemble import assemble, corrections
from app.config import Settings
from app.engine.corrections import FitHere, amended, outdated
from app.engine.engine import Engine
from app.engine.measured_operators import with_added
from app.engine.unlearned import MOST_ROWS
from app.engine.versions import Stores
from app.services.measurements.store_uploads import ingest
from app.services.measurements.stored import remove
from app.store import gpus
from app.store.operators import Added
from app.store.session import Database
from app.store.uploads import Filters
from app.tables.measurements import Measurements
from app.wire.measurement_form import Objects, Upload
from tests.api.test_operator_learning import uploads
from tests.kernels_data import SAXPY
from tests.unit.operators import operators
from tests.unit.training.test_candidate import made

V100, A100 = "tesla-v100-pcie-32gb", "a100-pcie-40gb"
MODEL = {"kind": "model", "name": "resnet18", "mode": "inference", "batch": 8, "image_size": 224, "dtype": "fp32"}


@pytest.fixture(autouse=True)
def _no_rows_before(database: Database) -> None:
    remove(database, Filters(source="made up"))


def upload(rows: Measurements, gpu: str = V100) -> Upload:
    return Upload((Objects.of(uploads(rows, gpu)),))


def look(settings: Settings, database: Database, last: Engine | None = None) -> Engine:
    """The engine of the database, without new corrections."""
    with database.begin(one_state=True) as connection:
        return assemble(Stores.of(settings), connection, last)


def correct(database: Database, engine: Engine) -> Engine:
    """The engine corrected by the rows that it has."""
    found = corrections(database, FitHere(), engine)
    assert found.problems == ()
    return amended(engine, found)


def test_only_new_rows_are_read_and_only_their_groups_are_fitted_again(settings: Settings, database: Database) -> None:
    empty = look(settings, database)
    assert (len(empty.operators.index), empty.corrected) == (0, -1)
    ingest(database, empty, upload(made(V100).rows))
    first = look(settings, database, empty)
    assert first.operators.counts == {V100: 27}
    assert first.served["auto", "*"].uncalibrated is None
    assert [*outdated(first.served["auto", "*"])] == [("linear", V100)]
    first = correct(database, first)
    assert first.corrected == first.revision
    auto = first.served["auto", "*"]
    assert auto.uncalibrated is not None
    assert outdated(auto) == {}

    again = look(settings, database, first)
    assert again.operators is first.operators
    assert all(again.served[key] is one for key, one in first.served.items())

    ingest(database, again, upload(made(V100, seed=7).rows, A100))
    more = look(settings, database, again)
    assert more.operators.counts == {V100: 27, A100: 27}
    assert [*outdated(more.served["auto", "*"])] == [("linear", A100)]
    more = correct(database, more)
    assert more.served["auto", "*"].uncalibrated is auto.uncalibrated
    assert more.served["auto", "*"].corrections["linear", V100] is auto.corrections["linear", V100]


def test_rows_read_one_after_another_give_the_engine_of_all_at_once(settings: Settings, database: Database) -> None:
    engine = correct(database, look(settings, database))
    rows = made(V100).rows
    for some in np.array_split(np.arange(len(rows)), 5):
        ingest(database, engine, upload(rows.take(some)))
        engine = correct(database, look(settings, database, engine))
    at_once = correct(database, look(settings, database))
    assert engine.operators.counts == at_once.operators.counts
    for column in ("keys", "latency_s", "start"):
        np.testing.assert_array_equal(getattr(engine.operators.index, column), getattr(at_once.operators.index, column))
    ops = operators("linear", *({"m": m, "n": 640, "k": 640} for m in (8, 100, 3000)))
    i, j = np.arange(3), np.full(3, engine.gpus.ids.index(V100))
    one, other = (of.served["auto", "*"].predictor.operators_.estimate(ops, of.gpus, i, j) for of in (engine, at_once))
    np.testing.assert_array_equal(one.latency_s, other.latency_s)
    assert len(engine.operators.index.evidence(rows.ops, np.arange(len(rows)), np.full(len(rows), j[0]))) == len(rows)
    assert set(one.group.tolist()) == set(other.group.tolist())


def test_added_rows_give_the_engine_that_is_read_from_the_database(settings: Settings, database: Database) -> None:
    before = engine = look(settings, database)
    rows = made(V100).rows
    added: list[Added] = []
    for some in (np.arange(3), np.arange(27), np.arange(2)):  # rows of the first are known to the others
        ingest(database, engine, upload(rows.take(some)), announce=added.append)
    for each in added:
        engine = with_added(engine, each)
    read = look(settings, database, before)
    assert len(added) == 2
    assert (engine.revision, engine.corrected, engine.operators.counts) == (
        read.revision,
        read.corrected,
        read.operators.counts,
    )
    for column in ("keys", "latency_s", "start"):
        np.testing.assert_array_equal(getattr(engine.operators.index, column), getattr(read.operators.index, column))
    (mine,), (theirs,) = (of.served["auto", "*"].unlearned["linear", V100].runs(of.gpus) for of in (engine, read))
    for name in ("software", "kernel", "grid", "block", "key"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    np.testing.assert_array_equal(mine.rows.ops.dims, theirs.rows.ops.dims)
    np.testing.assert_array_equal(mine.rows.latency_s, theirs.rows.latency_s)


def test_a_change_of_an_older_release_is_read_whole(settings: Settings, database: Database) -> None:
    """It names no part, and does not say when its rows were added."""
    first = look(settings, database)
    ingest(database, first, upload(made(V100).rows))
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE operator_measurements SET added = NULL"))
        connection.execute(sa.text("DELETE FROM revision_parts"))
        connection.execute(sa.text("UPDATE revision SET value = value + 1"))
    then = look(settings, database, first)
    assert then.operators.counts == {V100: 27}
    ingest(database, then, upload(made(V100, seed=3).rows))  # of this release, which names only its own
    assert len(look(settings, database, first).operators.index) == len(look(settings, database).operators.index)


def test_a_gpu_that_is_specified_anew_is_fitted_again(settings: Settings, database: Database) -> None:
    engine = look(settings, database)
    ingest(database, engine, upload(made(V100).rows))
    ingest(database, engine, upload(made(V100).rows, A100))
    engine = correct(database, look(settings, database, engine))
    with database.begin() as connection:
        spec = gpus.get_spec(connection, V100)
        gpus.update_spec(connection, replace(spec, board_power_w=1.1 * (spec.board_power_w or 250.0)))
    then = look(settings, database, engine)
    auto = then.served["auto", "*"]
    assert {*outdated(auto)} == ({("linear", V100), ("linear", A100)} if V100 in auto.gpus else {("linear", V100)})


def test_a_group_keeps_the_rows_of_least_identity(settings: Settings, database: Database) -> None:
    engine = look(settings, database)
    draw = np.random.default_rng(0)
    sizes = [{"m": int(m), "n": 256, "k": 256} for m in draw.permutation(2000)[: MOST_ROWS + 50] + 1]
    rows = Measurements(operators("linear", *sizes), np.zeros(len(sizes), dtype=np.intp), np.full(len(sizes), 1e-2))
    grown = engine
    for some in np.array_split(np.arange(len(rows)), 3):
        ingest(database, engine, upload(rows.take(some)))
        grown = look(settings, database, grown)
    groups = [of.served["auto", "*"].unlearned["linear", V100] for of in (grown, look(settings, database))]
    assert [sum(len(ids) for _, ids in group.parts) for group in groups] == [MOST_ROWS, MOST_ROWS]
    assert groups[0].holds_same_rows(groups[1])


def test_replaced_rows_are_read_again(settings: Settings, database: Database) -> None:
    def replaced(engine: Engine, latency_ms: float) -> None:
        remove(database, Filters(gpu=V100))
        about = {"gpu": V100, "software": "pytorch-2.1", "source": "made up", "latency_ms": latency_ms, "power_w": 200}
        rows = [about | {"workload": workload} for workload in (SAXPY, MODEL)]
        ingest(database, engine, Upload((Objects.of(rows),)))
        ingest(database, engine, upload(made(V100, seed=int(latency_ms)).rows))

    replaced(look(settings, database), 100.0)
    first = correct(database, look(settings, database))
    replaced(first, 200.0)
    then = correct(database, look(settings, database, first))
    assert then.operators.counts == first.operators.counts
    assert then.operators.index is not first.operators.index
    assert [list(one.values()) for one in then.models.times.values()] == [[pytest.approx(0.2)]]
    assert then.power is not first.power
    remove(database, Filters(source="made up"))
    last = correct(database, look(settings, database, then))
    assert (len(last.operators.index), last.models.times, last.kernels.rows) == (0, {}, None)
    assert last.served["auto", "*"].uncalibrated is None
    assert last.served["auto", "*"].predictor is first.served["auto", "*"].uncalibrated
