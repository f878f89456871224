"""Invalid requests are rejected with a status, the field and what to send instead."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app

Kernel = dict[str, Any]
JSON = "application/json"
NAN, INF = float("nan"), float("inf")


def refused(client: TestClient, body: Any, status: int = 422) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/predict", content=content)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status
    assert all(told[name] for name in ("type", "title", "detail"))
    return dict(told)


def places(told: dict[str, Any]) -> list[str]:
    return [".".join(str(part) for part in error["loc"]) for error in told.get("errors", [])]


@pytest.mark.parametrize(
    "field",
    ["flops", "bytes", "working_set_bytes", "lane_operations", "stride_bytes", "atomic_operations", "atomic_addresses"],
)
@pytest.mark.parametrize("value", [-1, NAN, INF, -INF, 1e300, 10**400, "12", True, [1]])
def test_invalid_counts(client: TestClient, kernel: Kernel, field: str, value: Any) -> None:
    assert places(refused(client, {"gpu": "titan-v", "workload": kernel | {field: value}})) == [f"workload.{field}"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads_per_block", 0),
        ("threads_per_block", -32),
        ("threads_per_block", 2048),
        ("threads_per_block", 10**12),
        ("threads_per_block", 256.5),
        ("blocks", 0),
        ("blocks", 10**30),
        ("registers_per_thread", 256),
        ("registers_per_thread", -1),
        ("shared_memory_per_block", 200_000),
        ("branch_divergence", 1.5),
        ("access_pattern", "zigzag"),
        ("dtype", "fp31"),
        ("name", ""),
        ("name", "x" * 300),
        ("name", "nul\x00"),
        ("name", 7),
        ("size", {"n": -1}),
        ("size", 1024),
        ("measured", {"gpu": "titan-v"}),
    ],
)
def test_invalid_launch_fields(client: TestClient, kernel: Kernel, field: str, value: Any) -> None:
    (place,) = places(refused(client, {"gpu": "titan-v", "workload": kernel | {field: value}}))
    assert place.startswith(f"workload.{field}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads_per_block": 2048}, "at most 1,024 threads per block"),
        ({"shared_memory_per_block": 200_000}, "bytes of shared memory per block"),
        ({"registers_per_thread": 256}, "at most 255 registers per thread"),
        ({"threads_per_block": 1024, "registers_per_thread": 128}, "the register file of titan-v has 65,536"),
        ({"access_pattern": "zigzag"}, "coalesced"),
        ({"dtype": "fp31"}, "valid: bf16"),
        ({"dtype": "nvfp4", "measured": []}, "titan-v does not compute in nvfp4"),
        ({"flops": 0, "bytes": 0}, "both 0"),
        ({"flops": 0.5}, "counts"),
        ({"speed": 1}, "unknown field"),
    ],
)
def test_messages_say_what_to_send(client: TestClient, kernel: Kernel, change: Kernel, said: str) -> None:
    told = refused(client, {"gpu": "titan-v", "workload": kernel | change})
    assert said in json.dumps(told["errors"])


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"gpu": "titan-v"}, "latency_ms"),
        ({"latency_ms": 1}, "gpu"),
        ({"gpu": "titan-v", "latency_ms": 0}, "latency_ms"),
        ({"gpu": "titan-v", "latency_ms": -1}, "latency_ms"),
        ({"gpu": "titan-v", "latency_ms": NAN}, "latency_ms"),
        ({"gpu": "titan-v", "latency_ms": INF}, "latency_ms"),
        ({"gpu": "titan-v", "latency_ms": 1e-9}, "latency_ms"),
        ({"gpu": "titan-v", "latency_ms": 1, "threads_per_block": 0}, "threads_per_block"),
        ({"gpu": "titan-v", "latency_ms": 1, "speed": 1}, "speed"),
        ({"gpu": {"name": "x"}, "latency_ms": 1}, "gpu.sm_count"),
    ],
)
def test_measured_rows(client: TestClient, kernel: Kernel, row: Kernel, place: str) -> None:
    good = {"gpu": "titan-v", "latency_ms": 0.91}
    told = refused(client, {"gpu": "titan-v", "workload": kernel | {"measured": [good, row]}})
    assert f"workload.measured.1.{place}" in places(told)


@pytest.mark.parametrize("field", ["name", "flops", "bytes", "threads_per_block", "blocks", "dtype", "kind"])
def test_missing_fields(client: TestClient, kernel: Kernel, field: str) -> None:
    del kernel[field]
    assert places(refused(client, {"gpu": "titan-v", "workload": kernel})) == [f"workload.{field}"]


def test_all_wrong_fields_are_named_at_once(client: TestClient, kernel: Kernel) -> None:
    wrong = kernel | {"flops": -1, "bytes": NAN, "dtype": "x", "speed": 1, "blocks": "many"}
    told = refused(client, {"gpu": "titan-v", "workload": wrong, "coverage": 2, "extra": 1})
    expected = {"workload.flops", "workload.bytes", "workload.dtype", "workload.speed", "workload.blocks"}
    assert set(places(told)) == expected | {"coverage", "extra"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"gpu": None}, "gpu"),
        ({"gpus": ["titan-v"]}, "gpu"),
        ({"gpu": None, "gpus": []}, "gpus"),
        ({"gpu": None, "gpus": "some"}, "gpus"),
        ({"gpu": None, "gpus": ["titan-v", 3]}, "gpus.1"),
        ({"gpu": ""}, "gpu"),
        ({"gpu": {}}, "gpu.name"),
        ({"gpu": {"name": "x", "sm_count": -1}}, "gpu.sm_count"),
        ({"coverage": 0}, "coverage"),
        ({"coverage": 1}, "coverage"),
        ({"coverage": NAN}, "coverage"),
        ({"predictor": "oracle"}, "predictor"),
        ({"predictor": 3}, "predictor"),
        ({"detail": "yes"}, "detail"),
        ({"workload": None}, "workload"),
        ({"workload": []}, "workload"),
    ],
)
def test_invalid_fields_outside_the_workload(client: TestClient, kernel: Kernel, change: Kernel, place: str) -> None:
    assert place in places(refused(client, {"gpu": "titan-v", "workload": kernel} | change))


@pytest.mark.parametrize("kind", ["models", "Graph", "", 7, None])
def test_unknown_kinds(client: TestClient, kind: Any) -> None:
    told = refused(client, {"gpu": "titan-v", "workload": {"kind": kind, "operators": []}})
    assert places(told) == ["workload.kind"]
    assert "known are: kernel" in told["detail"]


@pytest.mark.parametrize("name", ["titan-w", "RTX 4071", "x" * 200, "\ud7ff", "' OR 1=1 --"])
def test_unknown_gpus_list_the_closest_names(client: TestClient, kernel: Kernel, name: str) -> None:
    told = refused(client, {"gpu": name, "workload": kernel}, 404)
    assert places(told) == ["gpu"]
    if name == "titan-w":
        assert "titan-v" in told["detail"]


def test_an_unknown_gpu_among_measured_rows(client: TestClient, kernel: Kernel) -> None:
    kernel["measured"] = [{"gpu": "titan-w", "latency_ms": 1}]
    assert places(refused(client, {"gpu": "titan-v", "workload": kernel}, 404)) == ["workload.measured.0.gpu"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null x", b"\xff\xfe", b"[" * 200_000, b'{"gpu": "\xff"}', b"{'gpu': 1}", b'{"gpu": "\\ud800"}'],
    ids=["empty", "open", "trailing", "not utf-8", "deep", "bad string", "single quotes", "lone surrogate"],
)
def test_bodies_that_are_not_json(client: TestClient, body: bytes) -> None:
    answer = client.post("/predict", content=body)
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"null", b"[]", b"3", b'"text"', b"{}"])
def test_json_of_other_types(client: TestClient, body: bytes) -> None:
    refused(client, body)


def test_a_specification_nested_too_deeply(client: TestClient, kernel: Kernel) -> None:
    head = json.dumps({"workload": kernel})[:-1].encode()
    told = refused(client, head + b', "gpu": ' + b'{"note": ' * 900 + b"1" + b"}" * 901, 400)
    assert "nested too deeply" in told["detail"]


READERS_OF_JSON = (
    "/predict",
    "/predict/batch?gpu=nvidia-l4",
    "/compare",
    "/plan",
    "/partition",
    "/gpus",
    "/gpus/nvidia-l4/plan",
    "/graphs",
    "/measurements",
    "/prices",
    "/retrain",
    "/keys",
    "/scheduler/filter",
    "/scheduler/prioritize",
)


@pytest.mark.parametrize("path", READERS_OF_JSON)
@pytest.mark.parametrize("depth", [101, 400, 600])
def test_bodies_nested_too_deeply(client: TestClient, path: str, depth: int) -> None:
    told = client.post(path, content=b'{"a": ' * depth + b"1" + b"}" * depth, headers={"content-type": JSON})
    assert (told.status_code, "nested too deeply" in told.json()["detail"]) == (400, True), told.text


@pytest.mark.parametrize("path", READERS_OF_JSON)
def test_duplicate_keys_are_rejected(client: TestClient, path: str) -> None:
    told = client.post(path, content=b'{"a": {"gpu": "nvidia-l4", "gpu": "l40s"}}', headers={"content-type": JSON})
    assert told.status_code == 400, told.text
    assert told.json()["errors"] == [{"loc": ["a", "gpu"], "msg": "appears more than once"}]


def test_a_duplicate_key_in_a_valid_request_is_rejected(client: TestClient, kernel: Kernel) -> None:
    head = json.dumps({"gpu": "titan-v", "workload": kernel})[:-1].encode()
    assert client.post("/predict", content=head + b"}").status_code == 200
    assert places(refused(client, head + b', "gpu": "titan-v"}', 400)) == ["gpu"]


def test_json_in_other_than_utf_8(client: TestClient) -> None:
    told = client.patch("/gpus/nvidia-l4", content="{}".encode("utf-16"))
    assert (told.status_code, told.json()["title"]) == (400, "Malformed body")


@pytest.fixture(scope="module")
def narrow(settings: Settings) -> Iterator[TestClient]:
    """The application with room for 10,000 bytes."""
    app = create_app(dataclasses.replace(settings, max_body_bytes=10_000))
    with TestClient(app, raise_server_exceptions=False) as running:
        yield running


PATHS = ("/predict", "/gpus", "/retrain", "/measurements")


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_the_limit_by_content_length_is_413(narrow: TestClient, path: str) -> None:
    answer = narrow.post(path, content=b" " * 10_001)
    assert (answer.status_code, answer.json()["status"]) == (413, 413)
    assert "over 10,000 bytes" in answer.json()["detail"]


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_the_limit_in_chunks_is_413(narrow: TestClient, path: str) -> None:
    answer = narrow.post(path, content=(b" " * 1000 for _ in range(11)))
    assert (answer.status_code, answer.json()["status"]) == (413, 413)


def test_chunks_within_the_limit_are_read(narrow: TestClient, kernel: Kernel) -> None:
    body = json.dumps({"gpu": "titan-v", "workload": kernel}).encode()
    answer = narrow.post("/predict", content=(body[k : k + 100] for k in range(0, len(body), 100)))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/predict", 405), ("DELETE", "/gpus", 405), ("PUT", "/gpus/titan-v", 405)],
)
def test_unknown_paths_and_methods(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (status == 405) == ("allow" in answer.headers)


@pytest.mark.parametrize("path", ["/healthz", "/gpus/nvidia-l4", "/", "/gpus/oracle"])
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
    assert not head.content


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/jobs?state=failed", "state"),
        ("/gpus?vendor=AMD", "vendor"),
        ("/gpus/nvidia-l4/plan?rows=5", "rows"),
        ("/gpus/nvidia-l4/plan?count=5&count=6", "count"),
        ("/measurements?limit=1&limit=2", "limit"),
    ],
)
def test_unknown_query_parameters_are_named(client: TestClient, path: str, name: str) -> None:
    told = client.get(path)
    assert told.status_code == 422, told.text
    assert told.json()["errors"][0]["loc"] == [name]
    assert client.get("/gpus/nvidia-l4/plan?op=linear&op=bmm&count=1").status_code == 200


def test_probes_accept_unknown_query_parameters(client: TestClient) -> None:
    assert client.get("/healthz?probe=1").status_code == 200


@pytest.mark.parametrize("path", ["/predict", "/predict/batch?gpu=nvidia-l4", "/measurements"])
def test_compressed_bodies_are_refused_by_name(client: TestClient, path: str) -> None:
    told = client.post(path, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert told.status_code == 415
    assert "Content-Encoding" in told.json()["detail"]


def test_a_rollback_reads_no_body(client: TestClient) -> None:
    told = client.post("/predictors/auto/rollback", json={"gpu": "nvidia-l4"})
    assert told.status_code == 422
    assert "?gpu=" in told.json()["detail"]


@pytest.mark.parametrize("query", ["", "?gpu=nvidia-l4"])
@pytest.mark.parametrize("name", ["oracle", "%00"])
def test_a_rollback_of_no_predictor(client: TestClient, name: str, query: str) -> None:
    told = client.post(f"/predictors/{name}/rollback{query}")
    assert told.status_code == 422, told.text
    assert "known: auto" in told.json()["detail"]
