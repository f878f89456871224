"""The latency predictor of llm-d's inference gateway, below a saved prediction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.wire.llm_d_form import STATE_EXAMPLE

WORKLOAD = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "input_tokens": 2048,
    "output_tokens": 256,
    "load": {"concurrency": 16},
}
STATE = STATE_EXAMPLE | {"num_request_running": 15, "kv_cache_percentage": 0.05}


def saved(client: TestClient, **body: Any) -> int:
    answer = client.post("/predict", json={"gpu": "h100-sxm5-80gb", "workload": WORKLOAD, "save": True} | body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


@pytest.fixture(scope="module")
def prediction(client: TestClient) -> int:
    return saved(client)


def ask(client: TestClient, prediction: int, path: str, body: Any) -> Any:
    answer = client.post(f"/llm-d/{prediction}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_answer_has_what_the_gateway_reads(client: TestClient, prediction: int) -> None:
    """PredictionResponse of the gateway's client, whose bounds were once intervals of two numbers."""
    found = ask(client, prediction, "predict", STATE | {"pod_type": "decode", "decode_tokens_in_flight": 3})
    assert set(found) == {
        *("ttft_ms", "tpot_ms", "ttft_uncertainty", "tpot_uncertainty", "predicted_at", "model_type"),
        *("ttft_prediction_bounds", "tpot_prediction_bounds", "objective_type", "quantile", "last_model_load"),
    }
    for name in ("ttft", "tpot"):
        low, high = found[f"{name}_prediction_bounds"]
        assert 0 < low < found[f"{name}_ms"] < high and 0 < found[f"{name}_uncertainty"] < high - low
    assert datetime.fromisoformat(found["predicted_at"]).tzinfo is not None
    assert found["model_type"] in ("xgboost", "lightgbm")  # else the gateway does not ask


def test_a_steady_state_has_the_times_of_the_load(client: TestClient, prediction: int) -> None:
    workload = WORKLOAD | {"input_tokens": 1024, "length_spread": 0.0, "method": "closed_form"}
    body = {"gpu": "h100-sxm5-80gb", "workload": workload}
    steady = client.post("/predict", json=body).json()["predictions"][0]["serving"]
    found = ask(client, prediction, "predict", STATE | {"kv_cache_percentage": 0.0})
    assert found["tpot_ms"] == pytest.approx(steady["tpot_ms"]["mean"], rel=0.15)


def test_many_states_at_once(client: TestClient, prediction: int) -> None:
    states = [STATE | {"num_request_waiting": waiting} for waiting in (0, 2, 8)]
    for path in ("predict/bulk", "predict/bulk/strict"):
        found = ask(client, prediction, path, {"requests": states})
        times = [one["ttft_ms"] for one in found["predictions"]]
        assert times == sorted(times) and times[0] < times[2] and found["errors"] == []
        counts = [found[f"{name}"] for name in ("total_requests", "successful_predictions", "failed_predictions")]
        assert counts == [3, 3, 0] and found["processing_time_ms"] >= 0
    single = ask(client, prediction, "predict", states[1])
    assert single["ttft_ms"] == pytest.approx(found["predictions"][1]["ttft_ms"])


def test_the_gateway_is_told_to_ask_over_http(client: TestClient, prediction: int) -> None:
    found = client.get(f"/llm-d/{prediction}/status").json()
    assert found["is_ready"] and found["model_type"] == "xgboost" and found["models_exist"]["ttft_model"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv_cache_percentage": 30}, "kv_cache_percentage"),
        ({"num_request_running": -1}, "num_request_running"),
        ({"input_token_length": "long"}, "input_token_length"),
        ({"prefix_cache_score": None}, "prefix_cache_score"),
    ],
)
def test_wrong_states_are_named(client: TestClient, prediction: int, change: dict[str, Any], field: str) -> None:
    answer = client.post(f"/llm-d/{prediction}/predict", json=STATE | change)
    assert answer.status_code == 422 and answer.json()["errors"][0]["loc"] == [field], answer.text
    answer = client.post(f"/llm-d/{prediction}/predict/bulk/strict", json={"requests": [STATE, STATE | change]})
    assert answer.status_code == 422 and answer.json()["errors"][0]["loc"] == ["requests", 1, field]


def test_predictions_that_are_no_deployment_are_refused(client: TestClient) -> None:
    linear = {"kind": "operators", "operators": [{"op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "bf16"}]}
    big = WORKLOAD | {"name": "llama-3.1-70b"}
    pool = WORKLOAD | {"prefill_pool": {"replicas": 1}}
    for body, words in (
        ({"workload": linear}, "not of a served model"),
        ({"gpu": None, "gpus": ["nvidia-l4", "h100-sxm5-80gb"]}, "one gpu"),
        ({"gpu": "nvidia-l4", "workload": big}, "not served on nvidia-l4"),
        ({"workload": pool}, "prefill_pool"),
    ):
        answer = client.post(f"/llm-d/{saved(client, **body)}/predict", json=STATE)
        assert answer.status_code == 422 and words in answer.json()["detail"], answer.text
    assert client.post("/llm-d/999999/predict", json=STATE).status_code == 404
