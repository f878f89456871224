"""Measured loads on served models: stored, listed, and used at once for their deployment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.bands.band import Band
from app.bands.error_model import error_models
from tests.api.test_mixed_measurements import CSV, PARQUET, parquet, send, text

Body = dict[str, Any]
GPU = "h100-sxm5-80gb"
SERVED: Body = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "input_tokens": 1024,
    "output_tokens": 256,
    "load": {"concurrency": 16},
}
ROW: Body = {
    "gpu": GPU,
    "software": "vllm-0.19.0",
    "workload": SERVED,
    "latency_ms": 3500.0,
    "serving": {"ttft_ms": 120.0, "tpot_ms": 14.0},
    "source": "our benchmark",
}


def predicted(client: TestClient, **change: Any) -> Body:
    body = {"gpu": GPU, "workload": SERVED | {"software": "vllm-0.19.0"} | change}
    answer = client.post("/predict", json=body, headers={"cache-control": "no-cache"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def test_a_measured_load_answers_itself_and_shifts_others(client: TestClient) -> None:
    others = {"load": {"concurrency": 32}}
    before, other_before, elsewhere = predicted(client), predicted(client, **others), predicted(client, dtype="fp8")
    report = client.post("/measurements", json=[ROW])
    assert report.status_code == 200, report.text
    assert report.json()["inserted"] == 1
    assert client.post("/measurements", json=[ROW]).json()["inserted"] == 0
    after, other_after = predicted(client), predicted(client, **others)
    assert after["support"] == "measured"
    assert after["latency_ms"] == pytest.approx(3500.0)
    assert after["serving"]["ttft_ms"]["mean"] == pytest.approx(120.0)
    assert after["serving"]["tpot_ms"]["mean"] == pytest.approx(14.0)
    ratio = after["serving"]["tpot_ms"]["mean"] / before["serving"]["tpot_ms"]["mean"]
    shift = other_after["serving"]["tpot_ms"]["mean"] / other_before["serving"]["tpot_ms"]["mean"]
    assert 1.0 < shift < ratio
    first = ROW["serving"]["ttft_ms"] / before["serving"]["ttft_ms"]["mean"]
    other_first = other_after["serving"]["ttft_ms"]["mean"] / other_before["serving"]["ttft_ms"]["mean"]
    assert 0.5 * np.log(first) < np.log(other_first) < np.log(first)
    later = [
        (one["latency_ms"] - one["serving"]["ttft_ms"]["mean"]) / one["serving"]["tpot_ms"]["mean"]
        for one in (other_before, other_after)
    ]
    assert later[0] == pytest.approx(later[1], rel=0.02), "whole requests follow both times"
    nearby = predicted(client, dtype="fp8")["serving"]["tpot_ms"]["mean"] / elsewhere["serving"]["tpot_ms"]["mean"]
    assert 1.0 < nearby < shift, "another deployment on the GPU learns by what it shares"
    alias = {"name": "meta-llama/Meta-Llama-3-8B", "dtype": None, "parallelism": {"tensor": 1, "expert": 1}}
    assert predicted(client, **alias)["support"] == "measured"
    (listed,) = client.get("/measurements", params={"kind": "serving"}).json()["items"]
    assert listed["serving"] == {"ttft_ms": 120.0, "tpot_ms": 14.0}
    assert "phases_ms" not in listed or listed["phases_ms"] is None
    gone = client.delete("/measurements", params={"kind": "serving"})
    assert gone.status_code == 200, gone.text
    assert predicted(client) == before


def test_a_load_measured_with_another_version_is_less_certain(client: TestClient) -> None:
    other = ROW | {"software": "vllm-0.17.0", "latency_ms": 4000.0, "serving": {"ttft_ms": 140.0, "tpot_ms": 16.0}}
    assert client.post("/measurements", json=[other]).json()["inserted"] == 1
    with_other = predicted(client)["serving"]["tpot_ms"]
    apart = error_models()["tpot"].between_versions(Band.symmetric(0.06))
    assert apart.above > 0.1
    assert with_other["mean"] == pytest.approx(16.0)
    assert with_other["interval"]["high"] == pytest.approx(16.0 * np.exp(apart.above), rel=1e-3)
    assert client.post("/measurements", json=[ROW]).json()["inserted"] == 1
    same = predicted(client)["serving"]["tpot_ms"]
    assert same["mean"] == pytest.approx(14.0)
    assert same["interval"]["high"] == pytest.approx(14.0 * np.exp(0.06), rel=1e-3)
    assert predicted(client, software="vllm")["serving"]["tpot_ms"]["mean"] == pytest.approx(15.0)
    assert client.delete("/measurements", params={"kind": "serving"}).status_code == 200


def test_a_measured_load_is_not_saturated(client: TestClient) -> None:
    load = {"load": {"rate_per_s": 1000.0}}
    assert predicted(client, **load)["serving"]["saturated"]
    rate = ROW | {"workload": SERVED | load}
    assert client.post("/measurements", json=[rate]).json()["inserted"] == 1
    served = predicted(client, **load)
    assert (served["support"], served["latency_ms"]) == ("measured", pytest.approx(3500.0))
    assert not served["serving"]["saturated"]
    assert served["serving"]["highest_rate_per_s"] >= served["serving"]["requests_per_s"] == pytest.approx(1000.0)
    assert client.delete("/measurements", params={"kind": "serving"}).status_code == 200


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"serving": None}, ["serving"]),
        ({"serving": {"ttft_ms": 1.0}}, ["serving", "tpot_ms"]),
        ({"latency_ms": 10.0}, ["latency_ms"]),
        ({"workload": SERVED | {"software": "sglang"}}, ["workload", "software"]),
        ({"workload": SERVED | {"load": {}}}, ["workload", "load"]),
        ({"workload": SERVED | {"parallelism": {"tensor": 3}}}, ["workload", "parallelism", "tensor"]),
        ({"software": "pytorch-2.1"}, ["workload", "software"]),
        ({"workload": {"kind": "model", "name": "gpt2", "sequence": 64}}, ["serving"]),
    ],
)
def test_bad_rows_name_their_field(client: TestClient, change: Body, loc: list[str]) -> None:
    answer = client.post("/measurements", json=[ROW | change])
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["loc"] == [0, *loc]


@pytest.mark.parametrize(("write", "media"), [(text, CSV), (parquet, PARQUET)])
def test_files_hold_the_same_rows_as_json(client: TestClient, write: Callable[[list[Body]], bytes], media: str) -> None:
    flat = {name: value for name, value in ROW.items() if name not in ("workload", "serving")}
    flat |= {name: value for name, value in SERVED.items() if name != "load"}
    flat |= {"load.concurrency": 16, "serving.ttft_ms": 120.0, "serving.tpot_ms": 14.0}
    split = {"parallelism": json.dumps({"tensor": 2}), "kv_dtype": "fp8", "length_spread": 0.0, "latency_ms": 3600.0}
    report = send(client, write([flat, flat | split]), media)
    assert report.status_code == 200, report.text
    same = ROW | {"workload": SERVED | {"parallelism": {"tensor": 2}, "kv_dtype": "fp8", "length_spread": 0.0}}
    again = client.post("/measurements", json=[ROW, same | {"latency_ms": 3600.0}])
    assert again.json()["inserted"] == 0, again.text
    listed = client.get("/measurements", params={"kind": "serving"}).json()["items"]
    assert sorted(row["latency_ms"] for row in listed) == [3500.0, 3600.0]
    wrong = send(client, write([flat | {"load.rate_per_s": 2.0}]), media)
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["loc"] == [0, "workload", "load"]
    other = send(client, write([flat | {"kind": "kernel"}]), media)
    assert other.status_code == 422
    assert client.delete("/measurements", params={"kind": "serving"}).status_code == 200
