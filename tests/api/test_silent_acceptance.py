"""What a request says and nothing would follow from is refused, with the field and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

Body = dict[str, Any]
GPU = "h100-sxm5-80gb"
LLAMA: Body = {"kind": "model", "name": "llama-3-8b", "dtype": "bf16", "sequence": 128}


def graph(batch: int | str) -> Body:
    node = {"name": "act", "op": "relu", "inputs": ["x"], "outputs": [{"shape": [batch, 512]}]}
    return {"kind": "graph", "graph": {"inputs": [{"name": "x", "shape": [batch, 512]}], "nodes": [node]}, "batch": 8}


def refused(client: TestClient, workload: Body) -> Body:
    answer = client.post("/predict", json={"gpu": GPU, "workload": workload})
    assert answer.status_code == 422, answer.text
    return dict(answer.json()["errors"][0])


def test_a_batch_of_a_graph_that_has_none(client: TestClient) -> None:
    error = refused(client, graph(4))
    assert error["loc"] == ["workload", "batch"]
    assert "leave batch out" in error["msg"]
    for fine in (graph("batch"), graph(4) | {"batch": 1}):
        answer = client.post("/predict", json={"gpu": GPU, "workload": fine})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("mode", ["inference", "prefill", "decode"])
def test_an_optimizer_outside_of_training(client: TestClient, mode: str) -> None:
    assert refused(client, LLAMA | {"mode": mode, "optimizer": "sgd"})["loc"] == ["workload", "optimizer"]


def test_more_stages_than_layers(client: TestClient) -> None:
    split = {"parallelism": {"pipeline": 33}}
    error = refused(client, LLAMA | {"mode": "training"} | split)
    assert error["loc"] == ["workload", "parallelism", "pipeline"]
    assert "32 stages at most" in error["msg"]
