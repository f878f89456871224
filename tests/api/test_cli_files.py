"""`gpucast predict FILE` takes what people have: a request, a workload, a config.json, a traced graph, ONNX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.wire.network_form import GRAPH_EXAMPLE
from tests.api.test_cli_predict import gpucast
from tests.onnx_bytes import perceptron

pytestmark = pytest.mark.slow

GPU = "nvidia-l4"
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000,
}  # fmt: skip
RUN = {"mode": "prefill", "batch": 2, "sequence": 64, "dtype": "bf16"}


def latency_ms(settings: Settings, *arguments: str) -> float:
    """What `gpucast predict` answers on one GPU."""
    done = gpucast(settings, *arguments, "--gpu", GPU, "--json")
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["predictions"][0]["latency_ms"])


def test_a_configuration_a_graph_and_onnx_are_found_by_their_content(
    client: TestClient, settings: Settings, tmp_path: Path
) -> None:
    config, graph, onnx = (tmp_path / name for name in ("config.json", "graph.json", "network.onnx"))
    config.write_text(json.dumps(CONFIG))
    graph.write_text(json.dumps(GRAPH_EXAMPLE))
    onnx.write_bytes(perceptron())
    stored = client.post("/graphs", content=perceptron(), headers={"content-type": "application/octet-stream"}).json()
    asked = {
        (str(config), "--mode", "prefill", "--batch", "2", "--sequence", "64", "--dtype", "bf16"): {
            "kind": "model", "config": CONFIG, **RUN,
        },
        (str(graph), "--batch", "4"): {"kind": "graph", "graph": GRAPH_EXAMPLE, "batch": 4},
        (str(onnx), "--batch", "4"): {"kind": "graph", "graph_id": stored["graph_id"], "batch": 4},
    }  # fmt: skip
    for arguments, workload in asked.items():
        answer = client.post("/predict", json={"gpu": GPU, "workload": workload})
        assert answer.status_code == 200, answer.text
        assert latency_ms(settings, *arguments) == pytest.approx(answer.json()["predictions"][0]["latency_ms"])


def test_nothing_to_predict_shows_examples(settings: Settings, tmp_path: Path) -> None:
    told = gpucast(settings)
    assert told.returncode == 1
    assert "Nothing says what to predict. For example:" in told.stderr and "--model llama-3-8b" in told.stderr
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    twice = gpucast(settings, str(config), "--model", "gpt2")
    assert twice.returncode == 1 and "two workloads" in twice.stderr
