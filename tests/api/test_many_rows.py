"""An upload of many rows leaves others alone, ends when its caller leaves, and is stored once, on the real service."""

from __future__ import annotations

import http.client
import time

import httpx
import psutil
import pyarrow as pa
import pytest
import sqlalchemy as sa

from app.store.session import Database
from benchmarks.hostile import PARQUET
from benchmarks.hostile_rows import numbered, table, weight
from tests.api.test_bounds import leaving_others_alone
from tests.busy_machine import until
from tests.service import Service

pytestmark = pytest.mark.slow

ROWS = 100_000
GROWN_BYTES = 150_000_000


def send(service: Service, body: bytes) -> httpx.Response:
    return service.client.post("/measurements", content=body, headers={"content-type": PARQUET})


def statements(database: Database) -> list[str]:
    """Statements that store operators now."""
    working = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"
    with database.begin() as connection:
        return [query for (query,) in connection.execute(sa.text(working)) if "operator_measurements" in query]


def stored(database: Database, source: str) -> int:
    rows = "SELECT coalesce(sum(measurements), 0) FROM operator_contexts WHERE source = :source"
    with database.begin() as connection:
        return int(connection.execute(sa.text(rows), {"source": source}).scalar_one())


def test_many_rows_leave_others_alone_and_are_stored_once(service: Service, database: Database) -> None:
    assert service.process is not None
    api, body = psutil.Process(service.process.pid), table(ROWS)
    reports = list[dict[str, int]]()

    def upload() -> httpx.Response:
        before = weight(api)[0]
        answer = send(service, body).raise_for_status()
        reports.append(answer.json())
        assert weight(api)[0] - before < GROWN_BYTES
        return answer

    leaving_others_alone(service, upload, GROWN_BYTES)
    assert [report["inserted"] for report in reports] == [ROWS, *[0] * (len(reports) - 1)]
    assert {report["received"] for report in reports} == {ROWS}
    assert stored(database, f"{ROWS:,} rows") == ROWS


def test_storing_ends_when_the_caller_leaves(service: Service, database: Database) -> None:
    body = table(3 * ROWS)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    connection.request("POST", "/measurements", body, {"Content-Type": PARQUET})
    until(lambda: any("INSERT" in query for query in statements(database)), every_s=0.01)
    connection.close()
    time.sleep(1.0)
    until(lambda: not statements(database))
    assert stored(database, f"{3 * ROWS:,} rows") == 0
    assert send(service, table(3)).json()["inserted"] == 3, "the connection to the database is in order"


@pytest.mark.parametrize(("column", "words"), [("source", "source"), ("gpu", "unknown GPU")])
def test_a_text_of_its_own_in_each_of_many_rows_is_refused(service: Service, column: str, words: str) -> None:
    """Each takes milliseconds, or an object in every process."""
    body = table(ROWS, **{column: numbered(words, ROWS, ROWS)})
    answer = leaving_others_alone(service, lambda: send(service, body))
    assert answer.status_code == 422
    assert words in answer.text


def test_the_type_of_a_column_is_wrong_in_all_rows(service: Service) -> None:
    answer = send(service, table(3 * ROWS, m=pa.array(["1"] * 3 * ROWS)))
    assert [error["loc"] for error in answer.json()["errors"]] == [["m"]]
