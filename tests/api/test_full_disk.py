"""Full disks, of the database and of the artefacts: reported, refused, and what waited for room goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app
from app.services.learning.retrain import queue_retrain
from app.store import jobs, measurements, versions
from app.store.postgres import VOLATILE, EmbeddedPostgres
from app.store.session import Database
from tests.learning import kernel_rows, workload
from tests.small_disk import fill, make_room, small_disk
from tests.worker_process import eventually, over, worker

pytestmark = pytest.mark.slow

MEASURED = [
    {"gpu": "rtx-4070", "software": "cuda", "source": "t", "latency_ms": 1.0, "workload": workload("matmul", 1024)}
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(root, VOLATILE) as running:
        yield running


@pytest.fixture(scope="module")
def settings(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("data")
    return Settings(
        database_url=server.url,
        data_dir=folder,
        seed_measurements_dir=folder / "none",
        heartbeat_s=0.3,
        stalled_after_s=2.0,
    )


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), raise_server_exceptions=False) as running:
        with running.app.state.runtime.database.begin() as connection:  # type: ignore[attr-defined]
            measurements.insert(connection, kernel_rows())
        yield running


@pytest.fixture
def database(client: TestClient) -> Database:
    found: Database = client.app.state.runtime.database  # type: ignore[attr-defined]
    return found


@pytest.fixture
def full(settings: Settings, root: Path, tmp_path: Path) -> Iterator[Path]:
    """The full disk of two tables of the database."""
    with small_disk(tmp_path / "disk", mebibytes=2) as disk:
        owner = (root / "data").stat()
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
        os.chown(disk, owner.st_uid, owner.st_gid)
        with psycopg.connect(settings.database_url or "", autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'".encode())
            move(connection, "small")
            fill(disk)
            yield disk
            move(connection, "pg_default")
            connection.execute("DROP TABLESPACE small")


def move(connection: psycopg.Connection[Any], tablespace: str) -> None:
    for table in ("operator_measurements", "measurements", "artifact_chunks"):
        connection.execute(f"ALTER TABLE {table} SET TABLESPACE {tablespace}".encode())


def part(client: TestClient, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/readyz").raise_for_status().json()["parts"][name]
    return found


def test_an_upload_to_a_full_database_is_refused_and_reported(client: TestClient, full: Path) -> None:
    large = [{**MEASURED[0], "source": f"s{k}", "latency_ms": 1 + k / 1e3} for k in range(300)]
    answer = client.post("/measurements", json=large)
    assert (answer.status_code, answer.headers["Retry-After"]) == (507, "30"), answer.text
    assert answer.json()["type"] == "urn:gpucast:problem:storage-full"
    ready = client.get("/readyz").raise_for_status().json()
    assert ready["status"] == "degraded"
    assert any("full" in reason for reason in ready["degraded"])
    assert 'gpucast_storage_full{disk="database"} 1.0' in client.get("/metrics").text
    assert client.post("/predict", json={"gpu": "rtx-4070", "workload": workload("matmul", 1024)}).status_code == 200
    make_room(full)
    assert client.post("/measurements", json=large).raise_for_status().json()["inserted"] == 300


def test_a_retraining_waits_for_room_in_the_database(
    settings: Settings, database: Database, full: Path, tmp_path: Path
) -> None:
    job_id = queue_retrain(database, "ridge", None)
    with worker(settings, tmp_path) as running:
        eventually(lambda: waits(database, job_id))
        make_room(full)
        assert over(database, job_id).state == "succeeded", running.log.read_text()


def waits(database: Database, job_id: int) -> bool | None:
    with database.begin() as connection:
        job = jobs.get(connection, job_id)
    assert job.state != "failed", job.reason
    return "full" in str(job.result) or None


def test_a_retraining_waits_for_room_in_the_model_store(settings: Settings, database: Database, tmp_path: Path) -> None:
    elsewhere = replace(settings, data_dir=tmp_path / "elsewhere")
    with small_disk(elsewhere.models_dir, mebibytes=64) as disk, TestClient(create_app(elsewhere)) as replica:
        assert part(replica, "store")["ok"]
        fill(disk)
        assert not part(replica, "store")["ok"]
        assert 'gpucast_storage_full{disk="models"} 1.0' in replica.get("/metrics").text
        job_id = queue_retrain(database, "linear", None)
        with worker(elsewhere, tmp_path):
            eventually(lambda: waits(database, job_id))
            make_room(disk)
            assert over(database, job_id).state == "succeeded"
        assert part(replica, "store")["ok"]


def test_a_replica_without_room_for_what_is_served_is_not_ready_until_there_is(
    settings: Settings, database: Database, tmp_path: Path
) -> None:
    with database.begin() as connection:
        assert versions.served(connection), "of the tests above"
    elsewhere = replace(settings, data_dir=tmp_path / "elsewhere")
    with small_disk(elsewhere.models_dir, mebibytes=64) as disk:
        fill(disk)
        with TestClient(create_app(elsewhere)) as replica:
            answer = replica.get("/readyz")
            assert answer.status_code == 503 and "No space left" in answer.json()["detail"]
            make_room(disk)
            assert eventually(lambda: replica.get("/readyz").status_code == 200 or None)
