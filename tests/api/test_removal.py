"""Deletion of measurements: rows deleted and kept, and predictions without them at once."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.services.gpus import GPU_EXAMPLE
from tests.kernels_data import SAXPY
from tests.service import wait_corrected

LAB = GPU_EXAMPLE | {"id": "lab-gpu", "name": "Lab GPU", "aliases": []}
MODEL = {"kind": "model", "name": "resnet18", "mode": "inference", "batch": 8, "image_size": 224, "dtype": "fp32"}


def linear(m: int) -> dict[str, Any]:
    return {"op": "linear", "m": m, "n": 4096, "k": 1024, "dtype": "fp32"}


def row(workload: dict[str, Any], latency_ms: float, **about: str) -> dict[str, Any]:
    told = {"gpu": "lab-gpu", "software": "pytorch-2.1", "source": "wrong unit"} | about
    return told | {"latency_ms": latency_ms, "workload": workload}


def operators(*sizes: int) -> list[dict[str, Any]]:
    return [row({"kind": "operator"} | linear(m), 0.5 * m) for m in sizes]


@pytest.fixture
def lab(client: TestClient) -> TestClient:
    """With one GPU more, and no measurements."""
    client.delete("/measurements", params={"gpu": "Lab GPU"})
    client.delete("/measurements", params={"gpu": "titan-v"})
    client.post("/gpus", json=LAB)
    return client


def send(client: TestClient, rows: list[dict[str, Any]]) -> None:
    assert client.post("/measurements", json=rows).raise_for_status().json()["inserted"] == len(rows)


def times(client: TestClient) -> list[float]:
    """Of an operator, one that may be corrected, a kernel by another's time and a network, milliseconds."""
    asked = [{"kind": "operators", "operators": [linear(m)]} for m in (1024, 1500)] + [SAXPY, MODEL]
    wait_corrected(client)
    answers = [client.post("/predict", json={"gpu": "lab-gpu", "workload": workload}) for workload in asked]
    return [answer.raise_for_status().json()["predictions"][0]["latency_ms"] for answer in answers]


def test_predictions_ignore_deleted_measurements(lab: TestClient) -> None:
    before = times(lab)
    rows = operators(256, 512, 1024, 2048, 4096, 8192)
    send(lab, [*rows, row(SAXPY, 777.0, gpu="titan-v"), row(MODEL, 888.0)])
    told = times(lab)
    assert (told[0], told[3]) == (pytest.approx(512.0), pytest.approx(888.0))
    assert all(now > 2 * then for now, then in zip(told, before, strict=True))
    assert lab.delete("/gpus/lab-gpu").status_code == 409

    tried = lab.delete("/measurements", params={"source": "wrong unit", "dry_run": True}).raise_for_status().json()
    removed = [
        {"kind": "kernel", "gpu": "titan-v", "rows": 1},
        {"kind": "model", "gpu": "lab-gpu", "rows": 1},
        {"kind": "operator", "gpu": "lab-gpu", "rows": 6},
    ]
    assert tried == {"rows": 8, "removed": removed, "dry_run": True}
    assert times(lab) == told

    gone = lab.delete("/measurements", params={"source": "wrong unit"}).raise_for_status().json()
    assert gone == {"rows": 8, "removed": removed, "dry_run": False}
    assert times(lab) == before
    assert lab.get("/measurements").json()["items"] == []
    assert lab.delete("/measurements", params={"source": "wrong unit"}).json()["rows"] == 0
    assert lab.delete("/gpus/lab-gpu").status_code == 204


def test_corrected_rows_replace_wrong_ones(lab: TestClient) -> None:
    send(lab, operators(1024))
    lab.delete("/measurements", params={"gpu": "lab-gpu"}).raise_for_status()
    send(lab, [row({"kind": "operator"} | linear(1024), 3.0)])
    assert times(lab)[0] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"gpu": "NVIDIA TITAN V"}, {1, 2, 3, 4, 5}),
        ({"kind": "operator"}, {4, 5, 6}),
        ({"kind": "kernel"}, {1, 2, 3, 4}),
        ({"name": "linear"}, {2, 4, 5, 6}),
        ({"name": "resnet18"}, {1, 2, 3, 5, 6}),
        ({"software": "cuda-12.4"}, {1, 2, 4, 6}),
        ({"source": "sound"}, {1, 3, 4, 5, 6}),
        ({"source": "wrong unit", "kind": "operator", "name": "linear"}, {2, 4, 5, 6}),
        ({"source": "sound", "kind": "model"}, {1, 2, 3, 4, 5, 6}),
    ],
)
def test_only_rows_that_match_every_filter_are_deleted(
    lab: TestClient, filters: dict[str, str], left: set[int]
) -> None:
    softmax = {"kind": "operator", "op": "softmax", "b": 8192, "h": 1024, "dtype": "fp32"}
    rows = [
        row({"kind": "operator"} | linear(1024), 1.0),
        row(softmax, 2.0, source="sound"),
        row({"kind": "operator"} | linear(2048), 3.0, software="cuda-12.4"),
        row(MODEL, 4.0),
        row(SAXPY, 5.0, software="cuda-12.4"),
        row(SAXPY, 6.0, gpu="titan-v"),
    ]
    send(lab, rows)
    told = lab.delete("/measurements", params=filters).raise_for_status().json()
    assert {item["latency_ms"] for item in lab.get("/measurements").json()["items"]} == left
    assert told["rows"] == 6 - len(left) == sum(one["rows"] for one in told["removed"])


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ([], 422),
        ([("dry_run", "true")], 422),
        ([("colour", "red")], 422),
        ([("source", "wrong unit"), ("limit", "1")], 422),
        ([("source", "wrong unit"), ("source", "sound")], 422),
        ([("kind", "zork")], 422),
        ([("source", "")], 422),
        ([("source", "wrong unit"), ("dry_run", "perhaps")], 422),
        ([("gpu", "lab-gpv")], 404),
    ],
)
def test_ambiguous_filters_delete_nothing(lab: TestClient, params: list[tuple[str, str]], status: int) -> None:
    send(lab, operators(1024))
    answer = lab.delete("/measurements", params=params)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(lab.get("/measurements").json()["items"]) == 1
