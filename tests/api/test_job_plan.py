"""POST /plan: GPUs, their number and the probability of the goals; time limits, sensitivities; invalid requests."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
from fastapi.testclient import TestClient
from scipy.special import ndtr, ndtri

from app.wire.job_plan_form import PLAN_EXAMPLE

GPUS = ["nvidia-l4", "a100-sxm4-80gb", "h100-sxm5-80gb"]
PRICES = {"nvidia-l4": 0.8, "a100-sxm4-80gb": 1.5, "h100-sxm5-80gb": 3.0}
LINEAR = {"kind": "operators", "operators": [{"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}]}
TRAINING = {"kind": "model", "name": "gpt2", "mode": "training", "batch": 16, "sequence": 512, "dtype": "bf16"}


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/plan", json={"workload": LINEAR, "gpus": GPUS, "prices": PRICES} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/plan", json={"workload": LINEAR, "gpus": GPUS} | fields)
    assert answer.status_code == 422, answer.text
    return dict(answer.json())


def test_the_example_of_the_documentation(client: TestClient) -> None:
    body = client.post("/plan", json=PLAN_EXAMPLE)
    assert body.status_code == 200, body.text
    assert [choice["rank"] for choice in body.json()["choices"]] == [1, 2, 3]


def test_the_cheapest_plan_that_meets_the_goals_comes_first(client: TestClient) -> None:
    plan = ask(client, steps=1e6, deadline_s=1e6)
    costs = [choice["cost_usd"] for choice in plan["choices"]]
    assert all(choice["meets"] for choice in plan["choices"])
    assert costs == sorted(costs) and plan["best"] == plan["choices"][0]["gpu"]


def test_probability_and_time_limit_are_those_of_the_interval(client: TestClient) -> None:
    for one in client.post("/predict", json={"workload": LINEAR, "gpus": GPUS}).json()["predictions"]:
        middle, high = one["latency_ms"], one["interval_ms"]["high"]
        steps, spread = 1000.0, log(high / middle) / ndtri(0.9)
        deadline_s = steps * middle * 1.05 / 1e3
        plan = ask(client, gpus=[one["gpu"]], steps=steps, deadline_s=deadline_s, max_devices=1)
        (choice,) = plan["choices"]
        assert choice["job_s"] == pytest.approx(steps * middle / 1e3)
        assert choice["probability"] == pytest.approx(ndtr(log(1.05) / spread))
        assert choice["time_limit_s"] == pytest.approx(steps * middle / 1e3 * exp(spread * ndtri(0.95)))


def test_independent_steps_are_shared_by_the_fewest_copies(client: TestClient) -> None:
    (alone,) = ask(client, gpus=["nvidia-l4"], steps=1000, deadline_s=1e6)["choices"]
    deadline_s = alone["time_limit_s"] / 3.0
    (choice,) = ask(client, gpus=["nvidia-l4"], steps=1000, deadline_s=deadline_s, probability=0.95)["choices"]
    assert (choice["copies"], choice["devices"], choice["meets"]) == (4, 4, True)  # three copies take 334 steps each
    assert choice["job_s"] == pytest.approx(alone["job_s"] / 4)
    assert choice["cost_usd"] == pytest.approx(alone["cost_usd"])


def test_training_takes_more_devices_by_splitting_a_step(client: TestClient) -> None:
    (alone,) = ask(client, workload=TRAINING, gpus=["a100-sxm4-80gb"], steps=100, deadline_s=1e6)["choices"]
    plan = ask(client, workload=TRAINING, gpus=["a100-sxm4-80gb"], steps=100, deadline_s=alone["job_s"] * 0.8)
    (choice,) = plan["choices"]
    assert choice["copies"] == 1 and choice["devices"] > 1 and choice["job_s"] < alone["job_s"]
    assert plan["notes"]


def test_without_steps_a_plan_is_for_one_epoch(client: TestClient) -> None:
    plan = ask(client, workload=TRAINING | {"dataset_size": 1601}, deadline_s=1e6)
    assert plan["steps"] == 101


def test_unreachable_goals_return_the_closest_plan_and_the_shortfall(client: TestClient) -> None:
    plan = ask(client, steps=1e6, deadline_s=1.0)
    chances = [choice["probability"] for choice in plan["choices"]]
    assert plan["best"] is None and chances == sorted(chances, reverse=True)
    assert all("times too long" in choice["missing"][0] for choice in plan["choices"])


def test_all_goals_hold_together(client: TestClient) -> None:
    loose = ask(client, steps=1e6, deadline_s=1e6)["choices"]
    both = ask(client, steps=1e6, deadline_s=1e6, budget_usd=min(one["cost_usd"] for one in loose) * 1.001)
    told = {choice["gpu"]: choice["probability"] for choice in both["choices"]}
    assert all(told[one["gpu"]] < one["probability"] for one in loose)


def test_throughput_is_that_of_all_copies(client: TestClient) -> None:
    (one,) = ask(client, gpus=["h100-sxm5-80gb"], steps=1000, throughput_per_s=1.0)["choices"]
    (many,) = ask(client, gpus=["h100-sxm5-80gb"], steps=1000, throughput_per_s=3 * one["throughput_per_s"])["choices"]
    assert many["meets"] and many["throughput_per_s"] > 3 * one["throughput_per_s"]


def test_cost_energy_and_throughput_have_intervals(client: TestClient) -> None:
    plan = ask(client, gpus=["h100-sxm5-80gb"], steps=1000, deadline_s=1e6)
    (one,) = plan["choices"]
    ratio = one["job_interval_s"]["high"] / one["job_s"]
    assert one["cost_interval_usd"]["high"] / one["cost_usd"] == pytest.approx(ratio)
    assert one["energy_interval_j"]["low"] < one["energy_j"] < one["energy_interval_j"]["high"]
    assert one["throughput_interval_per_s"]["low"] * ratio == pytest.approx(one["throughput_per_s"])
    assert any(one["power_source"] in note for note in plan["notes"])


def test_a_budget_without_a_price_is_not_met(client: TestClient) -> None:
    gpus = ["nvidia-l4", "rtx-4090"]  # no list price ships of these
    plan = ask(client, gpus=gpus, prices={"nvidia-l4": 0.8}, budget_usd=1e6)
    assert plan["best"] == "nvidia-l4"
    assert all(one["probability"] is None and not one["meets"] for one in plan["choices"][1:])
    assert "no price" in plan["choices"][1]["missing"][0]


def test_the_probability_of_the_faster_gpu(client: TestClient) -> None:
    than = {row["gpu"]: row["than"] for row in ask(client, deadline_s=1e6)["faster"]}
    assert than["h100-sxm5-80gb"]["nvidia-l4"] > 0.99
    assert than["a100-sxm4-80gb"]["nvidia-l4"] + than["nvidia-l4"]["a100-sxm4-80gb"] == pytest.approx(1.0)


def test_more_bandwidth_clock_and_memory(client: TestClient) -> None:
    moved = {"kind": "operators", "operators": [{"op": "add", "b": 65536, "h": 8192, "dtype": "bf16"}]}
    rows = ask(client, workload=moved, gpus=["a100-sxm4-80gb"], deadline_s=1e6)["sensitivities"]
    change = {row["field"]: row["change"] for row in rows}
    assert change["memory_bandwidth_bytes_per_s"] == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert abs(change["boost_clock_hz"]) < 0.01 and change["memory_bytes"] == 0
    rows = ask(client, workload=TRAINING, gpus=["a100-sxm4-80gb"], deadline_s=1e6)["sensitivities"]
    batch = {row["field"]: row["largest_batch"] for row in rows}
    assert batch["memory_bytes"] > batch["boost_clock_hz"]


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({}, ["deadline_s"]),
        ({"deadline_s": -1}, ["deadline_s"]),
        ({"deadline_s": 1e-320}, ["deadline_s"]),
        ({"budget_usd": 1e-320}, ["budget_usd"]),
        ({"deadline_s": 1, "probability": 1}, ["probability"]),
        ({"deadline_s": 1, "steps": 0}, ["steps"]),
        ({"budget_usd": 1, "prices": {"nvidia-l4": -1}}, ["prices", "nvidia-l4"]),
        ({"budget_usd": 1, "currency": "EUR"}, ["currency"]),
        ({"deadline_s": 1, "max_devices": 1000}, ["max_devices"]),
        ({"deadline_s": 1, "workload": TRAINING | {"parallelism": {"data": 16}}}, ["max_devices"]),
        ({"deadline_s": 1, "workload": LINEAR | {"operators": []}}, ["workload", "operators"]),
    ],
)
def test_invalid_requests_are_rejected(client: TestClient, fields: dict[str, Any], loc: list[str]) -> None:
    assert refused(client, **fields)["errors"][0]["loc"] == loc


def test_an_unknown_gpu(client: TestClient) -> None:
    answer = client.post("/plan", json={"workload": LINEAR, "gpus": ["h1000"], "deadline_s": 1})
    assert answer.status_code == 404 and answer.json()["errors"][0]["loc"] == ["gpus", 0]


def test_failures_of_devices_lengthen_a_job(client: TestClient) -> None:
    rates = {"mtbf_hours_per_device": 20.0, "checkpoint_s": 120.0}
    goals = {"gpus": ["h100-sxm5-80gb"], "steps": 1e6, "deadline_s": 1e9, "max_devices": 1}
    (ideal,) = ask(client, workload=TRAINING, **goals)["choices"]
    (real,) = ask(client, workload=TRAINING | {"failures": rates}, **goals)["choices"]
    answer = client.post("/predict", json={"workload": TRAINING | {"failures": rates}, "gpu": "h100-sxm5-80gb"}).json()
    longer = answer["predictions"][0]["goodput"]["expected_over_ideal"]
    assert longer > 1.03
    for figure in ("job_s", "time_limit_s", "cost_usd"):
        assert real[figure] == pytest.approx(longer * ideal[figure])
