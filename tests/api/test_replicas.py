"""Replicas that share nothing but the database: each serves what another one trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.bands.conformal import Intervals
from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.main import create_app
from app.predictors.auto.predictor import Auto
from app.store import artifacts, jobs, measurements, versions
from app.store.session import Database
from tests.busy_machine import until
from tests.learning import kernel_rows
from tests.service import Service

TRAINED = [{"gpu": None, "version": "1"}]
GOOD = {"predictor": "auto", "state": Auto().state(), "intervals": Intervals.prior().state()}


@pytest.fixture
def elsewhere(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a replica with the same database and a folder of its own."""
    return replace(settings, data_dir=tmp_path / "elsewhere")


@pytest.fixture
def replica(elsewhere: Settings) -> Iterator[TestClient]:
    """A second API process's application, without a worker."""
    with TestClient(create_app(elsewhere)) as running:
        yield running


def published(database: Database, folder: Path, payload: dict[str, Any], predictor: str = "auto") -> str:
    """Serve a payload as a trained version whose artefact is only in `folder`; returns its SHA-256."""
    sha256 = artifacts.publish(folder, payload, {})
    with database.begin() as connection:
        version = versions.add(
            connection,
            predictor=predictor,
            gpu_id="*",
            artifact_sha256=sha256,
            training_set_sha256="0" * 64,
            card={},
        )
        versions.serve(connection, version.id)
    return sha256


def listed(client: Any, predictor: str = "auto") -> dict[str, Any]:
    """The entry of a predictor in GET /predictors."""
    items = client.get("/predictors").raise_for_status().json()["items"]
    return next(item for item in items if item["name"] == predictor)


@pytest.mark.slow
def test_a_version_trained_on_one_host_answers_on_another(
    settings: Settings, elsewhere: Settings, database: Database, kernel: dict[str, Any], tmp_path: Path
) -> None:
    with database.begin() as connection:
        measurements.insert(connection, kernel_rows())
    body = {"gpu": "titan-v", "predictor": "linear", "workload": kernel}
    with Service(settings, tmp_path / "one") as one, Service(elsewhere, tmp_path / "other") as other:
        job = one.client.post("/retrain", json={"predictor": "linear"}).raise_for_status().json()
        assert one.wait_for_job(job["job_id"])["state"] == "succeeded"
        until(lambda: all(listed(at.client, "linear")["answering"] == TRAINED for at in (one, other)))
        answers = [at.client.post("/predict", json=body).raise_for_status().json() for at in (one, other)]
    assert answers[0]["predictions"] == answers[1]["predictions"]
    (sha256,) = {path.stem for path in settings.models_dir.glob("*.joblib")}
    assert {path.stem for path in elsewhere.models_dir.glob("*.joblib")} == {sha256}


def test_a_replica_is_not_ready_until_it_has_what_is_served(
    database: Database, replica: TestClient, tmp_path: Path
) -> None:
    sha256 = published(database, tmp_path / "lost", GOOD | {"marker": 1})
    (refused,) = listed(replica)["refused"]
    assert sha256 in refused["reason"]
    answer = replica.get("/readyz")
    assert answer.status_code == 503
    assert sha256 in answer.json()["detail"]
    assert f'gpucast_version_refused{{gpu="*",predictor="auto",version="{refused["version"]}"}} 1.0' in metrics(replica)
    with database.begin() as connection:
        versions.share_artifact(connection, tmp_path / "lost", sha256)
    until(lambda: replica.get("/readyz").status_code == 200)
    assert listed(replica)["refused"] == []
    assert listed(replica)["answering"] == [{"gpu": None, "version": refused["version"]}]


def metrics(client: TestClient) -> str:
    return client.get("/metrics").raise_for_status().text


def test_a_damaged_file_is_fetched_again(
    database: Database, elsewhere: Settings, replica: TestClient, tmp_path: Path
) -> None:
    sha256 = artifacts.publish(elsewhere.models_dir, GOOD | {"marker": 2}, {})
    with database.begin() as connection:
        versions.share_artifact(connection, elsewhere.models_dir, sha256)
    path, _ = artifacts.files_of(elsewhere.models_dir, sha256)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    published(database, tmp_path / "as_before", GOOD | {"marker": 2})
    assert listed(replica)["refused"] == []
    assert artifacts.load(elsewhere.models_dir, sha256)["marker"] == 2


def test_artefacts_of_earlier_releases_are_shared_at_a_start(
    database: Database, settings: Settings, replica: TestClient
) -> None:
    published(database, settings.models_dir, GOOD | {"marker": 3})
    assert listed(replica)["refused"] != []
    with open_runtime(settings):
        until(lambda: listed(replica)["refused"] == [])


def test_a_version_that_does_not_fit_is_trained_again(database: Database, replica: TestClient, tmp_path: Path) -> None:
    with database.begin() as connection:
        measurements.insert(connection, kernel_rows())
    published(database, tmp_path / "old", {"predictor": "ridge", "state": {}, "intervals": {}}, "ridge")
    with database.begin() as connection:
        versions.share_artifacts(connection, tmp_path / "old")
    (refused,) = listed(replica, "ridge")["refused"]
    assert "cannot be read" in refused["reason"]
    assert replica.get("/readyz").status_code == 200
    for _ in range(2):  # a change of the catalogue loads again, and queues nothing more
        with database.begin() as connection:
            queued = [(job.predictor, job.gpu_id) for job in jobs.recent(connection, 10) if job.state == "queued"]
        assert queued == [("ridge", "*")]
        published(database, tmp_path / "other", GOOD | {"marker": 4})
        listed(replica, "ridge")


def test_the_rate_limit_holds_over_replicas(settings: Settings, elsewhere: Settings) -> None:
    apps = [create_app(replace(each, keys="off", rate_limit="20/hour")) for each in (settings, elsewhere)]
    with TestClient(apps[0]) as one, TestClient(apps[1]) as two:
        assert {client.get("/gpus").status_code for client in (one, two) for _ in range(10)} == {200}
        until(lambda: one.get("/gpus").status_code == two.get("/gpus").status_code == 429)
