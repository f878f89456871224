"""`gpucast predict FILE` takes what people have: a request, a workload, a config.json, a traced graph, ONNX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.wire.graph_form import GRAPH_EXAMPLE
from tests.api.test_cli_predict import gpucast
from tests.onnx_bytes import model, node, perceptron, tensor

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


def test_free_dimensions_of_a_file_are_asked_for_as_options(settings: Settings, tmp_path: Path) -> None:
    """All at once, before a window of one pixel does not fit; batch and sequence have options of their own."""
    convolution = node("Conv", ["x", "w"], ["y"], kernel_shape=[7, 7])
    file = tmp_path / "network.onnx"
    file.write_bytes(model([convolution], {"x": ["batch", 3, "height", "width"]}, [tensor("w", [8, 3, 7, 7])]))
    asked = gpucast(settings, str(file), "--gpu", GPU)
    assert asked.returncode == 1
    assert asked.stderr.strip().endswith(
        "no size of the dimensions height, width: add --set dims.height=SIZE --set dims.width=SIZE"
    )
    sizes = ("--set", "dims.height=224", "--set", "dims.width=224")
    assert latency_ms(settings, str(file), *sizes, "--batch", "2") > 0
    wrong = gpucast(settings, str(file), "--gpu", GPU, *sizes[:2], "--set", "dims.width=wide")
    assert wrong.returncode == 1 and "dims: send NAME=SIZE" in wrong.stderr and "'width=wide'" in wrong.stderr


def test_files_of_another_kind_are_named(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some words")
    (tmp_path / "cut.json").write_text('{"kind": "model", ')
    for name, words in (("notes.txt", "not an ONNX model"), ("cut.json", "not valid JSON")):
        done = gpucast(settings, str(tmp_path / name), "--gpu", GPU)
        assert done.returncode == 1 and f"{name}: " in done.stderr and words in done.stderr, done.stderr


def test_nothing_to_predict_shows_examples(settings: Settings, tmp_path: Path) -> None:
    told = gpucast(settings)
    assert told.returncode == 1
    assert "Nothing says what to predict. For example:" in told.stderr and "--model llama-3-8b" in told.stderr
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    twice = gpucast(settings, str(config), "--model", "gpt2")
    assert twice.returncode == 1 and "two workloads" in twice.stderr
