"""Links that join some GPUs only, over HTTP: communication beyond the link domain goes over the slots."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

BRIDGED, SLOTTED, SWITCHED = "h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm5-80gb"
MESSAGE = {"op": "all_reduce", "message_bytes": 2**26, "dtype": "bf16"}
CARD = {
    "name": "Bridged Card",
    "compute_capability": "9.0",
    "sm_count": 100,
    "boost_clock_hz": 1.7e9,
    "memory_bytes": 8e10,
    "memory_bandwidth_bytes_per_s": 3e12,
    "link_bandwidth_bytes_per_s": 3e11,
    "link_domain_gpus": 2,
}
SAYS = "larger exchanges go over its slot"


def ask(client: TestClient, gpu: Any, workload: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post("/predict", json={"gpu": gpu, "workload": workload, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def all_reduce(client: TestClient, gpu: Any, devices: int, **more: Any) -> dict[str, Any]:
    workload = {"kind": "operators", "operators": [MESSAGE | {"devices": devices, **more}]}
    return ask(client, gpu, workload, detail=True)


def said(answer: Any) -> bool:
    return any(SAYS in words for words in answer)


def model(**parallelism: int) -> dict[str, Any]:
    mode = "training" if "data" in parallelism else "prefill"
    sizes = {"batch": 8, "sequence": 512, "dtype": "bf16", "parallelism": parallelism}
    return {"kind": "model", "name": "llama-3-8b", "mode": mode, **sizes}


def test_gpus_beyond_a_bridge_communicate_over_pcie(client: TestClient) -> None:
    for devices in (2, 4, 8):
        found, switched = (all_reduce(client, gpu, devices) for gpu in (BRIDGED, SWITCHED))
        assert found["bound"] == "communication"
        assert said(found["warnings"]) == (devices > 2) and not said(switched["warnings"])
        explained = found["operators"][0]["explanation"]
        if devices == 2:
            assert found["support"] == "interpolated" and found["latency_ms"] < 2.0 * switched["latency_ms"]
        else:
            assert found["latency_ms"] > 5.0 * switched["latency_ms"]
            assert found["latency_ms"] == pytest.approx(all_reduce(client, SLOTTED, devices)["latency_ms"], rel=0.05)
            assert explained["physics"]["limit_ms"] == pytest.approx(2 * 2**26 * (devices - 1) / devices / 63e9 * 1e3)
    warned = all_reduce(client, BRIDGED, 8)["warnings"]
    assert "the NVLink 4.0 bridge of h100-nvl-94gb joins 2 devices: " + SAYS + ", 63 GB/s" in warned


@pytest.mark.parametrize("form", ["inline", "registered"])
def test_an_inline_gpu_with_a_bridge(client: TestClient, form: str) -> None:
    gpu: Any = CARD
    if form == "registered":
        stored = client.post("/gpus", json=CARD | {"slot_bandwidth_bytes_per_s": 6e10})
        assert stored.status_code == 201, stored.text
        gpu = stored.json()["id"]
        assert client.get(f"/gpus/{gpu}").json()["link_domain_gpus"] == 2
    two, four = (all_reduce(client, gpu, devices) for devices in (2, 4))
    assert four["latency_ms"] > 5.0 * two["latency_ms"] and said(four["warnings"]) and not said(two["warnings"])
    if form == "registered":
        answer = client.patch(f"/gpus/{gpu}", json={"link_domain_gpus": 8})
        assert answer.status_code == 200, answer.text
        assert all_reduce(client, gpu, 4)["latency_ms"] < 2.0 * two["latency_ms"]
        assert client.delete(f"/gpus/{gpu}").status_code == 204


@pytest.mark.parametrize("wrong", [0, 1, -2, 2.5, 1e300, 10**400, "2", True, [2]])
def test_an_invalid_link_domain_is_named(client: TestClient, wrong: Any) -> None:
    bad = CARD | {"link_domain_gpus": wrong}
    predicted = {"gpu": bad, "workload": {"kind": "operators", "operators": [MESSAGE | {"devices": 4}]}}
    for answer, loc in (
        (client.post("/gpus", json=bad), ["link_domain_gpus"]),
        (client.patch(f"/gpus/{BRIDGED}", json={"link_domain_gpus": wrong}), ["link_domain_gpus"]),
        (client.post("/predict", json=predicted), ["gpu", "link_domain_gpus"]),
    ):
        assert answer.status_code == 422, answer.text
        assert [error["loc"] for error in answer.json()["errors"]] == [loc]


def test_the_spread_of_a_group_selects_its_link(client: TestClient) -> None:
    """Two cards with others between them are not the two of a bridge."""
    near, far = (all_reduce(client, BRIDGED, 2, **more) for more in ({"spread": 2}, {"spread": 8}))
    assert far["latency_ms"] > 3.0 * near["latency_ms"] and said(far["warnings"])
    same = [all_reduce(client, SWITCHED, 2, **more)["latency_ms"] for more in ({}, {"spread": 8})]
    assert same[0] == pytest.approx(same[1], rel=0.02)
    body = {"kind": "operators", "operators": [MESSAGE | {"devices": 4, "spread": 2}]}
    answer = client.post("/predict", json={"gpu": BRIDGED, "workload": body})
    assert answer.json()["errors"][0]["loc"] == ["workload", "operators", 0, "spread"]


def test_splits_of_a_network_use_the_right_link(client: TestClient) -> None:
    """Tensor ranks are neighbours; data-parallel replicas of pairs, and most stages, are not of one pair."""
    for parallelism, over_slot in (
        ({"tensor": 2}, False),
        ({"tensor": 4}, True),
        ({"data": 2}, False),
        ({"data": 2, "tensor": 2}, True),
        ({"data": 2, "tensor": 2, "nodes": 2}, False),
        ({"pipeline": 2}, False),
        ({"pipeline": 4}, True),
    ):
        bridged, switched = (ask(client, gpu, model(**parallelism)) for gpu in (BRIDGED, SWITCHED))
        assert said(bridged["warnings"]) == over_slot, parallelism
        assert not said(switched["warnings"])
    eight, two = (ask(client, BRIDGED, model(tensor=n))["phases_ms"]["communication"] for n in (8, 2))
    assert eight > 4.0 * two


def test_columns_and_batches_use_the_right_link(client: TestClient) -> None:
    columns = {"op": "all_reduce", "message_bytes": 2**26, "devices": [2, 8], "dtype": "bf16"}
    body = {"gpus": [BRIDGED, SWITCHED], "workload": {"kind": "operator_table", **columns}}
    found = client.post("/predict", json=body).json()["predictions"]
    alone = [all_reduce(client, BRIDGED, devices)["latency_ms"] for devices in (2, 8)]
    assert found[0]["latency_ms"] == pytest.approx(alone)
    assert [said(one["warnings"]) for one in found] == [True, False]
    batch = client.post("/predict/batch", params={"gpu": BRIDGED}, json=columns).json()
    assert batch["latency_ms"] == pytest.approx(alone) and said(batch["warnings"][BRIDGED])


def test_stages_of_a_partition_use_the_right_link(client: TestClient) -> None:
    """The first two cards share a bridge, the third and the fourth, and none two unlike ones."""
    body = {"gpus": [BRIDGED] * 4 + ["l40s"], "workload": model(), "link_latency_ms": 0}
    found = client.post("/partition", json=body).json()["partition"]
    slower = [stage["transfer_ms"] / found["stages"][1]["transfer_ms"] for stage in found["stages"][1:]]
    assert slower == pytest.approx([1.0, 300 / 63, 1.0, 300 / 31.5], rel=1e-6)
    assert any(SAYS in words for words in found["warnings"])
    given = client.post("/partition", json=body | {"link_bandwidth_bytes_per_s": 3e11}).json()["partition"]
    assert not any(SAYS in words for words in given["warnings"])
    unlike = client.post("/partition", json=body | {"gpus": ["gb200", SWITCHED]}).json()["partition"]
    assert not any(SAYS in words for words in unlike["warnings"])  # no slot of a rack's is known


def test_a_rack_joined_by_one_link_counts_as_one_machine(client: TestClient) -> None:
    """Sixteen GB200 on four machines: NVLink; B200, on two machines of eight: the network."""
    for devices, nodes in ((8, 2), (16, 4)):
        trays, one, apart = (
            all_reduce(client, gpu, devices, nodes=n)["latency_ms"]
            for gpu, n in (("gb200", nodes), ("gb200", 1), ("b200", nodes))
        )
        assert trays == one < 0.5 * apart
    assert ask(client, "gb200", model(tensor=8, nodes=2))["phases_ms"]["communication"] == pytest.approx(
        ask(client, "gb200", model(tensor=8))["phases_ms"]["communication"]
    )
