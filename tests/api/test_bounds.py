"""One request holds neither others nor the process: limits on work, on the real service over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.service import Service

pytestmark = pytest.mark.slow

# Generous, for busy machines: `python -m benchmarks.hostile` has the figures.
STALL_S = 0.25
NETWORK = {"kind": "model", "name": "densenet201", "mode": "training", "batch": 4096, "dtype": "fp32"}


def linears(n: int, **more: Any) -> dict[str, Any]:
    rows = [{"op": "linear", "m": 1 + k, "n": 3840, "k": 1280, "dtype": "fp16"} for k in range(n)]
    return {"workload": {"kind": "operators", "operators": rows}, **more}


@contextmanager
def small_requests(service: Service) -> Iterator[list[float]]:
    """Seconds of each of many small requests, one after another, sent meanwhile."""
    over, seconds = threading.Event(), list[float]()

    def send() -> None:
        with httpx.Client(base_url=service.client.base_url, timeout=60) as client:
            while not over.is_set():
                began = time.perf_counter()
                client.post("/predict", json=PREDICT_EXAMPLE).raise_for_status()
                seconds.append(time.perf_counter() - began)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()


def uncatalogued(service: Service, number: int) -> dict[str, Any]:
    spec: dict[str, Any] = service.client.get("/gpus/titan-v").raise_for_status().json()
    return {name: value for name, value in spec.items() if name not in ("id", "aliases", "provenance")} | {
        "name": f"unknown {number}"
    }


def test_long_work_leaves_other_requests_alone(service: Service) -> None:
    rows = [{"gpu": uncatalogued(service, k), "latency_ms": 1 + k} for k in range(400)]
    kernel = PREDICT_EXAMPLE["workload"] | {"measured": rows}
    hostile = [{"gpu": "titan-v", "workload": kernel}, linears(2000, gpu="nvidia-l4", detail=True)]
    with small_requests(service) as seconds:
        for body in hostile:
            assert service.client.post("/predict", json=body).status_code == 200
    assert max(seconds[1:]) < STALL_S


def test_detail_is_limited_in_rows_times_gpus(client: TestClient) -> None:
    told = client.post("/predict", json=linears(10_000, gpus="all", detail=True))
    assert (told.status_code, told.json()["status"]) == (413, 413)
    assert "20,000 rows with detail" in told.json()["detail"]
    told = client.post("/predict", json={"gpus": "all", "workload": NETWORK, "detail": True})
    assert told.status_code == 413, told.text


def left(service: Service) -> float:
    """Requests whose callers left, by the service's metrics."""
    lines = service.client.get("/metrics").text.splitlines()
    counts = [
        line.rpartition(" ")[2] for line in lines if line.startswith("gpucast_requests_total") and '"499"' in line
    ]
    return sum(map(float, counts))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", linears(1999, gpus=["nvidia-l4"] * 10, detail=True)),
        ("/compare", {"workload": NETWORK, "search_parallelism": True, "max_devices": 64}),
    ],
    ids=["predict", "compare"],
)
def test_the_work_of_a_caller_who_leaves_ends(service: Service, path: str, body: dict[str, Any]) -> None:
    before, began = left(service), time.monotonic()
    with pytest.raises(httpx.ReadTimeout):
        service.client.post(path, json=body, timeout=0.3)
    while left(service) == before:
        assert time.monotonic() - began < 10, "its work goes on"
        time.sleep(0.05)
    with pytest.raises(httpx.ReadTimeout):
        service.client.post(path, json=body, timeout=time.monotonic() - began)


LARGE = 4 * 2**20 + 1


@pytest.mark.parametrize(
    ("path", "size"), [("/predict", LARGE), ("/compare", LARGE), ("/retrain", 65_537), ("/keys", 65_537)]
)
def test_bodies_are_limited_by_route(client: TestClient, path: str, size: int) -> None:
    for content in (b" " * size, (b" " * 1000 for _ in range(1 + size // 1000))):
        told = client.post(path, content=content)
        assert told.status_code == 413, told.text
        assert f"over {size - 1:,} bytes" in told.json()["detail"]


def test_uploads_may_be_larger(client: TestClient) -> None:
    row = json.dumps({"op": "linear", "m": 1, "n": 1, "k": 1, "dtype": "fp16"})[:-1].encode()
    told = client.post("/predict/batch?gpu=nvidia-l4", content=row + b" " * LARGE + b"}")
    assert told.status_code == 200
