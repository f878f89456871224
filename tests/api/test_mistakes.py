"""Typical mistakes of a first hour: each message names the field, what was found, and what to send instead."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

GPU = "h100-sxm5-80gb"
MODEL = {"kind": "model", "name": "llama-3-8b", "mode": "decode", "batch": 1, "sequence": 128, "dtype": "bf16"}
LINEAR = {"op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "bf16"}
SERVING = {
    "kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "input_tokens": 100, "output_tokens": 100,
    "load": {"concurrency": 8},
}  # fmt: skip


def without(workload: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    """The workload without a field, and with others."""
    return {key: value for key, value in workload.items() if key != name} | changes


def on(workload: Any, **changes: Any) -> dict[str, Any]:
    """A request about a workload."""
    return {"gpu": GPU, "workload": workload} | changes


def about(row: Any) -> dict[str, Any]:
    """A request about one operator."""
    return on({"kind": "operators", "operators": [row]})


# A body, where it is wrong, and words of the message.
MISTAKES: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    (on(MODEL, gpu="rtx-4071"), "gpu", ("'rtx-4071'", "rtx-4070", "GET /gpus")),
    (on(MODEL, gpu=None, gpus=["h100-sxm5-80gb", "A10O"]), "gpus", ("'A10O'", "Did you mean")),
    ({"workload": MODEL}, "gpu", ("send either gpu", "gpus")),
    ({"gpu": GPU}, "workload", ("missing",)),
    (on(MODEL, coverage=80), "coverage", ("got 80", "send 0.8 for 80 %")),
    (on(MODEL, coverage="0.8"), "coverage", ('got text "0.8"', "leave out the quotes")),
    (on(MODEL, predictor="autoo"), "predictor", ("'autoo'", "did you mean auto?")),
    (on(MODEL, predictor="Tilewave"), "predictor", ("'Tilewave'", "did you mean tilewave?")),
    (on(MODEL, detial=True), "detial", ("did you mean detail?",)),
    (on({"kind": "modle", "name": "llama-3-8b"}), "workload.kind", ("'modle'", "did you mean model?")),
    (on({"kind": "operator", **LINEAR}), "workload.kind", ("'operator'", "did you mean operators")),
    (on(without(MODEL, "kind")), "workload.kind", ("missing", "model")),
    (on(MODEL | {"name": "lama-3-8b"}), "workload.name", ("'lama-3-8b'", "llama-3-8b")),
    (
        on(MODEL | {"name": "meta-llama/Llama-3.1-406B-Instruct"}),
        "workload.name",
        ("meta-llama/Llama-3.1-406B-Instruct", "llama-3.1-405b", "config.json"),
    ),
    (on(MODEL | {"name": "openai/gpt-oss-40b"}), "workload.name", ("closest are gpt-oss-20b, gpt-oss-120b;",)),
    (on(MODEL | {"name": "stabilityai/stable-diffusion-2-1"}), "workload.name", ("stable-diffusion-",)),
    (on(MODEL | {"name": "resnet-50"}), "workload.name", ("'resnet-50'", "resnet50")),
    (on(MODEL | {"mode": "generate"}), "workload.mode", ("'generate'", "decode, inference, prefill, training")),
    (on(MODEL | {"mode": "train"}), "workload.mode", ("'train'", "did you mean training?")),
    (on(without(MODEL, "sequence")), "workload.sequence", ("missing",)),
    (on(without(MODEL, "sequence", seq_len=128)), "workload.seq_len", ("send sequence",)),
    (on(without(MODEL, "batch", batch_size=1)), "workload.batch_size", ("send batch",)),
    (on(without(MODEL, "batch", bacth=1)), "workload.bacth", ("did you mean batch?",)),
    (on(MODEL | {"sequence": "128"}), "workload.sequence", ('got text "128"', "leave out the quotes")),
    (on(MODEL | {"batch": 0}), "workload.batch", ("got 0",)),
    (on(MODEL | {"batch": 1.5}), "workload.batch", ("whole number", "got 1.5")),
    (on(MODEL | {"dtype": "bf61"}), "workload.dtype", ("'bf61'", "did you mean bf16?")),
    (on(MODEL | {"parallelism": {"tp": 8}}), "workload.parallelism.tp", ("send parallelism.tensor",)),
    (on(MODEL | {"parallelism": {"tensr": 8}}), "workload.parallelism.tensr", ("did you mean tensor?",)),
    (on(MODEL | {"parallelism": 8}), "workload.parallelism", ("expected an object, got a whole number 8",)),
    (on({"kind": "operators", "operators": LINEAR}), "workload.operators", ("expected a list, got an object",)),
    (about(LINEAR | {"op": "linaer"}), "workload.operators.0.op", ("'linaer'", "did you mean linear?")),
    (about(LINEAR | {"op": "gemm"}), "workload.operators.0.op", ("'gemm'", "send linear")),
    (about(LINEAR | {"op": "attention"}), "workload.operators.0.op", ("'attention'", "attention_prefill")),
    (about(without(LINEAR, "k", kk=64)), "workload.operators.0.kk", ("did you mean k?",)),
    (about(LINEAR | {"m": -64}), "workload.operators.0.m", (">= 1", "got -64")),
    (about(LINEAR | {"m": [64]}), "workload.operators.0.m", ("got a list",)),
    (about(LINEAR | {"dtype": "fp61"}), "workload.operators.0.dtype", ("'fp61'", "did you mean fp64 or fp16")),
    (about(LINEAR | {"phase": "forwards"}), "workload.operators.0.phase", ("'forwards'", "did you mean forward?")),
    (on(SERVING | {"load": {"concurency": 8}}), "workload.load.concurency", ("did you mean concurrency",)),
    (on(without(SERVING, "input_tokens", isl=100)), "workload.isl", ("send",)),
    (on(SERVING | {"load": {"qps": 4}}), "workload.load.qps", ("send load.rate_per_s",)),
    (on(SERVING | {"load": {"requests_per_second": 4}}), "workload.load.requests_per_second", ("load.rate_per_s",)),
    (on(without(SERVING, "load", rps=4)), "workload.rps", ("send load.rate_per_s",)),
    (on(SERVING | {"software": "vlm"}), "workload.software", ("'vlm'", "vllm")),
]


@pytest.mark.parametrize(("body", "place", "words"), MISTAKES, ids=[f"{k}-{one[1]}" for k, one in enumerate(MISTAKES)])
def test_each_mistake_gets_its_mend(
    client: TestClient, body: dict[str, Any], place: str, words: tuple[str, ...]
) -> None:
    answer = client.post("/predict", json=body)
    assert answer.status_code in {404, 422}, answer.text
    told = {".".join(map(str, error["loc"])): error["msg"] for error in answer.json()["errors"]}
    place_told = next((loc for loc in told if loc.startswith(place)), None)
    assert place_told is not None, told
    assert all(word in told[place_told] for word in words), told


def test_wrong_prices_are_named_by_their_key(client: TestClient) -> None:
    for price, words in (("3", "leave out the quotes"), (None, "got null"), (-3, "got -3")):
        prices = {"nvidia-l4": 1.0, "h100-sxm5-80gb": price}
        answer = client.post("/compare", json={"workload": MODEL, "gpus": [GPU], "prices": prices})
        (error,) = answer.json()["errors"]
        assert error["loc"] == ["prices", "h100-sxm5-80gb"] and words in error["msg"]


@pytest.mark.parametrize(("field", "value", "words"), [("flops", 2.1, "not GFLOP"), ("bytes", 12.0, "not MB or GB")])
def test_counts_in_another_unit_are_doubted(
    client: TestClient, kernel: dict[str, Any], field: str, value: float, words: str
) -> None:
    plain = {name: part for name, part in kernel.items() if name != "measured"}
    for workload, is_doubted in ((plain, False), (plain | {field: value}, True)):
        answer = client.post("/predict", json={"gpu": GPU, "workload": workload}).raise_for_status().json()
        warnings = answer["predictions"][0]["warnings"]
        assert any(words in warning for warning in warnings) is is_doubted, warnings


def test_an_unknown_address_is_a_page_for_browsers(client: TestClient) -> None:
    shown = client.get("/compar", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert shown.status_code == 404 and "No such page" in shown.text and 'href="/scaling"' in shown.text
    assert "&lt;script&gt;" in client.get("/%3Cscript%3E", headers={"accept": "text/html"}).text
    told = client.get("/compar")
    assert told.status_code == 404 and told.json()["title"] == "Not Found"
