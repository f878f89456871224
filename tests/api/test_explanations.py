"""Explanations over HTTP add up to the predicted time, also for collectives over any devices."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

Row = dict[str, Any]
# A card in a slot, switched machines, a bridge of two, a rack of 72, and machines of another vendor.
GPUS = ["nvidia-l4", "l40s", "a100-sxm4-80gb", "h200-sxm-141gb", "h100-nvl-94gb", "b200", "gb200", "arc-pro-b60"]
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
PLACES = [(2, 1), (8, 1), (2, 2), (16, 2), (16, 16), (128, 16), (144, 18)]
COLLECTIVES: list[Row] = [
    {"op": op, "message_bytes": size, "devices": devices, "nodes": nodes, "dtype": dtype}
    for op in OPS
    for devices, nodes in PLACES
    for size, dtype in ((2**12, "fp16"), (2**24, "bf16"), (2**30, "bf16"))
] + [{"op": "send_recv", "message_bytes": 2**24, "devices": 2, "nodes": nodes, "dtype": "bf16"} for nodes in (1, 2)]
OTHERS: list[Row] = [
    {"op": "linear", "m": 4096, "n": 3840, "k": 1280, "dtype": "fp16"},
    {"op": "linear", "m": 1, "n": 4096, "k": 4096, "dtype": "bf16", "software": "vllm-0.24"},
    {"op": "bmm", "b": 64, "m": 512, "n": 512, "k": 64, "dtype": "fp16", "phase": "backward"},
    {"op": "softmax", "b": 8192, "h": 1024, "dtype": "fp32", "run_state": "burst"},
    {"op": "layer_norm", "b": 8192, "h": 1024, "dtype": "fp16", "software": "pytorch-2.1"},
    {"op": "attention_decode", "batch": 8, "heads": 32, "head_dim": 128, "context_length": 4096, "dtype": "bf16"},
]


def ask(client: TestClient, gpu: str, workload: Row, predictor: str = "auto") -> Row:
    body = {"gpu": gpu, "workload": workload, "predictor": predictor, "detail": True}
    answer = client.post("/predict", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def explained_ms(told: Row) -> float:
    """The latency of one repetition as the explanation has it."""
    network = told["network"]
    if network is None:
        return corrected_ms(told) * float(told["in_network"])
    node, adapters, hops, limit = (network[f"{part}_ms"] for part in ("node", "adapters", "hops", "limit"))
    assert (corrected_ms(told) if told["members"] else 0.0) == pytest.approx(node, rel=1e-5)
    total = max(node, adapters) + hops
    assert network["bound"] == ("limit" if limit > total else "node" if node > adapters else "network")
    return float(max(total, limit))


def corrected_ms(told: Row) -> float:
    """The physics, corrected; what was measured."""
    physics, *learned = told["members"]
    if learned and learned[-1]["source"] == "measured":
        return float(learned[-1]["latency_ms"])
    correction = told["fading"] * sum(member["weight"] * member["log_correction"] for member in learned)
    terms = told["physics"]
    if told["corrects"] == "time":
        return float(max(physics["latency_ms"] * math.exp(correction), terms["limit_ms"]))
    pipes = math.hypot(terms["compute_ms"] ** 2, max(terms["dram_ms"], terms["l2_ms"]) ** 2) ** 0.5
    work = max(pipes, terms["link_ms"]) * math.exp(correction)
    return float(max(terms["overhead_ms"] + work, terms["shortest_ms"], terms["limit_ms"]))


@pytest.mark.parametrize("gpu", GPUS)
def test_an_explanation_adds_up_to_the_prediction(client: TestClient, gpu: str) -> None:
    asked = COLLECTIVES + OTHERS
    found = ask(client, gpu, {"kind": "operators", "operators": [row | {"count": 3} for row in asked]})
    for row, told in zip(asked, found["operators"], strict=True):
        assert 3 * explained_ms(told["explanation"]) == pytest.approx(told["latency_ms"], rel=1e-5), row
        nodes, network = row.get("nodes", 1), told["explanation"]["network"]
        if gpu == "gb200":
            nodes = math.ceil(row.get("devices", 1) / 72)  # a rack's link joins 72
        assert (1 if network is None else network["nodes"]) == nodes, row
        if network is not None:
            alone = row["op"] == "send_recv" or row["devices"] == nodes
            assert (network["node_ms"] == 0.0) == alone, row


def test_a_ring_over_two_machines_takes_its_slowest_link(client: TestClient) -> None:
    """Eight L4 in slots are slower than eight adapters, eight H200 on a switch quicker."""
    row = {"op": "reduce_scatter", "message_bytes": 7 * 2**25, "devices": 16, "nodes": 2, "dtype": "bf16"}
    for gpu, bound in (("nvidia-l4", "node"), ("h200-sxm-141gb", "network")):
        (told,) = ask(client, gpu, {"kind": "operators", "operators": [row]})["operators"]
        assert told["explanation"]["network"]["bound"] == bound
        node = row | {"message_bytes": 7 * 2**25 * 15 // 16 * 8 // 7, "devices": 8, "nodes": 1}
        (alone,) = ask(client, gpu, {"kind": "operators", "operators": [node]})["operators"]
        assert told["explanation"]["network"]["node_ms"] == pytest.approx(alone["latency_ms"])
        assert told["explanation"]["members"] == alone["explanation"]["members"]


def test_explanations_of_networks_use_their_network_bandwidth(client: TestClient) -> None:
    took = []
    for bandwidth in (10e9, 50e9):
        split = {"tensor": 8, "data": 2, "nodes": 2, "network_bytes_per_s": bandwidth}
        sizes = {"mode": "training", "batch": 16, "sequence": 512, "dtype": "bf16", "parallelism": split}
        rows = ask(client, "h100-sxm5-80gb", {"kind": "model", "name": "llama-3-8b", **sizes})["operators"]
        for told in rows:
            assert told["count"] * explained_ms(told["explanation"]) == pytest.approx(told["latency_ms"], rel=1e-5)
        took.append(
            sum(told["explanation"]["network"]["adapters_ms"] for told in rows if told["explanation"]["network"])
        )
    assert took[0] > 3.0 * took[1] > 0.0


@pytest.mark.parametrize("predictor", ["roofline", "tilewave"])
def test_other_predictors_have_no_explanation(client: TestClient, predictor: str) -> None:
    rows = ask(client, "l40s", {"kind": "operators", "operators": COLLECTIVES[:30]}, predictor)["operators"]
    assert all("explanation" not in row for row in rows)
