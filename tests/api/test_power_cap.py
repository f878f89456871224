"""The board power that is set (`power_cap_w`), in every request that names GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

H100, H200 = "h100-sxm5-80gb", "h200-sxm-141gb"
LINEAR = {"op": "linear", "m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}
COPY = {"op": "copy", "b": 8192, "h": 16384, "dtype": "bf16"}
OPERATORS = {"kind": "operators", "operators": [LINEAR, COPY]}
TABLE = {"kind": "operator_table", "op": "linear", "m": [512, 8192], "n": 8192, "k": 8192, "dtype": "bf16"}
TRAINING = {
    "kind": "model",
    "name": "llama-3-8b",
    "mode": "training",
    "batch": 8,
    "sequence": 8192,
    "dtype": "bf16",
    "attention": "flash",
    "software": "torchtitan",
    "compiled": True,
    "parallelism": {"data": 8},
}
SERVING = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "software": "vllm",
    "parallelism": {"tensor": 1},
    "input_tokens": 4096,
    "output_tokens": 256,
    "load": {"concurrency": 16},
}


def answered(client: TestClient, path: str = "/predict", status: int = 200, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def one(client: TestClient, workload: dict[str, Any], watts: float | None = None, gpu: str = H100) -> dict[str, Any]:
    (prediction,) = answered(client, gpu=gpu, workload=workload, power_cap_w=watts)["predictions"]
    return dict(prediction)


def latency_ms(prediction: dict[str, Any]) -> float:
    times = prediction["latency_ms"]
    return float(sum(times) if isinstance(times, list) else times)


@pytest.fixture
def workload_of(kernel: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    every = {"operators": OPERATORS, "operator_table": TABLE, "training": TRAINING, "serving": SERVING}
    every["kernel"] = kernel | {"flops": 1e13, "bytes": 1e8, "dtype": "fp32", "measured": []}
    return every.__getitem__


@pytest.mark.parametrize("kind", ["kernel", "operators", "operator_table", "training", "serving"])
def test_times_never_fall_when_the_cap_falls(
    client: TestClient, workload_of: Callable[[str], dict[str, Any]], kind: str
) -> None:
    drawn = np.sort(np.random.default_rng(57).uniform(75.0, 700.0, 6))[::-1].tolist()
    times = [latency_ms(one(client, workload_of(kind), watts)) for watts in (700.0, *drawn, 75.0)]
    assert times == sorted(times)
    assert times[-1] > times[0]


@pytest.mark.parametrize("kind", ["kernel", "operators", "operator_table", "training", "serving"])
def test_the_boards_own_power_changes_nothing(
    client: TestClient, workload_of: Callable[[str], dict[str, Any]], kind: str
) -> None:
    plain, capped = one(client, workload_of(kind)), one(client, workload_of(kind), 700.0)
    if kind == "serving":
        assert capped["serving"]["settings"].pop("power_cap_w") == 700.0
    assert capped == plain


def test_products_take_longer_and_copies_do_not(client: TestClient) -> None:
    for operator, slower in ((LINEAR, True), (COPY, False)):
        workload = {"kind": "operators", "operators": [operator]}
        plain, capped = one(client, workload), one(client, workload, 350.0)
        assert (capped["latency_ms"] > 1.1 * plain["latency_ms"]) is slower
        assert slower or capped["latency_ms"] == plain["latency_ms"]
        assert "power_capped" in [each["code"] for each in capped["warning_codes"]]
        widths = [each["interval_ms"]["high"] / each["interval_ms"]["low"] for each in (plain, capped)]
        assert (widths[1] > widths[0]) is slower


def test_training_steps_are_slower_on_cards_of_500_watts(client: TestClient) -> None:
    steps = [one(client, TRAINING, watts)["latency_ms"] for watts in (None, 500.0)]
    assert 1.03 < steps[1] / steps[0] < 1.3


@pytest.mark.parametrize(
    ("gpu", "watts", "reason"),
    [
        (H100, 701.0, "over the board power of h100-sxm5-80gb, 700 W"),
        (H100, 69.0, "under 0.1 of the board power of h100-sxm5-80gb, 700 W"),
        ("epyc-zen3-1-core", 100.0, "the board power of epyc-zen3-1-core is unknown"),
    ],
)
@pytest.mark.parametrize("path", ["/predict", "/compare", "/plan"])
def test_what_cannot_be_capped_is_refused(client: TestClient, path: str, gpu: str, watts: float, reason: str) -> None:
    goals = {"deadline_s": 10.0} if path == "/plan" else {}
    workload = {"kind": "operators", "operators": [LINEAR | {"dtype": "fp32"}]}
    answer = answered(client, path, 422, gpus=[gpu], workload=workload, power_cap_w=watts, **goals)
    assert answer["errors"][0]["loc"][-1] == "power_cap_w"
    assert reason in answer["errors"][0]["msg"]


def test_a_measured_step_takes_as_much_longer_as_a_predicted_one(client: TestClient) -> None:
    step = {"kind": "model", "name": "gpt2", "mode": "prefill", "batch": 64, "sequence": 512, "dtype": "bf16"}
    step |= {"software": "vllm"}
    predicted = [one(client, step, watts)["latency_ms"] for watts in (None, 300.0)]
    row = {"gpu": H100, "software": "vllm", "workload": step, "latency_ms": 1.5 * predicted[0], "source": "ours"}
    assert client.post("/measurements", json=[row]).status_code == 200
    client.get("/measurements", headers={"cache-control": "no-cache"})
    plain, capped = (
        client.post("/predict", json=body, headers={"cache-control": "no-cache"}).json()["predictions"][0]
        for body in ({"gpu": H100, "workload": step, "power_cap_w": watts} for watts in (None, 300.0))
    )
    assert client.delete("/measurements", params={"source": "ours"}).status_code == 200
    assert plain["support"] == "measured" != capped["support"]
    slower = predicted[1] / predicted[0]
    assert slower > 1.05
    assert capped["latency_ms"] / plain["latency_ms"] == pytest.approx(slower)


def test_of_all_gpus_those_that_cannot_are_skipped(client: TestClient, kernel: dict[str, Any]) -> None:
    for workload in (kernel, OPERATORS, TABLE):
        answer = answered(client, gpus="all", workload=workload, power_cap_w=600.0)
        reasons = {each["gpu"]: each["reason"] for each in answer["skipped"]}
        assert "over the board power of nvidia-l4, 72 W" in reasons["nvidia-l4"]
        assert {each["gpu"] for each in answer["predictions"]} >= {H100, H200}
        assert not {each["gpu"] for each in answer["predictions"]} & {*reasons}
    assert answered(client, status=422, gpus="all", workload=kernel, power_cap_w=9e5)["errors"]


def test_a_comparison_by_energy_knows_the_cap(client: TestClient) -> None:
    rows = [
        answered(client, "/compare", gpus=[H100], workload=OPERATORS, rank_by="energy", power_cap_w=watts)["ranking"][0]
        for watts in (None, 300.0)
    ]
    assert rows[1]["power_w"] <= 300.0 < rows[0]["power_w"]
    assert rows[1]["energy_j"] == pytest.approx(rows[1]["power_w"] * rows[1]["latency_ms"] / 1e3)
    assert rows[1]["latency_ms"] == one(client, OPERATORS, 300.0)["latency_ms"]


def test_plans_know_the_cap(client: TestClient) -> None:
    job = {"gpus": [H100], "workload": OPERATORS, "steps": 1000, "deadline_s": 60.0}
    steps = [answered(client, "/plan", **job, power_cap_w=watts)["choices"][0]["step_ms"] for watts in (None, 300.0)]
    assert steps[1] == one(client, OPERATORS, 300.0)["latency_ms"] > steps[0]
    load = SERVING | {"load": {"rate_per_s": 4.0}}
    plan = answered(client, "/plan", workload=load, ttft_ms=3000.0, power_cap_w=650.0, max_devices=1)
    choice = next(each for each in plan["choices"] if each["gpu"] == H100)
    assert choice["serving"]["settings"]["power_cap_w"] == 650.0
    assert "over the board power" in next(each["reason"] for each in plan["skipped"] if each["gpu"] == "nvidia-l4")


def test_rows_in_columns_know_the_cap(client: TestClient) -> None:
    rows = {name: [value] for name, value in TABLE.items() if name in ("m", "n", "k")} | {
        "op": "linear",
        "dtype": "bf16",
    }
    rows |= {"m": [8192], "n": [8192], "k": [8192]}
    times = [
        client.post("/predict/batch", params={"gpu": H100} | cap, json=rows).json()["latency_ms"][0]
        for cap in ({}, {"power_cap_w": 350.0})
    ]
    assert times[1] > 1.1 * times[0]
    refused = client.post("/predict/batch", params={"gpu": H100, "power_cap_w": 701.0}, json=rows)
    assert refused.status_code == 422 and "over the board power" in refused.text


def test_a_slice_and_a_specification_are_capped(client: TestClient) -> None:
    specification = {"id": "mine", "name": "Mine", "vendor": "NVIDIA", "compute_capability": "9.0", "sm_count": 132}
    specification |= {"boost_clock_hz": 1.98e9, "memory_bytes": 8e10, "memory_bandwidth_bytes_per_s": 3.35e12}
    for gpu, watts in (("h100-sxm5-80gb:3g.40gb", 120.0), (specification | {"board_power_w": 700.0}, 300.0)):
        body = {"gpu": gpu, "workload": {"kind": "operators", "operators": [LINEAR]}}
        plain, capped = (
            answered(client, **body, power_cap_w=cap)["predictions"][0]["latency_ms"] for cap in (None, watts)
        )
        assert capped > plain


def test_requests_that_wait_together_keep_their_own_caps(client: TestClient, kernel: dict[str, Any]) -> None:
    heavy = kernel | {"flops": 1e13, "bytes": 1e8, "measured": []}
    times = [one(client, heavy, watts)["latency_ms"] for watts in (None, 100.0, None)]
    assert times[0] == times[2] < times[1]
