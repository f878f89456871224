"""The snapshot a process serves from: replaced when the database changes, kept if the new one is unusable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.bands.conformal import Intervals
from app.config import Settings
from app.main import create_app
from app.predictors.auto.predictor import Auto
from app.services.gpus import GPU_EXAMPLE
from app.store import artifacts, gpus, versions
from app.store.session import Database
from app.tables.complete import complete

Kernel = dict[str, Any]
GOOD = {"predictor": "auto", "state": Auto().state(), "intervals": Intervals.prior().state()}


def serve(database: Database, settings: Settings, payload: dict[str, Any], *, damage: bool = False) -> str:
    """Publish a payload as a version of `auto` and serve it; returns the version's name."""
    sha256 = artifacts.publish(settings.models_dir, payload, {})
    if damage:
        path = settings.models_dir / f"{sha256}.joblib"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with database.begin() as connection:
        version = versions.add(
            connection,
            predictor="auto",
            gpu_id="*",
            artifact_sha256=sha256,
            training_set_sha256="0" * 64,
            card={},
        )
        versions.serve(connection, version.id)
    return version.version


def version_now(client: TestClient, kernel: Kernel) -> str:
    answer = client.post("/predict", json={"gpu": "titan-v", "workload": kernel})
    return str(answer.raise_for_status().json()["predictions"][0]["predictor"]["version"])


def test_a_gpu_registered_by_another_process_is_known_at_once(
    client: TestClient, database: Database, kernel: Kernel
) -> None:
    with database.begin() as connection:
        gpus.insert_spec(connection, complete(GPU_EXAMPLE), "user")
    answer = client.post("/predict", json={"gpu": "ACME-1", "workload": kernel})
    assert answer.status_code == 200, answer.text
    with database.begin() as connection:
        gpus.insert_spec(connection, complete(GPU_EXAMPLE | {"id": "acme-9", "name": "Acme 9", "aliases": []}), "user")
    assert client.get("/gpus/acme-9").status_code == 200


def test_a_new_version_is_served_after_the_next_poll(
    client: TestClient, database: Database, settings: Settings, kernel: Kernel
) -> None:
    version = serve(database, settings, GOOD)
    client.get("/predictors").raise_for_status()  # looks
    assert version_now(client, kernel) == version


@pytest.mark.parametrize(
    ("payload", "damage"),
    [
        (GOOD | {"marker": 1}, True),
        ({"predictor": "ridge", "state": {}, "intervals": {}}, False),
        ({"predictor": "auto", "state": {"weights": np.zeros(3)}, "intervals": {}}, False),
        ({"predictor": "auto"}, False),
    ],
    ids=["damaged", "another predictor's", "another form", "without a state"],
)
def test_a_refused_artefact_keeps_the_last_good_version(
    client: TestClient, database: Database, settings: Settings, kernel: Kernel, payload: dict[str, Any], damage: bool
) -> None:
    good = serve(database, settings, GOOD)
    client.get("/predictors").raise_for_status()
    bad = serve(database, settings, payload, damage=damage)
    client.get("/predictors").raise_for_status()
    assert version_now(client, kernel) == good
    ready = client.get("/readyz")
    if damage:  # another replica may have the file whole
        assert ready.status_code == 503
        assert f"auto {bad} for * is not served" in ready.json()["detail"]
    else:
        (note,) = ready.raise_for_status().json()["parts"]["store"]["notes"]
        assert note.startswith(f"auto {bad} for * is not served")
    recovered = serve(database, settings, GOOD | {"marker": 2})
    client.get("/predictors").raise_for_status()
    assert version_now(client, kernel) == recovered
    assert client.get("/readyz").json()["parts"]["store"]["notes"] == []


def test_a_start_with_a_refused_artefact_serves_the_shipped_version(
    database: Database, settings: Settings, kernel: Kernel
) -> None:
    serve(database, settings, GOOD | {"marker": 3}, damage=True)
    with TestClient(create_app(settings)) as started:
        assert version_now(started, kernel).startswith("shipped-")
