"""Learning loop for operators: upload, retrain, exact hit, rollback to the shipped version."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import Settings
from app.engine.shipped import write_list
from app.store import artifacts
from app.tables.measurements import Measurements
from app.training.candidate import candidate
from app.training.operator_start import Start
from tests.kernels_data import made_up
from tests.service import Service
from tests.unit.training.test_candidate import made, training_data

pytestmark = pytest.mark.slow

V100 = "tesla-v100-pcie-32gb"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an `li` of two GPUs that ships."""
    folder = tmp_path_factory.mktemp("shipped")
    rows = training_data(made("tesla-t4", "a100-pcie-40gb"), made("tesla-t4", "a100-pcie-40gb", op="bmm"))
    found = candidate(Start.on("li"), rows, [], target_gpu=None, report=lambda _: None).trained
    told = {"predictor": "li", "gpu_id": "*", "training_set_sha256": "c" * 64, "card": found.card}
    write_list(folder, {"li": artifacts.publish(folder, found.payload, told)})
    return folder


@pytest.fixture(scope="module")
def settings(settings: Settings, shipped: Path) -> Settings:
    return dataclasses.replace(settings, shipped_dir=shipped)


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(settings, tmp_path_factory.mktemp("service") / "log") as running:
        yield running


def uploads(rows: Measurements, gpu: str, scale: float = 1.0) -> list[dict[str, Any]]:
    ops = rows.ops
    return [
        {
            "gpu": gpu,
            "software": "pytorch-2.1",
            "source": "made up",
            "latency_ms": 1e3 * scale * float(rows.latency_s[k]),
            "workload": {
                "kind": "operator",
                "op": "linear",
                "dtype": "fp32",
                **{name: int(ops.column(name)[k]) for name in ("m", "n", "k")},
            },
        }
        for k in range(len(rows))
    ]


def predictor(service: Service, name: str) -> dict[str, Any]:
    items = service.client.get("/predictors").raise_for_status().json()["items"]
    return next(item for item in items if item["name"] == name)


def ask(service: Service, gpu: str, **shape: Any) -> dict[str, Any]:
    operator = {"op": "linear", "m": 1024, "n": 2048, "k": 1024, "dtype": "fp32", **shape}
    body = {"gpu": gpu, "predictor": "li", "workload": {"kind": "operators", "operators": [operator]}}
    answer: dict[str, Any] = service.client.post("/predict", json=body).raise_for_status().json()["predictions"][0]
    return answer


def retrain(service: Service, **body: Any) -> dict[str, Any]:
    answer = service.client.post("/retrain", json={"predictor": "li"} | body)
    assert answer.status_code == 202, answer.text
    return service.wait_for_job(answer.json()["job_id"])


def test_the_shipped_version_predicts_at_once(service: Service) -> None:
    told = predictor(service, "li")
    version = told["shipped"]["version"]
    assert version.startswith("shipped-")
    assert told["answering"] == [{"gpu": None, "version": version}]
    assert (told["served"], told["shipped"]["state"]) == ([], "shipped")
    assert {cell["family"] for cell in told["shipped"]["validation"]} == {"linear/fp32", "bmm/fp32"}
    assert ask(service, "tesla-t4")["predictor"] == {"name": "li", "version": version}
    assert service.client.post("/predictors/li/rollback").status_code == 409


def test_retraining_without_rows_names_the_import(service: Service) -> None:
    refused = service.client.post("/retrain", json={"predictor": "li"})
    assert refused.status_code == 409
    assert "gpucast measure" in refused.json()["detail"]
    assert "gpucast import neusight DIR" in refused.json()["detail"]
    assert "cuda-kernels" not in refused.json()["detail"]


def test_kernel_rows_do_not_train_predictors_of_operators(service: Service) -> None:
    service.client.post("/measurements", json=made_up()[:8]).raise_for_status()
    assert service.client.post("/retrain", json={"predictor": "li"}).status_code == 409
    kernel = made_up()[0]["workload"]
    refused = service.client.post("/predict", json={"gpu": "titan-v", "predictor": "li", "workload": kernel})
    assert refused.status_code == 422
    assert "li does not predict kernels" in refused.text


def test_from_measured_operators_to_a_better_version(service: Service) -> None:
    run = made(V100)
    before = ask(service, V100)
    service.client.post("/measurements", json=uploads(run.rows, V100)).raise_for_status()
    job = retrain(service)
    assert (job["state"], job["version"], job["served"]) == ("succeeded", "1", True), job
    assert job["progress"] is None
    assert job["trained_on"] == {"rows": 27, "gpus": [V100]}
    families = {(cell["family"], cell["gpu"]) for cell in job["validation"]}
    assert {("linear/fp32", V100), ("bmm/fp32", "tesla-t4")} <= families
    assert predictor(service, "li")["answering"] == [{"gpu": None, "version": "1"}]
    after = ask(service, V100)
    assert after["predictor"]["version"] == "1"
    shape = run.rows.ops
    here = np.flatnonzero((shape.column("m") == 1024) & (shape.column("n") == 2048) & (shape.column("k") == 1024))[0]
    measured = 1e3 * run.rows.latency_s[here]
    assert abs(after["latency_ms"] / measured - 1) < 0.15 < abs(before["latency_ms"] / measured - 1)
    # What ships is still known.
    assert ask(service, "tesla-t4", op="bmm", b=8)["predictor"]["version"] == "1"


def test_a_version_worse_than_the_served_one_is_held_back(service: Service) -> None:
    run = made(V100, seed=5)
    service.client.post("/measurements", json=uploads(run.rows, V100, scale=0.5)).raise_for_status()
    job = retrain(service)
    assert (job["state"], job["served"]) == ("succeeded", False), job
    assert "kept back" in job["reason"]
    assert ask(service, V100)["predictor"]["version"] == "1"


def test_a_version_for_one_gpu(service: Service) -> None:
    job = retrain(service, gpu=V100)
    assert (job["state"], job["gpu"]) == ("succeeded", V100), job
    assert not job["served"] and "kept back" in job["reason"], "it is worse than the version for all GPUs"
    assert {cell["gpu"] for cell in job["validation"] if cell["family"] == "linear/fp32"} >= {V100}
    refused = service.client.post("/retrain", json={"predictor": "li", "gpu": "nvidia-l4"})
    assert refused.status_code == 409
    assert "nvidia-l4" in refused.json()["detail"]


def test_rolling_back_the_first_version_serves_the_shipped_one(service: Service) -> None:
    back = service.client.post("/predictors/li/rollback").raise_for_status().json()
    assert (back["state"], back["created_at"]) == ("shipped", None)
    told = predictor(service, "li")
    assert {"gpu": None, "version": told["shipped"]["version"]} in told["answering"]
    assert ask(service, "tesla-t4")["predictor"]["version"] == told["shipped"]["version"]
