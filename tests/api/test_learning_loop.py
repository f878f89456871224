"""Learning loop for kernels on the real queue, worker and model store: upload, retrain, serve, roll back."""

from typing import Any

import httpx
import pytest

from tests.kernels_data import KERNELS, made_up, workload
from tests.service import Service

pytestmark = pytest.mark.slow

QUICK = "ridge"
QUESTION = workload("made_poly", 2**21, *KERNELS["made_poly"])


def predictor(server: httpx.Client, name: str) -> dict[str, Any]:
    items = server.get("/predictors").raise_for_status().json()["items"]
    return next(item for item in items if item["name"] == name)


def ask(server: httpx.Client, name: str) -> httpx.Response:
    measured = [{"gpu": "rtx-4070", "latency_ms": 0.05}]
    question = {"gpu": "titan-v", "predictor": name, "workload": QUESTION | {"measured": measured}}
    return server.post("/predict", json=question)


def retrain(service: Service, name: str, **more: Any) -> dict[str, Any]:
    answer = service.client.post("/retrain", json={"predictor": name} | more)
    assert answer.status_code == 202, answer.text
    return service.wait_for_job(answer.json()["job_id"])


def test_nothing_can_be_trained_without_data(server: httpx.Client) -> None:
    assert ask(server, QUICK).status_code == 409
    refused = server.post("/retrain", json={"predictor": QUICK})
    assert refused.status_code == 409
    assert "gpucast import cuda-kernels" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"predictor": "oracle"}, 422, "forest"),
        ({"predictor": "roofline"}, 422, "cannot be trained"),
        ({"predictor": QUICK, "gpu": "titan-w"}, 404, "titan-v"),
        ({"predictor": QUICK, "speed": 1}, 422, "speed"),
        ({}, 422, "predictor"),
    ],
)
def test_unsatisfiable_retrain_requests_are_rejected(
    server: httpx.Client, body: dict[str, Any], status: int, said: str
) -> None:
    answer = server.post("/retrain", json=body)
    assert answer.status_code == status
    assert said in answer.text


def test_unknown_jobs_and_versions_are_404(server: httpx.Client) -> None:
    assert server.get("/jobs/999999").status_code == 404
    assert server.get("/jobs/one").status_code == 422
    assert server.post("/predictors/oracle/rollback").status_code == 422
    assert server.post(f"/predictors/{QUICK}/rollback").status_code == 409
    assert server.post(f"/predictors/{QUICK}/rollback", params={"gpu": "titan-w"}).status_code == 404


def test_from_measurements_to_a_served_version_and_back(service: Service) -> None:
    server = service.client
    server.post("/measurements", json=made_up()).raise_for_status()
    job = retrain(service, QUICK)
    assert (job["state"], job["version"], job["served"]) == ("succeeded", "1", True), job
    assert job["trained_on"]["rows"] == 64
    assert {"gpu_held_out", "size_held_out"} <= {cell["split"] for cell in job["validation"]}
    told = predictor(server, QUICK)
    assert told["answering"] == [{"gpu": None, "version": "1"}]
    assert told["served"][0]["validation"] == job["validation"]
    assert sorted(told["served"][0]["trained_on"]["gpus"])[0] == "rtx-2080-ti"
    answer = ask(server, QUICK).raise_for_status().json()["predictions"][0]
    assert answer["predictor"] == {"name": QUICK, "version": "1"}
    assert answer["interval_ms"]["low"] <= answer["latency_ms"] <= answer["interval_ms"]["high"]


def test_a_version_that_is_no_worse_replaces_the_served_one_and_can_be_rolled_back(service: Service) -> None:
    server = service.client
    # The same rows again: an equally good version.
    assert (retrain(service, QUICK)["version"], predictor(server, QUICK)["served"][0]["version"]) == ("2", "2")
    assert ask(server, QUICK).json()["predictions"][0]["predictor"]["version"] == "2"
    answers = [server.post(f"/predictors/{QUICK}/rollback", params={"leave": "2"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 409], "sent twice, it goes back once"
    assert "serves version '1'" in answers[1].json()["detail"]
    back = answers[0].json()
    assert (back["version"], back["state"]) == ("1", "served")
    assert ask(server, QUICK).json()["predictions"][0]["predictor"]["version"] == "1"
    assert [item["state"] for item in predictor(server, QUICK)["history"]] == ["retired", "served"]
    assert server.post(f"/predictors/{QUICK}/rollback").status_code == 409


def test_a_version_for_one_gpu(service: Service) -> None:
    job = retrain(service, "forest", gpu="NVIDIA TITAN V")
    assert (job["state"], job["gpu"]) == ("succeeded", "titan-v"), job["reason"]
    assert predictor(service.client, "forest")["answering"] == [{"gpu": "titan-v", "version": "1"}]
    assert ask(service.client, "forest").json()["predictions"][0]["predictor"]["version"] == "1"


def test_a_worse_version_is_held_back_with_the_reason(service: Service) -> None:
    served = predictor(service.client, QUICK)["served"][0]["version"]
    # Times up to a thousand times too long, at random: nothing that learns from them predicts well.
    nonsense = made_up(seed=2, noise=4.0, source="a broken clock")
    service.client.post("/measurements", json=nonsense).raise_for_status()
    job = retrain(service, QUICK)
    assert (job["state"], job["served"]) == ("succeeded", False), job
    assert "kept back" in job["reason"]
    assert predictor(service.client, QUICK)["served"][0]["version"] == served
    assert predictor(service.client, QUICK)["history"][0]["state"] == "kept_back"
    assert ask(service.client, QUICK).json()["predictions"][0]["predictor"]["version"] == served


def test_a_burst_of_requests_is_a_few_jobs(service: Service) -> None:
    asked = [service.client.post("/retrain", json={"predictor": "knn"}).json()["job_id"] for _ in range(12)]
    # At most the one that runs and the one that waits for it, unless a job ended within the burst.
    assert len(set(asked)) <= 4
    assert {service.wait_for_job(job_id)["state"] for job_id in set(asked)} == {"succeeded"}


def test_a_version_beyond_any_use_is_not_even_the_first_one(service: Service) -> None:
    job = retrain(service, "lasso")
    assert (job["state"], job["served"]) == ("succeeded", False), job
    assert "kernels held out" in job["reason"] and "over 300 %" in job["reason"]
    assert predictor(service.client, "lasso")["answering"] == []
