"""Plans of measurements over HTTP: for operators, a model or a workload, and predictions after measuring."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.service import wait_corrected

GPU = "rtx-4080"
OPERATORS = {
    "kind": "operators",
    "operators": [
        {"op": "linear", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"},
        {"op": "softmax", "b": 4096, "h": 4096, "dtype": "fp32", "count": 8},
    ],
}


def plan(client: TestClient, gpu: str = GPU, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/gpus/{gpu}/plan", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_expected_error_falls_with_each_measurement_most_with_the_first(client: TestClient) -> None:
    found = plan(client, count=12, op="linear", dtype="bf16")
    gains = [row["expected_gain"] for row in found["measurements"]]
    assert len(gains) == 12
    assert all(gain["error_after"] < gain["error_before"] for gain in gains)
    assert [gain["error_after"] for gain in gains[:-1]] == [gain["error_before"] for gain in gains[1:]]
    assert gains[0]["error_before"] - gains[0]["error_after"] > gains[-1]["error_before"] - gains[-1]["error_after"]
    now, after = found["interval_now"], found["interval_after"]
    assert now["low_ms"] < after["low_ms"] < found["latency_ms"] < after["high_ms"] < now["high_ms"]


def test_planned_rows_are_valid_requests_and_distinct(client: TestClient) -> None:
    rows = [row["workload"] for row in plan(client, count=40)["measurements"]]
    assert {row["kind"] for row in rows} == {"operator"}
    assert len({str(sorted(row.items())) for row in rows}) == 40
    operators = [{name: value for name, value in row.items() if name != "kind"} for row in rows]
    body = {"gpu": GPU, "workload": {"kind": "operators", "operators": operators}}
    client.post("/predict", json=body).raise_for_status()


def test_a_workload_is_measured_where_it_spends_its_time(client: TestClient) -> None:
    body = {"workload": OPERATORS, "count": 2}
    found = client.post(f"/gpus/{GPU}/plan", json=body).raise_for_status().json()
    assert {row["workload"]["op"] for row in found["measurements"]} == {"linear", "softmax"}
    model = plan(client, count=12, model="resnet50", batch=16)
    planned = [row["workload"]["op"] for row in model["measurements"]]
    assert planned[0] == "conv2d"  # which takes most of the time; how many follow depends on their intervals
    assert "batch_norm" in planned
    assert all(row["estimated_ms"] > 0 for row in model["measurements"])
    gains = [row["expected_gain"] for row in model["measurements"]]
    left = [gains[0]["error_before"], *(gain["error_after"] for gain in gains)]
    assert left[:-1] == [gain["error_before"] for gain in gains]  # each narrows what those before it leave
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == len(left)


def test_a_row_that_is_also_a_common_shape_is_planned_once(client: TestClient) -> None:
    workload = {"kind": "operators", "operators": [{"op": "softmax", "b": 512, "h": 512, "dtype": "fp32"}]}
    usual = [row["workload"] for row in plan(client, count=256, op="softmax", dtype="fp32")["measurements"]]
    assert {**workload["operators"][0], "kind": "operator"} in usual
    found = client.post(f"/gpus/{GPU}/plan", json={"workload": workload, "count": 256}).raise_for_status().json()
    rows = [str(sorted(row["workload"].items())) for row in found["measurements"]]
    assert len(rows) == len(set(rows)) > 1


def test_dropped_candidate_sizes_leave_a_valid_plan(client: TestClient) -> None:
    pool = {"op": "avg_pool2d", "b": 1, "channels": 1, "input_size": 1, "kernel_size": 1, "dtype": "fp32"}
    body = {"workload": {"kind": "operators", "operators": [pool]}, "count": 3}
    found = client.post(f"/gpus/{GPU}/plan", json=body).raise_for_status().json()
    assert found["interval_after"]["low_ms"] > found["interval_now"]["low_ms"]
    assert all(row["expected_gain"]["error_after"] > 0 for row in found["measurements"])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("count=0", "count"),
        ("count=257", "count"),
        ("op=nope", "unknown operator 'nope'"),
        ("op=recurrent", "no usual shapes are known for 'recurrent'"),
        ("dtype=fp33", "'fp33' is unknown"),
        ("op=linear&dtype=nvfp4", "supports none of these operators in nvfp4"),
        ("model=nope", "unknown network 'nope'"),
        ("mode=training&batch=2", "mode is only valid with model"),
        ("model=resnet50&op=linear", "op cannot be combined with model"),
        ("model=gpt2", "tokens per sequence are missing"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient, query: str, words: str) -> None:
    refused = client.get(f"/gpus/{GPU}/plan?{query}")
    assert refused.status_code == 422, refused.text
    assert words in refused.text


def test_other_kinds_and_unknown_gpus_are_refused(client: TestClient) -> None:
    assert client.get("/gpus/no-such-card/plan").status_code == 404
    table = {"kind": "operator_table", "op": "linear", "dtype": "bf16", "m": 1, "n": 1, "k": 1}
    refused = client.post(f"/gpus/{GPU}/plan", json={"workload": table})
    assert (refused.status_code, "send operators, model or graph" in refused.text) == (422, True)
    assert client.post(f"/gpus/{GPU}/plan", json={"workload": OPERATORS, "count": 0}).status_code == 422
    eight = {"op": "linear", "m": 8, "n": 8, "k": 8, "dtype": "nvfp4"}
    lacking = client.post(f"/gpus/{GPU}/plan", json={"workload": {"kind": "operators", "operators": [eight]}})
    assert (lacking.status_code, "does not compute in nvfp4" in lacking.text) == (422, True)


@pytest.mark.parametrize("state", [{"phase": "backward"}, {"run_state": "burst"}])
def test_an_empty_plan_says_why(client: TestClient, state: dict[str, str]) -> None:
    row = {"op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "fp32", **state}
    body = {"workload": {"kind": "operators", "operators": [row]}}
    found = client.post(f"/gpus/{GPU}/plan", json=body).raise_for_status().json()
    assert (found["measurements"], "do not correct other operators" in found["notes"][0]) == ([], True)


def test_dtypes_measured_on_a_gpu_are_planned_even_if_its_datasheet_lacks_them(client: TestClient) -> None:
    """An Arc B60 has no FP8 units and runs FP8 all the same: predictions answer, and so do plans."""
    eight = {"op": "linear", "m": 512, "n": 4096, "k": 4096, "dtype": "fp8"}
    workload = {"kind": "operators", "operators": [eight]}
    client.post("/predict", json={"gpu": "arc-pro-b60", "workload": workload}).raise_for_status()
    client.post("/gpus/arc-pro-b60/plan", json={"workload": workload}).raise_for_status()
    plan(client, "arc-pro-b60", op="linear", dtype="fp8")


def test_measured_rows_are_not_planned_again(client: TestClient) -> None:
    """All of the planned rows take twice as long as thought: so do the others then, without any training."""
    card = {"count": 16, "op": "linear", "dtype": "fp32"}
    other = {"op": "linear", "m": 1536, "n": 3072, "k": 1536, "dtype": "fp32"}
    ask = {"gpu": "rtx-3090", "workload": {"kind": "operators", "operators": [other]}}

    def answer() -> dict[str, Any]:
        found: dict[str, Any] = client.post("/predict", json=ask).raise_for_status().json()["predictions"][0]
        return found

    before, first = answer(), plan(client, "rtx-3090", **card)
    rows = [
        {
            "gpu": "rtx-3090",
            "software": "pytorch-2.5",
            "source": "made up",
            "latency_ms": 2.0 * row["estimated_ms"],
            "workload": row["workload"],
        }
        for row in first["measurements"]
    ]
    client.post("/measurements", json=rows).raise_for_status()
    wait_corrected(client)
    second, after = plan(client, "rtx-3090", **card), answer()
    assert (first["measured"], second["measured"]) == (0, 16)
    known = [row["workload"] for row in rows]
    assert not [row for row in second["measurements"] if row["workload"] in known]
    assert after["latency_ms"] == pytest.approx(2.0 * before["latency_ms"], rel=0.15)
    left, right = (found["measurements"][0]["expected_gain"]["error_before"] for found in (first, second))
    assert right < left
