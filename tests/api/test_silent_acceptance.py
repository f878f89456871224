"""What a request says and nothing would follow from is refused, with the field and what to do."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

Body = dict[str, Any]
GPU = "h100-sxm5-80gb"


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
