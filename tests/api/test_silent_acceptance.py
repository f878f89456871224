"""What a request says and nothing would follow from is refused or warned of, with the field and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

Body = dict[str, Any]
GPU = "h100-sxm5-80gb"
MODEL = {"kind": "model", "name": "llama-3-8b", "mode": "prefill", "batch": 1, "sequence": 512, "dtype": "bf16"}
SERVING = {
    "kind": "serving", "name": "llama-2-7b", "dtype": "bf16", "input_tokens": 3000, "output_tokens": 1000,
    "load": {"concurrency": 1},
}  # fmt: skip
TRAINING = MODEL | {"mode": "training"}
ROPE = {"factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 32768,
}  # fmt: skip
OWN = {"kind": "model", "config": LLAMA, "mode": "prefill", "batch": 1, "sequence": 100_000, "dtype": "bf16"}


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


def warned(client: TestClient, workload: Body) -> dict[str, str]:
    """Texts of the answer's warnings, by code."""
    answer = client.post("/predict", json={"gpu": GPU, "workload": workload})
    assert answer.status_code == 200, answer.text
    return {each["code"]: each["text"] for each in answer.json()["predictions"][0]["warning_codes"]}


@pytest.mark.parametrize(
    ("workload", "code", "words"),
    [
        (MODEL | {"sequence": 200_000}, "context_too_long", "200,000 tokens exceeds max_position_embeddings, 131,072"),
        (SERVING | {"input_tokens": 4000}, "context_too_long", "5,000 tokens exceeds max_position_embeddings, 4,096"),
        (OWN, "context_too_long", "32,768"),
        (MODEL | {"parallelism": {"tensor": 32}}, "machine_exceeded", f"usual ones with {GPU} have 8"),
        (SERVING | {"parallelism": {"tensor": 32}}, "machine_exceeded", "send parallelism.nodes"),
        (MODEL | {"optimizer": "adamw"}, "field_ignored", "optimizer is ignored in mode prefill"),
        (
            TRAINING | {"recompute": "selective", "software": "megatron"},
            "field_ignored",
            "recompute selective changes nothing",
        ),
    ],
)
def test_what_changes_nothing_or_cannot_be_is_warned_of(
    client: TestClient, workload: Body, code: str, words: str
) -> None:
    assert words in warned(client, workload)[code]


@pytest.mark.parametrize(
    "workload",
    [
        MODEL | {"sequence": 131_072},
        SERVING,
        OWN | {"config": LLAMA | {"rope_scaling": ROPE}},
        MODEL | {"parallelism": {"tensor": 32, "nodes": 4}},
        TRAINING | {"optimizer": "adamw"},
        TRAINING | {"recompute": "selective", "attention": "eager"},
    ],
)
def test_what_can_be_is_not_warned_of(client: TestClient, workload: Body) -> None:
    assert not {"context_too_long", "machine_exceeded", "field_ignored"} & set(warned(client, workload))


JOB = TRAINING | {"dataset_size": 100}
STAGED = {
    "a model": ("/predict", {"gpu": GPU, "workload": MODEL}),
    "a served model": ("/predict", {"gpu": GPU, "workload": SERVING}),
    "a comparison": ("/compare", {"gpus": [GPU], "workload": TRAINING}),
    "a plan of a job": ("/plan", {"gpus": [GPU], "workload": JOB, "deadline_s": 1e6, "max_devices": 64}),
    "a plan of a served model": ("/plan", {"gpus": [GPU], "workload": SERVING | {"load": {"rate_per_s": 0.1}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
def test_more_stages_than_layers(client: TestClient, name: str) -> None:
    route, body = STAGED[name]
    for stages, status in ((33, 422), (32, 200)):
        workload = body["workload"] | {"parallelism": {"pipeline": stages}}
        answer = client.post(route, json=body | {"workload": workload})
        assert answer.status_code == status, answer.text
        if status == 422:
            (error,) = answer.json()["errors"]
            assert error["loc"] == ["workload", "parallelism", "pipeline"]
            assert "of which the model has 32" in error["msg"]


def test_a_measured_time_in_another_unit_is_no_support(client: TestClient, kernel: Body) -> None:
    support = {}
    for ms in (0.5, 1e9):
        measured = [{"gpu": "rtx-4070", "latency_ms": ms}]
        answer = client.post("/predict", json={"gpu": "titan-v", "workload": kernel | {"measured": measured}}).json()
        (one,) = answer["predictions"]
        support[ms] = one["support"], {each["code"] for each in one["warning_codes"]}
    assert support[1e9][0] == "extrapolated" and "measured_implausible" in support[1e9][1]
    assert "measured_implausible" not in support[0.5][1]
