"""This release on what earlier ones stored (tests/upgrades/record.py), as a user starts it."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from app.config import Settings
from app.services.gpus import GPU_EXAMPLE
from app.wire.kernel_workload import KERNEL_EXAMPLE
from tests.conftest import new_database
from tests.service import Service
from tests.upgrades.record import DATA, LINEAR, MEASURED, PRICE

pytestmark = pytest.mark.slow

RELEASES = sorted(path.name.removesuffix(".sql.gz") for path in DATA.glob("*.sql.gz"))


@pytest.fixture(params=RELEASES, scope="module")
def upgraded(
    request: pytest.FixtureRequest, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """This release's service on an installation of an earlier one."""
    folder = tmp_path_factory.mktemp("upgraded")
    settings = Settings(data_dir=folder, seed_measurements_dir=folder / "none")
    shutil.copytree(DATA / request.param, settings.models_dir)
    with new_database(postgres_url) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(gzip.decompress((DATA / f"{request.param}.sql.gz").read_bytes()))
        with Service(replace(settings, database_url=url), folder / "log", fresh=True) as service:
            yield service


def got(service: Service, route: str) -> Any:
    return service.client.get(route).raise_for_status().json()


def test_what_was_stored_is_there(upgraded: Service) -> None:
    assert got(upgraded, f"/gpus/{GPU_EXAMPLE['id']}")["name"] == GPU_EXAMPLE["name"]
    (price,) = got(upgraded, "/prices?gpu=l40s&source=list")["items"]
    assert (price["usd_per_hour"], price["term"], price["shipped"]) == (PRICE["usd_per_hour"], "on_demand", False)
    assert price["counts"]  # before the list prices that the new release brought
    assert any(one["shipped"] for one in got(upgraded, "/prices?gpu=l40s")["items"])
    (row,) = got(upgraded, "/measurements?gpu=l40s")["items"]
    assert row["latency_ms"] == MEASURED["latency_ms"]
    workload = {"kind": "operators", "operators": [LINEAR]}
    answer = upgraded.client.post("/predict", json={"gpu": "l40s", "workload": workload}).raise_for_status().json()
    assert answer["predictions"][0]["support"] == "measured"
    assert answer["predictions"][0]["latency_ms"] == MEASURED["latency_ms"]


def test_its_trained_version_serves_or_is_trained_again(upgraded: Service) -> None:
    (linear,) = [one for one in got(upgraded, "/predictors")["items"] if one["name"] == "linear"]
    if linear["refused"]:
        assert [job["predictor"] for job in got(upgraded, "/jobs")["items"]].count("linear") == 2
    else:
        assert linear["answering"] == [{"gpu": None, "version": "1"}]
    body = {"gpu": "titan-v", "predictor": "linear", "workload": KERNEL_EXAMPLE}
    assert upgraded.client.post("/predict", json=body).status_code == 200


def test_its_saved_answer_is_listed(upgraded: Service) -> None:
    (saved,) = got(upgraded, "/predictions")["items"]
    assert got(upgraded, f"/predictions/{saved['id']}")
    assert upgraded.client.delete(f"/predictions/{saved['id']}").status_code == 204
    assert got(upgraded, "/predictions")["items"] == []
