"""Few operators are stored like many, which are copied."""

from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.errors import DivisionByZero

from app.services.measurements.check_upload import Checked, check
from app.store import gpus, operators, revision
from app.store.driver import Cell, copy_out
from app.store.operators import Sent
from app.store.session import Database
from app.tables.catalog import Catalog
from app.tables.complete import complete
from app.wire.measurement_form import Objects
from tests.unit.engine.test_measurement_tables import linear
from tests.unit.services.test_ingest import SMALL

SPEC = complete(SMALL)
ROWS = [
    linear(7, 0.1 + 0.2),
    linear(8, 3.5, kernel={"name": "sgemm", "grid": [4, 2], "block": 128}),
    linear(9, 4.0, workload={"phase": "backward", "run_state": "burst"}, latency_std_ms=1e-7, power_w=33.3),
    linear(11, 5.0, workload={"op": "bmm", "b": 3}, measured_at="2026-01-02T03:04:05.678901Z", runs=5, clock_hz=1e9),
    linear(7, 0.1 + 0.2),
]
_COLUMNS = (
    "SELECT {} FROM operator_measurements AS rows JOIN operator_contexts AS contexts ON contexts.id = context_id"
    " WHERE source = :source ORDER BY latency_s"
)
# All but the ids, the date of storage, and the digest of a context, which depends on the source.
STORED = (
    "latency_s, dims, latency_std_s, runs, clock_hz, power_w, measured_at, grid, block, added, upload_id,"
    " op, dtype, fields, gpu_id, software, kernel, contexts.measurements"
)


@pytest.fixture(scope="module", autouse=True)
def gpu(database: Database) -> None:
    with database.begin() as connection:
        gpus.insert_spec(connection, SPEC, "user")


def checked(source: str) -> Checked:
    return check(Catalog([SPEC]), Objects.of([row | {"source": source} for row in ROWS]))


def inserted(database: Database, source: str, upload_id: int | None) -> tuple[int, int]:
    """The number of new rows, and of revisions that they made."""
    found = checked(source).operators
    assert found is not None
    with database.begin() as connection:
        before = revision.current(connection)
        new = operators.insert(connection, [Sent(block, upload_id) for block in found.blocks])
        return new.rows[upload_id], revision.current(connection) - before


def stored(database: Database, source: str) -> list[dict[str, Any]]:
    with database.begin() as connection:
        found = connection.execute(sa.text(_COLUMNS.format(STORED)), {"source": source})
        return [dict(row._mapping) for row in found]


def test_few_rows_are_stored_like_copied_ones(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inserted(database, "few", 11) == (4, 1)
    with monkeypatch.context() as patched:
        patched.setattr(operators, "FEW", 0)
        assert inserted(database, "many", 11) == (4, 1)
    few, many = (stored(database, source) for source in ("few", "many"))
    assert [row.pop("added") for row in many] == [row.pop("added") + 1 for row in few]
    assert few == many
    assert few[0]["latency_s"] == (0.1 + 0.2) / 1e3


def test_few_known_rows_change_nothing(database: Database) -> None:
    assert inserted(database, "again", None) == (4, 1)
    before = stored(database, "again")
    assert inserted(database, "again", None) == (0, 0)
    assert stored(database, "again") == before


def test_parts_of_one_import_are_taken_alone(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "FEW", 0)
    parts = [checked(source).operators for source in ("first part", "second part")]
    with database.begin() as connection:
        for part in parts:
            assert part is not None
            assert operators.insert(connection, [Sent(block, None) for block in part.blocks]).rows[None] == 4
        assert connection.execute(sa.text("SELECT count(*) FROM given")).scalar_one() == sum(map(len, part.blocks))


def test_an_error_in_the_midst_of_a_copy_is_that_of_the_server(database: Database) -> None:
    statement = "COPY (SELECT 1::int8 / (5000 - k) AS x FROM generate_series(1, 10000) AS k) TO STDOUT (FORMAT BINARY)"
    cells = [Cell("x", "int8")]
    with pytest.raises(DivisionByZero), database.begin() as connection:
        list(copy_out(connection, statement, [], cells, 1000))
    with database.begin() as connection:
        parts = list(copy_out(connection, statement.replace("10000", "4999"), [], cells, 1000))
        assert list(copy_out(connection, statement.replace("10000", "0"), [], cells, 1000)) == []
    assert [len(part) for part in parts] == [1000] * 4 + [999]
    assert [int(part["x"][-1]) for part in parts] == [0, 0, 0, 0, 1]
