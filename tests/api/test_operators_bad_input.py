"""Invalid operators are rejected with a status, the field and row, and what to send instead."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app
from app.ops import OPS

NAN, INF = float("nan"), float("inf")
LINEAR: dict[str, Any] = {"op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "fp32"}
HEADS: dict[str, Any] = {"op": "attention_prefill", "batch": 1, "head_dim": 64, "context_length": 64, "dtype": "fp16"}
SMALL = 1000


def refused(client: TestClient, workload: Any, status: int = 422, **more: Any) -> dict[str, Any]:
    body = {"gpu": "nvidia-l4", "workload": workload, **more}
    answer = client.post("/predict", content=json.dumps(body).encode())
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return dict(answer.json())


def places(told: dict[str, Any]) -> list[str]:
    return [".".join(str(part) for part in error["loc"]) for error in told.get("errors", [])]


def rows(*operators: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "operators", "operators": list(operators)}


def columns(**fields: Any) -> dict[str, Any]:
    return {"kind": "operator_table", **LINEAR, **fields}


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, INF, 2**41, 10**30, 10**400, 1e300, "64", True, [64]])
def test_dimensions_of_a_row(client: TestClient, value: Any) -> None:
    assert places(refused(client, rows(LINEAR, LINEAR | {"n": value}))) == ["workload.operators.1.n"]


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, INF, 2**41, 10**30, 1e300, "64", True, [64]])
def test_dimensions_in_a_column(client: TestClient, value: Any) -> None:
    (place,) = places(refused(client, columns(m=[64, 64, value])))
    assert place in ("workload.m.2", "workload.m")  # a list in a column is no cell at all


@pytest.mark.parametrize("value", [0, -1, 1.5, 2**41])
def test_a_single_cell_for_all_rows_has_no_row(client: TestClient, value: Any) -> None:
    assert places(refused(client, columns(m=[64, 64], n=value))) == ["workload.n"]


def test_all_errors_are_named_at_once(client: TestClient) -> None:
    told = refused(client, columns(m=[64, 0, NAN], k=[-1, 64, 64], dtype=["fp32", "fp31", "fp32"]))
    assert sorted(places(told)) == ["workload.dtype.1", "workload.k.0", "workload.m.1", "workload.m.2"]
    told = refused(client, rows(LINEAR | {"m": 0}, LINEAR, LINEAR | {"k": 2.5}))
    assert places(told) == ["workload.operators.0.m", "workload.operators.2.k"]


def test_all_unknown_operators_are_named_and_memory_is_suggested(client: TestClient) -> None:
    told = refused(client, rows({"op": "warp", "x": 1}, LINEAR, {"op": 7}, {"m": 1}))
    assert places(told) == [f"workload.operators.{k}.op" for k in (0, 2, 3)]
    assert "'warp'" in told["errors"][0]["msg"]
    assert "memory" in told["errors"][0]["msg"]
    assert all(op.name in told["errors"][0]["msg"] for op in OPS[1:])
    told = refused(client, columns(op="warp"))
    assert places(told) == ["workload.op"]
    assert "memory" in told["detail"]


def test_fields_of_another_operator(client: TestClient) -> None:
    assert places(refused(client, rows(LINEAR | {"h": 8}))) == ["workload.operators.0.h"]
    assert places(refused(client, columns(h=[8]))) == ["workload.h.0"]


def test_missing_fields(client: TestClient) -> None:
    bare = {name: value for name, value in LINEAR.items() if name not in ("k", "dtype")}
    assert places(refused(client, rows(bare))) == [f"workload.operators.0.{name}" for name in ("k", "dtype")]
    assert places(refused(client, {"kind": "operator_table", **bare, "dtype": "fp32"})) == ["workload.k"]
    assert places(refused(client, {"kind": "operator_table", **bare, "k": 1})) == ["workload.dtype"]
    assert places(refused(client, columns(m=[64, None]))) == ["workload.m.1"]


def test_invalid_choices(client: TestClient) -> None:
    for field, value in [
        ("dtype", "fp31"),
        ("phase", "sideways"),
        ("run_state", "hot"),
        ("software", ""),
        ("phase", 1),
    ]:
        assert places(refused(client, rows(LINEAR | {field: value}))) == [f"workload.operators.0.{field}"]
    for field, value in [("dtype", "fp31"), ("phase", "sideways"), ("run_state", "hot")]:
        told = refused(client, columns(m=[64, 64], **{field: [None if field != "dtype" else "fp32", value]}))
        assert places(told) == [f"workload.{field}.1"]
        assert "valid" in told["errors"][0]["msg"]


def test_an_invalid_choice_lists_the_choices_of_the_operator(client: TestClient) -> None:
    product = {"op": "bmm", "b": 2, **{name: LINEAR[name] for name in "mnk"}}
    told = refused(client, rows(product | {"dtype": "int4_wo", "phase": "sideways"}))
    said = {error["loc"][-1]: error["msg"].partition("valid: ")[2].split(", ") for error in told["errors"]}
    assert "bf16" in said["dtype"] and "int4_wo" not in said["dtype"]
    assert said["phase"] == ["backward", "forward"]
    told = refused(client, rows({"op": "moe", "dtype": "fp31"}))
    assert "int4_wo" in told["errors"][0]["msg"]


@pytest.mark.parametrize("value", [0, -1, 1e30, NAN, "64"])
def test_a_wrong_field_is_not_reported_as_missing(client: TestClient, value: Any) -> None:
    assert places(refused(client, rows({"op": "memory", "bytes": value}))) == ["workload.operators.0.bytes"]


def test_a_dtype_that_the_gpu_lacks(client: TestClient) -> None:
    told = refused(client, rows(LINEAR, LINEAR | {"dtype": "nvfp4"}))
    assert places(told) == ["workload.operators.1.dtype"]
    assert "nvidia-l4" in told["detail"]
    assert places(refused(client, columns(m=[64, 64], dtype=["fp32", "nvfp4"]))) == ["workload.dtype.1"]
    assert places(refused(client, columns(dtype="nvfp4"))) == ["workload.dtype"]


def test_heads_that_kv_heads_do_not_divide(client: TestClient) -> None:
    told = refused(client, rows(LINEAR, HEADS | {"heads": 7, "kv_heads": 3}))
    assert places(told) == ["workload.operators.1.kv_heads"]
    table = {"kind": "operator_table", **HEADS, "heads": [8, 7], "kv_heads": [2, 3]}
    assert places(refused(client, table)) == ["workload.kv_heads.1"]


def test_rules_between_fields_name_the_field_as_requests_spell_it(client: TestClient) -> None:
    decode = HEADS | {"op": "attention_decode", "heads": 8, "phase": "backward"}
    assert places(refused(client, rows(decode))) == ["workload.operators.0.phase"]
    assert places(refused(client, {"kind": "operator_table", **decode})) == ["workload.phase"]


def test_columns_of_unequal_length(client: TestClient) -> None:
    assert places(refused(client, columns(m=[1, 2, 3], n=[1, 2]))) == ["workload.n"]
    assert places(refused(client, columns(m=[1, 2, 3], n=[1]))) == ["workload.n"]
    assert places(refused(client, columns(m=[]))) == ["workload.m"]


def test_empty_lists_and_wrong_shapes(client: TestClient) -> None:
    assert places(refused(client, rows())) == ["workload.operators"]
    assert places(refused(client, {"kind": "operators"})) == ["workload.operators"]
    assert places(refused(client, {"kind": "operators", "operators": 3})) == ["workload.operators"]
    assert places(refused(client, rows(LINEAR) | {"x": 1})) == ["workload.x"]
    assert places(refused(client, {"kind": "operator_table"})) == ["workload.op"]
    assert places(refused(client, {"kind": "model"})) == ["workload.config"]
    assert places(refused(client, {"kind": "zigzag"})) == ["workload.kind"]


@pytest.mark.parametrize("predictor", ["forest", "efficiency", "ridge", "no-such"])
def test_predictors_of_kernels_only_are_rejected(client: TestClient, predictor: str) -> None:
    for workload in (rows(LINEAR), columns()):
        told = refused(client, workload, predictor=predictor)
        assert places(told) == ["predictor"]
        assert "auto" in told["detail"] and "roofline" in told["detail"]


def test_an_unknown_gpu(client: TestClient) -> None:
    assert places(refused(client, rows(LINEAR), 404, gpu="h1000")) == ["gpu"]
    assert places(refused(client, columns(), 404, gpu="h1000")) == ["gpu"]


def test_more_rows_than_the_limit(settings: Settings) -> None:
    small = dataclasses.replace(settings, max_batch_rows=SMALL)
    with TestClient(create_app(small)) as client:
        for workload in (rows(*[LINEAR] * (SMALL + 1)), columns(m=[64] * (SMALL + 1))):
            assert "1,000" in refused(client, workload, 413)["detail"]
        body = {"workload": columns(m=[64] * SMALL), "gpus": ["nvidia-l4", "titan-v"]}
        assert client.post("/predict", json=body).status_code == 413
        body = {"workload": columns(m=[64] * SMALL), "gpu": "nvidia-l4"}
        assert client.post("/predict", json=body).status_code == 200
