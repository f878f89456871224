"""The page of served models: its JSON, its curves and its limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

PLACE = (
    "/serving?name=llama-3-8b&dtype=bf16&tensor=1&software=vllm&input_tokens=512&output_tokens=128&gpu=a100-sxm4-80gb"
)
PRICED = f"{PLACE}&prices=a100-sxm4-80gb+2"


def view(client: TestClient, place: str) -> dict[str, Any]:
    answer = client.get(f"{place}&format=json")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_points_of_curves_are_predictions(client: TestClient) -> None:
    found = view(client, f"{PRICED}&load=concurrency&level=8")
    workload = {
        "kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "software": "vllm", "parallelism": {"tensor": 1},
        "input_tokens": 512, "output_tokens": 128,
    }  # fmt: skip
    (curves,) = found["curves"]
    for load, points in (("concurrency", curves["by_concurrency"]), ("rate_per_s", curves["by_rate"])):
        point = points[2]
        body = {"gpu": "a100-sxm4-80gb", "workload": workload | {"load": {load: point["load"]}}}
        served = client.post("/predict", json=body).json()["predictions"][0]["serving"]
        assert point["ttft_ms"] == served["ttft_ms"] and point["tpot_ms"] == served["tpot_ms"]
        assert point["tokens_per_s_per_gpu"] == served["output_tokens_per_s_per_gpu"]
        cost = 2 / 3600 / served["output_tokens_per_s"] * 1e6
        assert point["cost_per_million_tokens"] == pytest.approx(cost)
    assert 8 in [point["load"] for point in curves["by_concurrency"]]
    row = next(point for point in curves["by_concurrency"] if point["load"] == 8)
    assert row["ttft_ms"] == found["comparison"]["ranking"][0]["serving"]["ttft_ms"]


def test_the_best_rate_is_the_highest_that_keeps_the_limits(client: TestClient) -> None:
    (curves,) = view(client, f"{PRICED}&load=rate_per_s&level=2&ttft_ms=200&tpot_ms=30&percentile=90")["curves"]
    best = curves["best"]
    assert best["ttft_ms"]["p90"] <= 200 and best["tpot_ms"]["p90"] <= 30
    above = [point for point in curves["by_rate"] if point["load"] > best["load"]]
    assert above and not any(point["within_limits"] for point in above)
    assert [point["load"] for point in curves["by_rate"]] == sorted(point["load"] for point in curves["by_rate"])
    costs = [point["cost_per_million_tokens"] for point in curves["by_rate"]]
    assert costs == sorted(costs, reverse=True)


def test_wider_limits_bear_more(client: TestClient) -> None:
    rates = []
    for ttft in (100, 200, 1000):
        (curves,) = view(client, f"{PLACE}&load=rate_per_s&level=2&ttft_ms={ttft}")["curves"]
        rates.append(curves["best"]["load"] if curves["best"] else 0.0)
    assert rates == sorted(rates) and rates[0] < rates[-1]


def test_a_saturated_load_offers_replicas_that_bear_it(client: TestClient) -> None:
    place = f"{PLACE}&load=rate_per_s&level=200"
    row = view(client, place)["comparison"]["ranking"][0]
    assert row["serving"]["saturated"] and row["devices"] == 1
    link = re.search(r'href="(/serving\?[^"]*replicas=\d+[^"]*)"', client.get(place).text)
    assert link
    mended = view(client, link[1].replace("&amp;", "&"))["comparison"]["ranking"][0]
    assert not mended["serving"]["saturated"] and mended["devices"] > 1


def test_without_gpus_per_replica_the_split_is_chosen(client: TestClient) -> None:
    place = "/serving?name=llama-3.1-70b&dtype=fp8&load=rate_per_s&level=1&gpu=l40s"
    assert not view(client, f"{place}&tensor=1")["comparison"]["ranking"][0]["memory"]["fits"]
    found = view(client, place)
    row = found["plan"]["choices"][0]
    assert row["memory"]["fits"] and row["parallelism"]["tensor"] > 1
    assert found["comparison"] is None and found["curves"][0]["parallelism"] == row["parallelism"]
    with_flights = view(client, place.replace("rate_per_s", "concurrency"))  # closed loops are not planned
    assert with_flights["plan"] is None and with_flights["comparison"]["ranking"][0]["memory"]["fits"]


def test_curves_of_a_plan_have_its_settings(client: TestClient) -> None:
    """On one L4 each, fewer replicas are needed with another token budget than the stack's own."""
    place = (
        "/serving?name=llama-3-8b&dtype=bf16&input_tokens=4000&output_tokens=64&load=rate_per_s&level=16"
        "&ttft_ms=8000&max_devices=1&gpu=nvidia-l4"
    )
    found = view(client, place)
    settings = found["plan"]["choices"][0]["settings"]
    assert settings["max_batched_tokens"] is not None
    point = found["curves"][0]["by_rate"][0]
    workload = {
        "kind": "serving", "name": "llama-3-8b", "dtype": "bf16", "software": "vllm", "input_tokens": 4000,
        "output_tokens": 64, "parallelism": found["plan"]["choices"][0]["parallelism"],
        "load": {"rate_per_s": point["load"]}, "max_batched_tokens": settings["max_batched_tokens"],
        "max_sequences": settings["max_sequences"],
    }  # fmt: skip
    alone = client.post("/predict", json={"gpu": "nvidia-l4", "workload": workload}).json()["predictions"][0]["serving"]
    assert point["ttft_ms"] == alone["ttft_ms"]


def test_a_model_is_taken_over_from_other_pages(client: TestClient) -> None:
    shown = client.get("/serving?kind=model&name=llama-3-8b&mode=decode&batch=4&sequence=128&dtype=bf16&gpu=nvidia-l4")
    assert shown.status_code == 200 and "<h1>llama-3-8b" in shown.text
    kernel = client.get("/serving?kind=kernel&name=matmul_tiled&gpu=nvidia-l4")
    assert kernel.status_code == 200 and "matmul_tiled" not in kernel.text.partition('class="paper"')[0]


@pytest.mark.parametrize(("query", "field", "said"), [
    ("input_tokens=many", "input_tokens", "expected a number, got text"),
    ("ttft_ms=0&level=4", "ttft_ms", "over 0"),
    ("tpot_ms=fast&level=4", "tpot_ms", "fast"),
    ("percentile=42", "percentile", "one of 50, 90, 99"),
    ("name=resnet50", "name", "is a ConvNet"),
    ("level=-1", "level", "-1"),
    ("load=nothing", "level", "one of rate_per_s, users, concurrency"),
    ("software=pytorch-2.1", "software", "no serving stack"),
    ("tensor=3", "tensor", "must divide the 64"),
    ("tokens=3", "acceptance", "send one of acceptance"),
])  # fmt: skip
def test_errors_stand_at_their_field(client: TestClient, query: str, field: str, said: str) -> None:
    shown = client.get(f"/serving?{query}")
    assert shown.status_code == 422
    at = shown.text.split(f'id="f-{field}-help"', 1)[1].split("</p>", 1)[0]
    assert 'class="problem"' in at and said in at.replace("&#39;", "'")
    assert client.get(f"/serving?{query}&format=json").status_code == 422


def test_engines_for_prompts_are_asked_for_and_counted(client: TestClient) -> None:
    place = f"{PLACE}&load=rate_per_s&level=2"
    alone = view(client, place)["comparison"]["ranking"][0]
    pooled = view(client, f"{place}&pool=2&pool_tensor=2")["comparison"]["ranking"][0]
    assert (alone["devices"], pooled["devices"]) == (1, 1 + 2 * 2)
    assert pooled["serving"]["tpot_ms"]["mean"] < alone["serving"]["tpot_ms"]["mean"]
    shown = client.get(f"{place}&pool=2&pool_tensor=2").text
    assert "Joules per token" in shown
    assert f">{pooled['cost']['energy_per_token_j']:.2f}<" in shown
