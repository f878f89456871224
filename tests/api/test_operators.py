"""POST /predict, kinds operators and operator_table, as in the HTTP contract."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.ops import OPS
from app.wire.operator_forms import FORMS, OPERATOR_TABLE_EXAMPLE, OPERATORS_EXAMPLE
from tests.forked import run_command
from tests.service import PREDICTION_FIELDS

Row = dict[str, Any]
ROWS: list[Row] = OPERATORS_EXAMPLE["workload"]["operators"]
# What a family needs beyond ones.
LIKELY: Row = {"kernel_size": 3, "input_size": 32, "bytes": 1e6, "message_bytes": 1e6, "devices": 8, "head_dim": 64}
GLUE = (
    "add_norm",
    "gated_activation",
    "rotary_cache",
    "sample",
    "attention_mixed",
    "linear_attention_step",
    "quantize",
)
FORWARD_ONLY = ("attention_decode", "network", *GLUE, "expert_dispatch", "expert_combine", "moe_wide")


def ask(client: TestClient, operators: list[Row], **more: Any) -> dict[str, Any]:
    target = {} if "gpus" in more else {"gpu": "nvidia-l4"}
    body = {"workload": {"kind": "operators", "operators": operators}, **target, **more}
    answer = client.post("/predict", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["predictions"][0])


def table(client: TestClient, workload: Row, **more: Any) -> list[dict[str, Any]]:
    target = {} if "gpus" in more else {"gpu": "nvidia-l4"}
    answer = client.post("/predict", json={"workload": {"kind": "operator_table", **workload}, **target, **more})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["predictions"])


def a_row(op: str) -> Row:
    form = FORMS[op]
    needed = {field.name: LIKELY.get(field.name, 8) for field in form.fields if field.required}
    latent = {"latent_dim": 64} if op == "attention_module" else {}
    dtypes = next(known.dtypes for known in OPS if known.name == op)
    usual = "bf16" if "bf16" in dtypes else dtypes[0]
    return {"op": op, **needed, **latent, "dtype": form.default_dtype or usual}


def test_every_field_of_the_contract(client: TestClient) -> None:
    found = ask(client, ROWS)
    assert tuple(found) == PREDICTION_FIELDS
    assert found["interval_ms"]["low"] <= found["latency_ms"] <= found["interval_ms"]["high"]
    assert found["bound"] in ("compute", "memory", "launch", "communication")
    assert found["support"] in ("measured", "interpolated", "extrapolated")
    assert [part["operators"] for part in found["breakdown"]] == [36, 1, 1]
    assert {part["group"] for part in found["breakdown"]} == {"linear", "bmm", "softmax"}
    assert sum(part["share"] for part in found["breakdown"]) == pytest.approx(1)
    assert sum(part["latency_ms"] for part in found["breakdown"]) == pytest.approx(found["latency_ms"])
    # The score matrices of the softmax, read and written: 2 x 81920 x 1024 x 4 B.
    assert found["memory"]["required_bytes"] == 2 * 81920 * 1024 * 4
    assert found["memory"]["fits"] is True


def test_the_roofline_of_a_linear_by_hand(client: TestClient) -> None:
    found = ask(client, ROWS[:1], predictor="roofline")
    peak = client.get("/gpus/nvidia-l4").json()["peak_flops"]["fp32"]
    assert found["latency_ms"] == pytest.approx(36 * 2 * 4096 * 3840 * 1280 / peak * 1e3, rel=1e-9)
    assert found["bound"] == "compute"


def test_repeats_add_up_however_they_are_written(client: TestClient) -> None:
    row = ROWS[1]
    once = ask(client, [row])
    by_count, by_row = ask(client, [row | {"count": 12}]), ask(client, [row] * 12)
    assert by_count["latency_ms"] == pytest.approx(12 * once["latency_ms"])
    assert by_row["latency_ms"] == pytest.approx(by_count["latency_ms"])
    assert by_row["interval_ms"] == pytest.approx(by_count["interval_ms"])
    assert by_row["breakdown"][0]["operators"] == by_count["breakdown"][0]["operators"] == 12


def test_intervals_add_up_within_a_group_and_in_squares_between_groups(client: TestClient) -> None:
    alone = [ask(client, [row]) for row in ROWS]
    together = ask(client, ROWS)
    above = [found["interval_ms"]["high"] - found["latency_ms"] for found in alone]
    high = together["latency_ms"] + math.sqrt(sum(width**2 for width in above))
    assert together["interval_ms"]["high"] == pytest.approx(high)
    same = [ROWS[0], ROWS[0] | {"m": 8192}]
    parts = [ask(client, [row])["interval_ms"]["high"] for row in same]
    assert ask(client, same)["interval_ms"]["high"] == pytest.approx(sum(parts))


def test_the_bound_is_that_of_the_largest_share(client: TestClient) -> None:
    compute, memory = ROWS[0], {"op": "memory", "bytes": 10**12}
    assert ask(client, [compute, memory], predictor="roofline")["bound"] == "memory"
    assert ask(client, [compute, memory | {"bytes": 1}], predictor="roofline")["bound"] == "compute"


def test_detail_has_a_row_per_operator_in_request_order(client: TestClient) -> None:
    found = ask(client, [*ROWS, ROWS[0]], detail=True)
    rows = found["operators"]
    assert [row["op"] for row in rows] == ["linear", "bmm", "softmax", "linear"]
    assert sum(row["latency_ms"] for row in rows) == pytest.approx(found["latency_ms"])
    assert rows[0] == rows[3]
    assert rows[0]["flops"] == 36 * 2 * 4096 * 3840 * 1280
    for row in rows:
        assert row["limit_ms"] <= row["low_ms"] <= row["latency_ms"] <= row["high_ms"]


def test_detail_explains_predictions_of_auto_only(client: TestClient) -> None:
    gemm, _, softmax = (row["explanation"] for row in ask(client, ROWS, detail=True)["operators"])
    latency_ms = ask(client, [ROWS[0] | {"count": 1}])["latency_ms"]
    physics, *learned = gemm["members"]
    correction = gemm["fading"] * sum(member["weight"] * member["log_correction"] for member in learned)
    assert (physics["source"], gemm["corrects"]) == ("physics", "time")
    assert max(physics["latency_ms"] * math.exp(correction), gemm["physics"]["limit_ms"]) == pytest.approx(latency_ms)
    # FLOPs over bytes of 4096 x 3840 x 1280 in FP32.
    intensity = 2 * 4096 * 3840 * 1280 / (4 * (4096 * 1280 + 1280 * 3840 + 4096 * 3840))
    roofline = gemm["roofline"]
    assert roofline["intensity_flop_per_byte"] == pytest.approx(intensity)
    assert roofline["ridge_flop_per_byte"] == pytest.approx(roofline["flop_per_s"] / roofline["dram_bytes_per_s"])
    # The clock that it keeps is learned too: only the datasheet's peak is a bound.
    peak = client.get("/gpus/nvidia-l4").json()["peak_flops"]["fp32"]
    assert 0 < roofline["compute_share"] * roofline["flop_per_s"] <= peak
    # An L4 of 72 W does not keep its boost clock up.
    assert gemm["sustained_clock_hz"] < client.get("/gpus/nvidia-l4").json()["boost_clock_hz"]
    assert gemm["tile"]["blocks"] >= 1
    assert softmax["tile"] is None
    for predictor in ("roofline", "auto"):
        (row,) = ask(client, ROWS[:1], detail=True, predictor=predictor, gpu="h100-sxm5-80gb")["operators"]
        assert ("explanation" in row) == (predictor == "auto")


@pytest.mark.parametrize("op", [op.name for op in OPS[1:]])
@pytest.mark.parametrize("predictor", ["auto", "roofline"])
def test_every_operator_is_predicted(client: TestClient, op: str, predictor: str) -> None:
    for phase in ("forward", "backward")[: 1 + (op not in FORWARD_ONLY)]:
        found = ask(client, [a_row(op) | {"phase": phase}], gpu="h100-sxm5-80gb", predictor=predictor)
        assert 0 < found["interval_ms"]["low"] <= found["latency_ms"] <= found["interval_ms"]["high"] < 1e6
        assert found["predictor"]["name"] == predictor


def test_states_stacks_and_nulls(client: TestClient) -> None:
    row = {"op": "relu", "b": 8, "h": 8, "dtype": "fp32"}
    eager = ask(client, [row | {"software": "pytorch-2.1"}])
    graph = ask(client, [row | {"software": "vllm-0.24"}])
    assert eager["latency_ms"] > graph["latency_ms"]
    assert ask(client, [row | {"phase": None, "count": None, "software": None}]) == ask(client, [row])
    gemm = ROWS[0]
    burst = ask(client, [gemm | {"run_state": "burst"}])["latency_ms"]
    assert burst <= ask(client, [gemm | {"run_state": "sustained"}])["latency_ms"]


def test_several_gpus_in_request_order_and_all_that_can_run_it(client: TestClient) -> None:
    body = {"workload": {"kind": "operators", "operators": ROWS}, "gpus": ["titan-v", "NVIDIA L4", "titan-v"]}
    found = client.post("/predict", json=body).json()["predictions"]
    assert [one["gpu"] for one in found] == ["titan-v", "nvidia-l4", "titan-v"]
    rare = {"kind": "operators", "operators": [ROWS[0] | {"dtype": "nvfp4"}]}
    answer = client.post("/predict", json={"workload": rare, "gpus": "all"}).json()
    told = {one["gpu"] for one in answer["predictions"]}, {one["gpu"] for one in answer["skipped"]}
    assert told[0] and told[1] and not told[0] & told[1]
    assert len(told[0] | told[1]) == len(client.get("/gpus", params={"curated": True}).json()["items"])


def test_an_inline_gpu(client: TestClient) -> None:
    """One that nothing was measured on, as its name would tell."""
    spec = client.get("/gpus/titan-rtx").json()
    renamed = spec | {"id": "my-titan", "name": "my Titan", "aliases": []}
    assert ask(client, ROWS, gpu=renamed)["latency_ms"] == ask(client, ROWS, gpu="titan-rtx")["latency_ms"]


def test_a_workload_that_does_not_fit_is_predicted(client: TestClient) -> None:
    found = ask(client, [{"op": "memory", "bytes": 10**12}])
    assert found["memory"]["fits"] is False
    assert any("does not fit" in words for words in found["warnings"])


def test_columns_are_predicted_as_rows_are(client: TestClient) -> None:
    workload = OPERATOR_TABLE_EXAMPLE["workload"]
    found = table(client, {name: value for name, value in workload.items() if name != "kind"}, gpus=["nvidia-l4"])[0]
    assert list(found) == [
        "gpu",
        "latency_ms",
        "low_ms",
        "high_ms",
        "bound",
        "coverage",
        "predictor",
        "warnings",
        "warning_codes",
    ]
    for k in range(3):
        row = {"op": "linear", "dtype": "bf16", "m": workload["m"][k], "n": 3840, "k": workload["k"][k]}
        alone = ask(client, [row])
        assert found["latency_ms"][k] == pytest.approx(alone["latency_ms"], rel=1e-12)
        assert found["low_ms"][k] == pytest.approx(alone["interval_ms"]["low"], rel=1e-9)
        assert found["high_ms"][k] == pytest.approx(alone["interval_ms"]["high"], rel=1e-9)
        assert found["bound"][k] == alone["bound"]


def test_columns_of_choices_pairs_and_single_cells(client: TestClient) -> None:
    conv = {"op": "conv2d", "b": 8, "in_channels": 3, "out_channels": 64, "input_size": [224, [128, 256]]}
    (found,) = table(client, conv | {"kernel_size": 7, "dtype": ["fp32", "bf16"], "count": [1, 2]})
    rows = [
        conv | {"input_size": 224, "kernel_size": [7, 7], "dtype": "fp32"},
        conv | {"input_size": [128, 256], "kernel_size": 7, "dtype": "bf16", "count": 2},
    ]
    assert found["latency_ms"] == pytest.approx([ask(client, [row])["latency_ms"] for row in rows])
    (one,) = table(client, {"op": "copy", "b": 8, "h": 8})
    assert len(one["latency_ms"]) == 1


def test_a_hundred_thousand_rows(client: TestClient) -> None:
    m = [1 + k % 8192 for k in range(100_000)]
    (found,) = table(client, {"op": "linear", "dtype": "bf16", "m": m, "n": 4096, "k": 4096})
    assert len(found["latency_ms"]) == len(found["bound"]) == 100_000
    assert found["latency_ms"][:10] == found["latency_ms"][8192:8202]


def test_the_command_line_predicts_operators(tmp_path: Any, settings: Any) -> None:
    file = tmp_path / "operators.json"
    file.write_text(json.dumps(OPERATORS_EXAMPLE))
    done = run_command("predict", file, "--gpu", "titan-v", "--json", env=os.environ | settings.environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"][0]["gpu"] == "titan-v"


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_collectives_over_several_nodes_use_the_network(client: TestClient, op: str) -> None:
    sizes = {"op": op, "message_bytes": 2**28, "devices": 16}
    within, apart = (ask(client, [sizes | {"nodes": n}], gpu="h100-sxm5-80gb") for n in (1, 16))
    # A device passes what it holds, or of an all_to_all all but its own part, through an adapter of 25 GB/s.
    assert apart["latency_ms"] > 2**28 * 15 / 16 / 25e9 * 1e3 > 2 * within["latency_ms"]
    assert (apart["bound"], apart["support"]) == ("communication", "extrapolated")
    (column,) = table(client, sizes | {"nodes": [1, 16]}, gpu="h100-sxm5-80gb")
    assert column["latency_ms"] == pytest.approx([within["latency_ms"], apart["latency_ms"]])
    assert column["low_ms"][1] == pytest.approx(apart["interval_ms"]["low"])


@pytest.mark.parametrize("gpu", ["l40s", "h100-sxm5-80gb"])
def test_two_machines_of_eight_take_no_less_than_one(client: TestClient, gpu: str) -> None:
    """However slowly eight cards share what joins them: the network between machines makes that no quicker."""
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        one, two = (
            ask(client, [{"op": op, "message_bytes": 2**24, "dtype": "fp16", "devices": 8 * n, "nodes": n}], gpu=gpu)
            for n in (1, 2)
        )
        assert two["latency_ms"] > one["latency_ms"]


def test_an_unknown_software_stack_gets_a_warning_in_every_format(client: TestClient) -> None:
    row = {"op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "bf16"}
    network = {"kind": "model", "name": "gpt2", "mode": "inference", "batch": 1, "sequence": 128, "dtype": "bf16"}
    for software, words in (("pytroch-2.1", True), ("PyTorch-2.1", False), ("vllm-0.24", False)):
        named = row | {"software": software}
        asked = [
            {"kind": "operators", "operators": [row, named]},
            {"kind": "operator_table", **named, "software": [software, None]},
            network | {"software": software},
        ]
        told = [client.post("/predict", json={"gpu": "h100-sxm5-80gb", "workload": one}).json() for one in asked]
        said = [one["predictions"][0]["warnings"] for one in told]
        batch = client.post("/predict/batch", params={"gpu": "h100-sxm5-80gb"}, json=named).json()
        for warnings in (*said, batch["warnings"]["h100-sxm5-80gb"]):
            assert any(f"software '{software}' is not known here" in one for one in warnings) == words
