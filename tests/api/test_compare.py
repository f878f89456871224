"""POST /compare: ranking criteria, prices and power, splits of networks, invalid requests."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.wire.compare_form import COMPARE_EXAMPLE
from app.wire.operator_forms import OPERATORS_EXAMPLE
from tests.service import wait_corrected

GPUS = ["nvidia-l4", "a100-sxm4-80gb", "h100-sxm5-80gb"]
PRICES = {"nvidia-l4": 0.8, "a100-sxm4-80gb": 1.5, "h100-sxm5-80gb": 3.0}
OPERATORS = OPERATORS_EXAMPLE["workload"]
# 141 GB of weights: two H100 of 80 GB hold them, one does not.
LLAMA_70B = {"kind": "model", "name": "llama-3.1-70b", "batch": 1, "sequence": 128, "dtype": "bf16"}
INLINE = {
    "name": "Tomorrow 1",
    "compute_capability": "10.0",
    "sm_count": 160,
    "boost_clock_hz": 2.0e9,
    "memory_bytes": 309237645312,
    "memory_bandwidth_bytes_per_s": 1.0e13,
}


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/compare", json={"workload": OPERATORS, "gpus": GPUS} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("rank_by", "figure", "more"),
    [
        ("latency", "latency_ms", 1),
        ("throughput", "throughput_per_s", -1),
        ("cost", "cost_usd", 1),
        ("energy", "energy_j", 1),
    ],
)
def test_the_order_follows_the_criterion(client: TestClient, rank_by: str, figure: str, more: int) -> None:
    rows = ask(client, rank_by=rank_by, prices=PRICES)["ranking"]
    figures = [more * row[figure] for row in rows]
    assert figures == sorted(figures) and [row["rank"] for row in rows] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["kernel", "operators", "model"])
def test_times_equal_those_of_predict(client: TestClient, kernel: dict[str, Any], kind: str) -> None:
    model = {"kind": "model", "name": "gpt2", "batch": 2, "sequence": 256, "mode": "training"}
    workload = {"kernel": kernel, "operators": OPERATORS, "model": model}[kind]
    rows = {row["gpu"]: row for row in ask(client, workload=workload)["ranking"]}
    told = client.post("/predict", json={"workload": workload, "gpus": GPUS}).json()["predictions"]
    for one in told:
        row = rows[one["gpu"]]
        for name in ("latency_ms", "interval_ms", "memory", "bound", "support", "predictor"):
            assert row[name] == one[name]
        per_s = one.get("throughput_per_s", 1e3 / one["latency_ms"])
        assert row["throughput_per_s"] == pytest.approx(per_s)
        assert (row["parallelism"] is None) == (kind != "model")


def test_a_graph_is_compared(client: TestClient) -> None:
    graph = {
        "name": "one",
        "dtype": "fp32",
        "inputs": [{"name": "x", "shape": ["batch", 256]}],
        "nodes": [{"name": "y", "op": "linear", "inputs": ["x"], "outputs": [{"shape": ["batch", 512]}]}],
    }
    assert len(ask(client, workload={"kind": "graph", "graph": graph, "batch": 8})["ranking"]) == 3


def test_gpus_without_a_price_come_last_with_a_warning(client: TestClient) -> None:
    gpus = ["rtx-3060", "nvidia-l4", "rtx-4090"]  # no list price ships of these
    rows = ask(client, gpus=gpus, rank_by="cost", prices={"NVIDIA L4": 0.8})["ranking"]
    assert rows[0]["gpu"] == "nvidia-l4" and rows[0]["price_source"] == "request"
    assert [row["cost_usd"] for row in rows[1:]] == [None, None]
    assert all("no price is known" in row["warnings"][-1] for row in rows[1:])
    assert rows[1]["latency_ms"] < rows[2]["latency_ms"]


def test_inline_and_owned_gpus_are_compared_together(client: TestClient) -> None:
    found = ask(client, gpus=[*GPUS, INLINE], prices={"Tomorrow 1": 5.0}, rank_by="energy")["ranking"]
    last = found[-1]
    assert last["gpu"] == "tomorrow-1" and last["cost_usd"] > 0 and last["energy_j"] is None
    assert "no power is known" in last["warnings"][-1]
    assert all(row["power_source"] == "estimated from the load" for row in found[:-1])


def test_a_given_power_has_no_interval(client: TestClient) -> None:
    found = ask(client, powers_w={"nvidia-l4": 60.0})
    row = next(row for row in found["ranking"] if row["gpu"] == "nvidia-l4")
    assert row["energy_j"] == pytest.approx(row["latency_ms"] * 60e-3) and row["power_source"] == "request"
    assert row["energy_interval_j"]["low"] == pytest.approx(row["interval_ms"]["low"] * 60e-3)
    assert any("board power" in note for note in found["notes"])


def test_a_repeated_gpu_is_compared_once(client: TestClient) -> None:
    assert len(ask(client, gpus=["nvidia-l4", "NVIDIA L4", "tesla-t4"])["ranking"]) == 2


def test_nearly_equal_gpus_are_statistically_tied(client: TestClient) -> None:
    rows = {row["gpu"]: row for row in ask(client, gpus=["b300", "gb300", "gtx-titan-x"])["ranking"]}
    assert rows["b300"]["indistinguishable_from"] == ["gb300"] and rows["gb300"]["indistinguishable_from"] == ["b300"]
    assert rows["gtx-titan-x"]["indistinguishable_from"] == [] and not rows["gtx-titan-x"]["pareto"]


def test_all_omits_gpus_that_cannot_run_it(client: TestClient) -> None:
    found = ask(client, workload=LLAMA_70B | {"dtype": "fp8", "batch": 1, "sequence": 16}, gpus="all", max_devices=1)
    assert any("fp8" in one["reason"] for one in found["skipped"])
    fits = [row["memory"]["fits"] for row in found["ranking"]]
    assert fits == sorted(fits, reverse=True) and set(fits) == {True, False}
    assert not any(row["pareto"] for row in found["ranking"] if not row["memory"]["fits"])


def test_networks_that_do_not_fit_are_split(client: TestClient) -> None:
    h100, h200 = sorted(
        ask(client, workload=LLAMA_70B, gpus=["h100-sxm5-80gb", "b300"])["ranking"], key=lambda row: -row["devices"]
    )
    assert h100["gpu"] == "h100-sxm5-80gb" and h100["devices"] > 1 and h100["memory"]["fits"]
    sizes = [h100["parallelism"][name] for name in ("data", "tensor", "pipeline")]
    assert sizes[0] * sizes[1] * sizes[2] == h100["devices"] <= 8
    assert h200["devices"] == 1
    workload = LLAMA_70B | {"parallelism": h100["parallelism"]}
    told = client.post("/predict", json={"workload": workload, "gpu": "h100-sxm5-80gb"}).json()["predictions"][0]
    assert told["latency_ms"] == h100["latency_ms"]


def test_the_criterion_chooses_the_split(client: TestClient) -> None:
    fields = {"workload": LLAMA_70B, "gpus": ["h100-sxm5-80gb"], "prices": {"h100-sxm5-80gb": 3.0}}
    (cheap,) = ask(client, **fields, rank_by="cost")["ranking"]
    (fast,) = ask(client, **fields, rank_by="latency")["ranking"]
    assert cheap["devices"] < fast["devices"] and cheap["cost_usd"] < fast["cost_usd"]
    assert fast["latency_ms"] < cheap["latency_ms"]


def test_more_devices_are_searched_only_on_request(client: TestClient) -> None:
    model = {"kind": "model", "name": "gpt2-large", "batch": 8, "sequence": 512, "dtype": "bf16", "mode": "training"}
    fields: dict[str, Any] = {"workload": model, "gpus": ["h100-sxm5-80gb"], "rank_by": "throughput", "max_devices": 4}
    (alone,) = ask(client, **fields)["ranking"]
    (together,) = ask(client, **fields, search_parallelism=True)["ranking"]
    assert (alone["devices"], together["devices"]) == (1, 4)
    assert together["throughput_per_s"] > 2 * alone["throughput_per_s"]


def test_training_that_fits_only_with_zero(client: TestClient) -> None:
    model = {"kind": "model", "name": "llama-2-7b", "batch": 8, "sequence": 256, "dtype": "bf16", "mode": "training"}
    (found,) = ask(client, workload=model, gpus=["h100-sxm5-80gb"])["ranking"]
    assert found["memory"]["fits"] and found["devices"] > 1


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"rank_by": "beauty"}, ["rank_by"]),
        ({"gpus": []}, ["gpus"]),
        ({"gpus": ["no such"]}, ["gpus", 0]),
        ({"gpus": [INLINE, INLINE | {"sm_count": 80}]}, ["gpus", 1]),
        ({"prices": {"nvidia-l4": -1}}, ["prices", "nvidia-l4"]),
        ({"prices": {"nvidia-l4": 1e9}}, ["prices", "nvidia-l4"]),
        ({"prices": {"no such": 1}}, ["prices", "no such"]),
        ({"prices": {"nvidia-l4": 1, "NVIDIA L4": 2}}, ["prices", "NVIDIA L4"]),
        ({"prices": {"nvidia-l4": "1"}}, ["prices", "nvidia-l4"]),
        ({"powers_w": {"nvidia-l4": -70}}, ["powers_w", "nvidia-l4"]),
        ({"powers_w": {"no such": 70}}, ["powers_w", "no such"]),
        ({"currency": "EUR"}, ["currency"]),
        ({"max_devices": 0}, ["max_devices"]),
        ({"max_devices": 65}, ["max_devices"]),
        ({"coverage": 1.5}, ["coverage"]),
        ({"predictor": "oracle"}, ["predictor"]),
        ({"speed": 1}, ["speed"]),
        ({"workload": {"kind": "operator_table", "op": "memory", "bytes": [8]}}, ["workload", "kind"]),
        ({"workload": {"kind": "dream"}}, ["workload", "kind"]),
        ({"workload": LLAMA_70B | {"batch": 0}}, ["workload", "batch"]),
        ({"workload": LLAMA_70B | {"dtype": "nvfp4"}}, ["workload", "dtype"]),
    ],
)
def test_bad_input_names_the_field(client: TestClient, change: dict[str, Any], loc: list[str | int]) -> None:
    answer = client.post("/compare", json={"workload": OPERATORS, "gpus": GPUS} | change)
    assert answer.status_code in (404, 422), answer.text
    assert loc in [error["loc"] for error in answer.json()["errors"]]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_price_that_is_not_a_number_is_named(client: TestClient, word: str) -> None:
    body = (
        '{"workload": {"kind": "operators", "operators": [{"op": "memory", "bytes": 8}]}, "prices": {"nvidia-l4": %s}}'
    )
    answer = client.post("/compare", content=body % word)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["prices", "nvidia-l4"]


@pytest.mark.parametrize("coverage", [5e-324, 0.8, 1.0 - 2.0**-53])
def test_the_example_of_the_schema_is_answered(client: TestClient, coverage: float) -> None:
    assert client.post("/compare", json=COMPARE_EXAMPLE | {"coverage": coverage}).status_code == 200


def test_measured_power_moves_that_of_its_gpu_alone(client: TestClient) -> None:
    model, gpus = {"kind": "model", "name": "gpt2", "batch": 2, "sequence": 256}, ["tesla-t4", "nvidia-l4"]

    def rows() -> list[dict[str, dict[str, Any]]]:
        each = (ask(client, workload=workload, gpus=gpus)["ranking"] for workload in (OPERATORS, model))
        return [{row["gpu"]: row for row in ranking} for ranking in each]

    before = rows()
    sizes = [2048 + 128 * k for k in range(20)]
    measured = [
        {
            "gpu": "tesla-t4",
            "software": "pytorch-2.1",
            "source": "power meter",
            "latency_ms": 2 * n**3 / 4e12 * 1e3,
            "power_w": 40.0,
            "workload": {"kind": "operator", "op": "linear", "m": n, "n": n, "k": n, "dtype": "fp32"},
        }
        for n in sizes
    ]
    assert client.post("/measurements", json=measured).status_code == 200
    wait_corrected(client)
    after = rows()
    factors = [new["tesla-t4"]["power_w"] / old["tesla-t4"]["power_w"] for old, new in zip(before, after, strict=True)]
    assert factors[0] == pytest.approx(factors[1]) and 40.0 / 70.0 <= factors[0] < 0.95
    for row in after:
        own, other = row["tesla-t4"], row["nvidia-l4"]
        assert own["power_source"] == "measured"
        assert own["energy_j"] == pytest.approx(own["latency_ms"] * own["power_w"] / 1e3)
        assert other["power_source"] == "estimated from the load"
        assert other["energy_interval_j"]["low"] < other["energy_j"] < other["energy_interval_j"]["high"]


@pytest.mark.parametrize("path", ["/compare", "/plan", "/partition", "/predict"])
@pytest.mark.parametrize("body", [rb'{"\ud800": 1}', rb'{"workload": {"\udfff": 1}}'])
def test_a_lone_surrogate_in_a_name_is_rejected(client: TestClient, path: str, body: bytes) -> None:
    answer = client.post(path, content=body)
    assert answer.status_code in (400, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
