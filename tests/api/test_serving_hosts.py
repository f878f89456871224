"""Times of serving stacks' hosts, retrained from stored loads on the real queue, by a real worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app
from app.stacks.release import host_times
from tests.service import Service

pytestmark = pytest.mark.slow

Body = dict[str, Any]
# A front end that is much slower than any that ships, and steps that wait for their host.
FRONT_MS, STEP_MS = 90.0, 1.5
GPUS = ("h100-sxm5-80gb", "a100-sxm-80gb", "l40s", "h200-sxm-141gb", "nvidia-l4")
LOADS = ({"concurrency": 1}, {"concurrency": 8})
WORKLOAD: Body = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "software": "vllm",
    "input_tokens": 512,
    "output_tokens": 64,
}


def served(client: httpx.Client | TestClient, gpu: str, **change: Any) -> Body:
    body = {"gpu": gpu, "workload": WORKLOAD | {"load": LOADS[0]} | change}
    answer = client.post("/predict", json=body, headers={"cache-control": "no-cache"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0]["serving"])


def rows(client: httpx.Client, gpus: tuple[str, ...], front_ms: float, step_ms: float, **more: Any) -> list[Body]:
    """Loads that take as long as predicted with shipped times of the host, and these more."""
    found = []
    for gpu in gpus:
        for load in LOADS:
            answer = served(client, gpu, load=load, **more)
            ttft, tpot = answer["ttft_ms"]["mean"] + front_ms, answer["tpot_ms"]["mean"] + step_ms
            workload = {name: value for name, value in WORKLOAD.items() if name != "software"} | {"load": load}
            found.append(
                {
                    "gpu": gpu,
                    "software": more.get("software", "vllm"),
                    "workload": workload,
                    "latency_ms": ttft + 57.0 * tpot,
                    "serving": {"ttft_ms": ttft, "tpot_ms": tpot},
                    "source": "test",
                }
            )
    return found


def retrained(service: Service) -> Body:
    answer = service.client.post("/retrain", json={"predictor": "serving-hosts"})
    assert answer.status_code == 202, answer.text
    return service.wait_for_job(answer.json()["job_id"])


def hosts(client: httpx.Client | TestClient) -> dict[str, Body]:
    listed = client.get("/predictors").raise_for_status().json()["serving_hosts"]
    assert listed["refused"] == []
    return {one["stack"]: one for one in listed["stacks"]}


@pytest.fixture
def replica(settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """A second process's application, with a folder of its own."""
    with TestClient(create_app(replace(settings, data_dir=tmp_path / "elsewhere"))) as running:
        yield running


def test_too_few_deployments_are_refused(server: httpx.Client) -> None:
    measured = rows(server, GPUS[:4], FRONT_MS, STEP_MS)
    server.post("/measurements", json=measured).raise_for_status()
    refused = server.post("/retrain", json={"predictor": "serving-hosts"})
    assert refused.status_code == 409
    assert "at least 5 measured deployments" in refused.json()["detail"]
    of_one = server.post("/retrain", json={"predictor": "serving-hosts", "gpu": "titan-v"})
    assert of_one.status_code == 422
    assert of_one.json()["errors"][0]["loc"] == ["gpu"]
    assert server.post("/predictors/serving-hosts/rollback").status_code == 409
    server.delete("/measurements", params={"kind": "serving"}).raise_for_status()


def test_slow_hosts_are_learned_served_everywhere_and_rolled_back(service: Service, replica: TestClient) -> None:
    server = service.client
    shipped = hosts(server)
    assert shipped["vllm"]["request_s"] == host_times()["vllm"].request_s
    before = served(server, "b200-sxm-180gb")
    server.post("/measurements", json=rows(server, GPUS, FRONT_MS, STEP_MS)).raise_for_status()
    job = retrained(service)
    assert (job["state"], job["version"], job["served"]) == ("succeeded", "1", True), job
    assert job["trained_on"]["deployments"] == 5
    errors = {cell["family"]: cell for cell in job["validation"]}
    assert set(errors) == {"vllm TPOT", "vllm TTFT"}
    assert errors["vllm TTFT"]["n"] == 10
    assert all(cell["split"] == "deployment_held_out" for cell in job["validation"])
    after = served(server, "b200-sxm-180gb")
    assert after["settings"]["host_version"] == "1"
    assert after["ttft_ms"]["mean"] - before["ttft_ms"]["mean"] == pytest.approx(FRONT_MS, rel=0.3)
    assert after["tpot_ms"]["mean"] - before["tpot_ms"]["mean"] == pytest.approx(STEP_MS, rel=0.3)
    listed = hosts(server)
    assert (listed["vllm"]["version"], listed["sglang"]) == ("1", shipped["sglang"])
    # Another process has what this one's worker fitted, from the database.
    assert hosts(replica) == listed
    assert served(replica, "b200-sxm-180gb") == after
    back = server.post("/predictors/serving-hosts/rollback").raise_for_status().json()
    assert (back["version"], back["state"]) == (shipped["vllm"]["version"], "shipped")
    assert hosts(server) == shipped
    assert served(server, "b200-sxm-180gb") == before
    server.delete("/measurements", params={"kind": "serving"}).raise_for_status()


def test_times_that_are_no_better_are_held_back(service: Service) -> None:
    server = service.client
    shipped = hosts(server)
    server.post("/measurements", json=rows(server, GPUS, 0.0, 0.0, software="sglang")).raise_for_status()
    job = retrained(service)
    assert (job["state"], job["served"]) == ("succeeded", False), job
    assert "those that ship" in job["reason"]
    assert hosts(server) == shipped
    server.delete("/measurements", params={"kind": "serving"}).raise_for_status()
