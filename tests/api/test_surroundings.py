"""What devices are surrounded by: the network, links other than the best, the host, and the library of collectives."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

H100, A100, PLAIN_A100 = "h100-sxm5-80gb", "a100-sxm4-80gb", "a100-pcie-80gb"
BETWEEN = {"op": "all_to_all", "message_bytes": 2**33, "devices": 16, "dtype": "bf16"}
WITHIN = {"op": "all_reduce", "message_bytes": 2**28, "devices": 2, "dtype": "bf16"}
TINY = {"op": "relu", "b": 1, "h": 1024, "dtype": "fp32"}
PRODUCT = {"op": "linear", "m": 8192, "n": 8192, "k": 8192, "dtype": "fp32"}


def answered(
    client: TestClient, gpu: Any, *operators: dict[str, Any], status: int = 200, **more: Any
) -> dict[str, Any]:
    body = {"gpu": gpu, "workload": {"kind": "operators", "operators": operators, **more}, "detail": True}
    answer = client.post("/predict", json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json() if status != 200 else answer.json()["predictions"][0])


def latency_ms(client: TestClient, gpu: Any, *operators: dict[str, Any], **more: Any) -> float:
    return float(answered(client, gpu, *operators, **more)["latency_ms"])


def test_a_network_of_400_gigabits_takes_half_as_long_as_the_usual_one(client: TestClient) -> None:
    usual, told, fast = (
        latency_ms(client, H100, BETWEEN | {"nodes": 2}, network_bytes_per_s=rate) for rate in (None, 25e9, 50e9)
    )
    assert told == usual
    assert fast == pytest.approx(usual / 2, rel=0.02)
    assert latency_ms(client, H100, BETWEEN, nodes=2, network_bytes_per_s=50e9) == fast
    assert latency_ms(client, H100, BETWEEN | {"nodes": 2}, nodes=4, network_bytes_per_s=50e9) == fast


def test_the_limit_follows_the_network_that_is_given(client: TestClient) -> None:
    rows = {
        rate: answered(client, H100, BETWEEN | {"nodes": 2}, network_bytes_per_s=rate)["operators"][0]
        for rate in (None, 25e9, 50e9, 100e9)
    }
    for rate in (25e9, 50e9, 100e9):
        assert rows[rate]["limit_ms"] == pytest.approx(2**33 / 2 / rate * 1e3)  # half of it goes to the other machine
        assert rows[rate]["limit_ms"] <= rows[rate]["low_ms"] <= rows[rate]["latency_ms"]
    assert rows[None]["limit_ms"] < rows[100e9]["limit_ms"]


@pytest.mark.parametrize(
    ("gpu", "rate"),
    [
        ("a100-pcie-40gb", 300e9),
        (PLAIN_A100, 300e9),
        ("h100-pcie-80gb", 300e9),
        ("rtx-2080-ti", 50e9),
        ("rtx-3090", 56.25e9),
        ("rtx-a6000", 56.25e9),
        ("rtx-a5000", 56.25e9),
    ],
)
def test_a_bridge_joins_two_cards(client: TestClient, gpu: str, rate: float) -> None:
    plain, bridged = (answered(client, gpu, WITHIN, link=link) for link in (None, "nvlink_bridge"))
    assert bridged["latency_ms"] < 0.6 * plain["latency_ms"]
    assert bridged["operators"][0]["explanation"]["physics"]["limit_ms"] == pytest.approx(2**28 / rate * 1e3)
    assert latency_ms(client, gpu, PRODUCT, link="nvlink_bridge") == latency_ms(client, gpu, PRODUCT)


def test_cards_that_have_a_bridge_answer_as_they_do_without_it_named(client: TestClient) -> None:
    assert latency_ms(client, "h100-nvl-94gb", WITHIN, link="nvlink_bridge") == latency_ms(
        client, "h100-nvl-94gb", WITHIN
    )


def test_slots_in_place_of_nvlink(client: TestClient) -> None:
    for gpu, slotted in (("h100-nvl-94gb", "h100-pcie-80gb"), (A100, PLAIN_A100)):
        over_slot = latency_ms(client, gpu, WITHIN, link="pcie")
        assert over_slot > 3.0 * latency_ms(client, gpu, WITHIN)
        assert over_slot == pytest.approx(latency_ms(client, slotted, WITHIN), rel=0.1)
    assert latency_ms(client, PLAIN_A100, WITHIN, link="pcie") == latency_ms(client, PLAIN_A100, WITHIN)


@pytest.mark.parametrize(
    ("gpu", "fields", "why"),
    [
        (H100, {"link": "nvlink_bridge"}, "h100-sxm5-80gb has no NVLink bridge"),
        ("l40s", {"link": "nvlink_bridge"}, "l40s has no NVLink bridge"),
        ("mi210", {"link": "nvlink_bridge"}, "has no NVLink bridge"),
        ("tpu-v5p", {"link": "pcie"}, "tpu-v5p has no PCIe slot"),
        ("amd-instinct-mi300x", {"implementation": "nccl"}, "nccl does not run on amd-instinct-mi300x, by AMD"),
        (H100, {"implementation": "rccl"}, "rccl does not run on h100-sxm5-80gb, by NVIDIA"),
        (H100, {"host": "laptop"}, "laptop"),
        (H100, {"network_bytes_per_s": 0.0}, "1e6"),
    ],
)
def test_what_a_gpu_does_not_have_is_refused(client: TestClient, gpu: str, fields: dict[str, Any], why: str) -> None:
    refused = answered(client, gpu, WITHIN, status=422, **fields)
    (name,) = fields
    assert refused["errors"][0]["loc"][-2:] == ["workload", name]
    assert why in refused["errors"][0]["msg"] or name != "link"


def test_more_cards_than_a_bridge_joins_are_refused(client: TestClient) -> None:
    refused = answered(client, PLAIN_A100, WITHIN | {"devices": 4}, status=422, link="nvlink_bridge")
    assert "a bridge joins 2 cards of a100-pcie-80gb, got 4" in refused["errors"][0]["msg"]
    assert answered(client, PLAIN_A100, WITHIN | {"devices": 4, "nodes": 2}, link="nvlink_bridge")


def test_of_all_gpus_those_without_are_skipped(client: TestClient) -> None:
    workload = {"kind": "operators", "operators": [WITHIN], "link": "nvlink_bridge", "implementation": "nccl"}
    answer = client.post("/predict", json={"gpus": "all", "workload": workload}).json()
    assert {PLAIN_A100, "rtx-3090"} <= {each["gpu"] for each in answer["predictions"]}
    reasons = {each["gpu"]: each["reason"] for each in answer["skipped"]}
    assert reasons["l40s"] == "link: l40s has no NVLink bridge"


def test_libraries_are_the_vendors_where_none_is_named(client: TestClient) -> None:
    for gpu, library in (("amd-instinct-mi300x", "rccl"), (H100, "nccl")):
        message = WITHIN | {"devices": 8}
        assert latency_ms(client, gpu, message, implementation=library) == latency_ms(client, gpu, message)


def test_hosts_change_what_they_launch(client: TestClient) -> None:
    usual, named, desktop, old = (
        answered(client, A100, TINY, **({} if host is None else {"host": host}))
        for host in (None, "datacenter", "desktop", "old")
    )
    assert named == usual
    assert desktop["latency_ms"] < 0.3 * usual["latency_ms"]
    assert 1.8 * usual["latency_ms"] < old["latency_ms"] < 2.4 * usual["latency_ms"]
    widths = [each["interval_ms"]["high"] / each["interval_ms"]["low"] for each in (usual, desktop, old)]
    assert min(widths[1:]) > widths[0]


def test_hosts_change_nothing_that_a_graph_launches_and_little_of_long_operators(client: TestClient) -> None:
    graphed = TINY | {"dtype": "bf16", "software": "vllm"}
    assert latency_ms(client, A100, graphed, host="old") == latency_ms(client, A100, graphed)
    assert latency_ms(client, A100, PRODUCT, host="old") == pytest.approx(latency_ms(client, A100, PRODUCT), rel=0.02)
    eager = TINY | {"dtype": "bf16", "software": "pytorch-2.4"}
    assert latency_ms(client, A100, eager, host="old") > 1.8 * latency_ms(client, A100, eager)


def test_columns_take_network_link_and_host(client: TestClient) -> None:
    def times(gpu: str, status: int = 200, **fields: Any) -> Any:
        answer = client.post("/predict", json={"gpu": gpu, "workload": {"kind": "operator_table", **fields}})
        assert answer.status_code == status, answer.text
        return answer.json()["predictions"][0]["latency_ms"] if status == 200 else answer.json()

    table = {name: [value] for name, value in WITHIN.items() if name not in ("op", "dtype")}
    table |= {"op": "all_reduce", "dtype": "bf16"}
    (bridged,) = times(PLAIN_A100, **table, link="nvlink_bridge")
    assert bridged == latency_ms(client, PLAIN_A100, WITHIN, link="nvlink_bridge")
    (between,) = times(H100, **BETWEEN, nodes=[2], network_bytes_per_s=50e9)
    assert between == latency_ms(client, H100, BETWEEN, nodes=2, network_bytes_per_s=50e9)
    (old,) = times(A100, op="relu", b=[1], h=1024, dtype="fp32", host="old")
    assert old == latency_ms(client, A100, TINY, host="old")
    refused = times(H100, 422, **table, link="nvlink_bridge")
    assert refused["errors"][0]["loc"][-1] == "link"


MODEL = {"kind": "model", "name": "llama-3-8b", "mode": "prefill", "batch": 1, "sequence": 2048, "dtype": "bf16"}
SERVED = {
    "kind": "serving",
    "name": "llama-3-8b",
    "dtype": "bf16",
    "input_tokens": 2048,
    "output_tokens": 64,
    "load": {"concurrency": 8},
}


@pytest.mark.parametrize("workload", [MODEL, SERVED])
def test_models_and_served_models_take_a_link(client: TestClient, workload: dict[str, Any]) -> None:
    def step_ms(gpu: str, status: int = 200, **parallelism: Any) -> Any:
        body = {"gpu": gpu, "workload": workload | {"parallelism": parallelism}}
        answer = client.post("/predict", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()["predictions"][0]["latency_ms"] if status == 200 else answer.json()["errors"][0]

    slots, bridged = (step_ms(PLAIN_A100, tensor=2, **link) for link in ({}, {"link": "nvlink_bridge"}))
    assert bridged < 0.9 * slots
    assert step_ms(PLAIN_A100, tensor=2, link="pcie") == slots
    assert step_ms(A100, tensor=2, link="pcie") > 1.1 * step_ms(A100, tensor=2)
    refused = step_ms(PLAIN_A100, 422, tensor=4, link="nvlink_bridge")
    assert refused["loc"][-2:] == ["parallelism", "link"] and "joins 2 cards" in refused["msg"]
    assert "no NVLink bridge" in step_ms(H100, 422, tensor=2, link="nvlink_bridge")["msg"]


def test_comparisons_and_plans_stay_within_a_bridge(client: TestClient) -> None:
    body = {"gpus": [PLAIN_A100], "workload": MODEL | {"parallelism": {"link": "nvlink_bridge"}}}
    answer = client.post("/compare", json=body | {"search_parallelism": True})
    assert answer.status_code == 200 and answer.json()["ranking"][0]["devices"] <= 2, answer.text
    load = SERVED | {"load": {"rate_per_s": 2.0}, "parallelism": {"link": "nvlink_bridge"}}
    answer = client.post("/plan", json={"gpus": [PLAIN_A100], "workload": load, "ttft_ms": 5000.0, "max_devices": 4})
    assert answer.status_code == 200, answer.text
    refused = client.post("/plan", json={"gpus": [H100], "workload": load, "ttft_ms": 5000.0})
    assert refused.status_code == 422 and "no NVLink bridge" in refused.text
