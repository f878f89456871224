"""POST /predict/batch in its three formats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from httpx import Response

from app.config import Settings
from app.main import create_app
from app.wire.operator_forms import BATCH_EXAMPLE

ARROW, PARQUET = "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"
ROWS: list[dict[str, Any]] = [
    {"op": "linear", "m": 4096, "n": 3840, "k": 1280, "dtype": "bf16"},
    {"op": "softmax", "b": 81920, "h": 1024, "dtype": "fp32", "software": "pytorch-2.1"},
    {"op": "linear", "m": 1, "n": 512, "k": 512, "dtype": "fp32", "phase": "backward", "count": 3},
    {"op": "all_reduce", "message_bytes": 2**20, "devices": 8},
]
NAMES = ("op", "m", "n", "k", "b", "h", "dtype", "software", "phase", "count", "message_bytes", "devices")
TABLE = pa.table({name: [row.get(name) for row in ROWS] for name in NAMES})


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(sink.getvalue())


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


FORMS = [(stream, ARROW), (parquet, PARQUET)]
forms = pytest.mark.parametrize(("write", "media"), FORMS, ids=["arrow", "parquet"])
Write = Callable[[pa.Table], bytes]


def send(client: TestClient, body: bytes, media: str, **query: Any) -> Response:
    return client.post(
        "/predict/batch", params={"gpu": "h100-sxm5-80gb"} | query, content=body, headers={"content-type": media}
    )


def read(answer: Response) -> pa.Table:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == ARROW:
        return pa.ipc.open_stream(answer.content).read_all()
    return pq.read_table(pa.BufferReader(answer.content))


def refused(answer: Response, status: int = 422) -> list[str]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return [".".join(str(part) for part in error["loc"]) for error in answer.json().get("errors", [])]


def as_json(client: TestClient, columns: Any, **query: Any) -> Response:
    return send(client, json.dumps(columns).encode(), "application/json", **query)


def test_json_columns_are_predicted_as_rows_are(client: TestClient) -> None:
    found = as_json(client, TABLE.to_pydict()).json()
    assert list(found) == [
        "latency_ms",
        "low_ms",
        "high_ms",
        "bound",
        "coverage",
        "predictors",
        "warnings",
        "warning_codes",
    ]
    for k, row in enumerate(ROWS):
        body = {"gpu": "h100-sxm5-80gb", "workload": {"kind": "operators", "operators": [row]}}
        alone = client.post("/predict", json=body).json()["predictions"][0]
        assert found["latency_ms"][k] == pytest.approx(alone["latency_ms"], rel=1e-12)
        assert found["low_ms"][k] == pytest.approx(alone["interval_ms"]["low"], rel=1e-9)
        assert found["high_ms"][k] == pytest.approx(alone["interval_ms"]["high"], rel=1e-9)
        assert found["bound"][k] == alone["bound"]


@forms
def test_files_are_predicted_as_json_is(client: TestClient, write: Write, media: str) -> None:
    expected = as_json(client, TABLE.to_pydict()).json()
    answer = send(client, write(TABLE), media)
    assert answer.headers["content-type"] == media
    found = read(answer)
    assert found.column_names == ["latency_ms", "low_ms", "high_ms", "bound"]
    assert {name: found.column(name).to_pylist() for name in found.column_names} == {
        name: expected[name] for name in found.column_names
    }
    told = json.loads(found.schema.metadata[b"gpucast"])
    assert told == {name: expected[name] for name in ("coverage", "predictors", "warnings", "warning_codes")}


@forms
def test_a_column_of_gpus(client: TestClient, write: Write, media: str) -> None:
    gpus = ["titan-v", None, "NVIDIA L4", None]
    rows = TABLE.set_column(6, "dtype", pa.array(["fp32"] * 4)).append_column("gpu", pa.array(gpus))
    found = read(send(client, write(rows), media))
    for k, gpu in enumerate(gpus):
        alone = read(send(client, write(rows.drop(["gpu"]).slice(k, 1)), media, gpu=gpu or "h100-sxm5-80gb"))
        assert found.slice(k, 1).to_pylist() == alone.to_pylist()


@forms
def test_pairs_choices_and_narrow_types(client: TestClient, write: Write, media: str) -> None:
    fields = {
        "op": pa.array(["conv2d", "conv2d"]).dictionary_encode(),
        "dtype": pa.array(["fp32", "bf16"], pa.large_string()),
        "b": pa.array([8, 16], pa.int8()),
        "in_channels": pa.array([3, 3], pa.uint16()),
        "out_channels": pa.array([64.0, 64.0], pa.float32()),
        "kernel_size": pa.array([[7, 7], [3, 5]], pa.list_(pa.int32(), 2)),
        "input_size": pa.array([[224, 224], [32, 48]]),
        "stride": pa.array([None, [2, 2]], pa.list_(pa.int64())),
        "groups": pa.nulls(2),
    }
    found = read(send(client, write(pa.table(fields)), media))
    columns = {name: array.to_pylist() for name, array in fields.items()}
    assert found.column("latency_ms").to_pylist() == as_json(client, columns).json()["latency_ms"]


@forms
def test_dictionaries_of_numbers(client: TestClient, write: Write, media: str) -> None:
    encoded = TABLE.set_column(NAMES.index("m"), "m", TABLE["m"].dictionary_encode())
    assert read(send(client, write(encoded), media)).equals(read(send(client, write(TABLE), media)))


def test_null_values_in_a_dictionary_are_empty_cells(client: TestClient) -> None:
    """A cell may be empty by the word that its index leads to."""
    names = pa.array(["nvidia-l4", None])
    rows = {"op": ["relu"] * 2, "b": [8] * 2, "h": [8] * 2, "dtype": ["fp32"] * 2}
    led = pa.table(rows | {"gpu": pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), names)})
    assert read(send(client, stream(led), ARROW)).equals(
        read(send(client, stream(pa.table(rows | {"gpu": names})), ARROW))
    )


def test_concatenated_streams_are_rejected(client: TestClient) -> None:
    answer = send(client, stream(TABLE) * 2, ARROW)
    refused(answer, 400)
    assert "one stream at a time" in answer.json()["detail"]


@forms
@pytest.mark.parametrize(
    ("name", "column", "place"),
    [
        ("m", ["4096", None, "1", None], "m"),
        ("m", [True, None, False, None], "m"),
        ("m", [[1, 1], None, [1, 1], None], "m"),
        ("op", [1, 2, 3, 4], "op"),
        ("dtype", [1.5, 1.5, 1.5, None], "dtype"),
        ("m", [4096.5, None, 1, None], "m.0"),
        ("m", [4096, None, float("nan"), None], "m.2"),
        ("m", [4096, None, None, None], "m.2"),
        ("m", [4096, 8, 1, None], "m.1"),
        ("m", [4096, None, 2**60, None], "m.2"),
        ("m", [0, None, 1, None], "m.0"),
        ("op", ["linear", "soft", "linear", "all_reduce"], "op.1"),
        ("op", ["linear", None, "linear", "all_reduce"], "op.1"),
        ("dtype", ["bf16", "fp31", "fp32", None], "dtype.1"),
        ("dtype", ["bf16", None, "fp32", None], "dtype.1"),
        ("dtype", ["nvfp4", "fp32", "fp32", None], "dtype.0"),
        ("phase", [None, None, "sideways", None], "phase.2"),
        ("unheard", [1, 1, 1, 1], "unheard"),
    ],
)
def test_invalid_columns(
    client: TestClient, write: Write, media: str, name: str, column: list[Any], place: str
) -> None:
    kept = TABLE.drop([name]) if name in NAMES else TABLE
    assert refused(send(client, write(kept.append_column(name, pa.array(column))), media)) == [place]


def test_invalid_json(client: TestClient) -> None:
    assert refused(as_json(client, {})) == ["op"]
    assert refused(as_json(client, [])) == [""]
    assert refused(send(client, b'{"op": "linear"', "application/json"), 400) == []
    assert refused(as_json(client, BATCH_EXAMPLE | {"m": [1]})) == ["m"]
    assert refused(as_json(client, BATCH_EXAMPLE | {"m": [float("nan"), None]})) == ["m.0"]
    assert refused(as_json(client, BATCH_EXAMPLE | {"m": ["1", None]})) == ["m.0"]
    assert refused(as_json(client, BATCH_EXAMPLE | {"zz": 1})) == ["zz"]
    assert refused(as_json(client, BATCH_EXAMPLE | {"op": ["linear", "warp"]})) == ["op.1"]
    assert refused(as_json(client, BATCH_EXAMPLE | {"gpu": ["h1000", None]}), 404) == ["gpu.0"]
    assert refused(as_json(client, BATCH_EXAMPLE, gpu="h1000"), 404) == ["gpu"]
    assert refused(as_json(client, BATCH_EXAMPLE, predictor="forest")) == ["predictor"]
    assert refused(as_json(client, BATCH_EXAMPLE, coverage=1.5)) == ["coverage"]
    without = client.post("/predict/batch", json=BATCH_EXAMPLE)
    assert refused(without) == ["gpu"]


@forms
def test_bodies_that_are_not_files(client: TestClient, write: Write, media: str) -> None:
    whole = write(TABLE)
    for body in (b"", b"junk", whole[: len(whole) // 2], whole[::-1], json.dumps(BATCH_EXAMPLE).encode()):
        refused(send(client, body, media), 400)
    rng = np.random.default_rng(7)
    for _ in range(200):
        bent = np.frombuffer(whole, dtype=np.uint8).copy()
        bent[rng.integers(0, len(bent), 3)] ^= rng.integers(1, 256, 3, dtype=np.uint8)
        assert send(client, bent.tobytes(), media).status_code in (200, 400, 404, 413, 422)


@forms
def test_no_rows(client: TestClient, write: Write, media: str) -> None:
    assert refused(send(client, write(TABLE.slice(0, 0)), media))


def test_other_media(client: TestClient) -> None:
    answer = send(client, b"op\nlinear\n", "text/csv")
    refused(answer, 415)
    assert ARROW in answer.json()["detail"]


def test_more_rows_than_the_limit(settings: Settings) -> None:
    many = pa.table({"op": ["relu"] * 1001, "b": [8] * 1001, "h": [8] * 1001, "dtype": ["fp32"] * 1001})
    with TestClient(create_app(dataclasses.replace(settings, max_batch_rows=1000))) as client:
        bodies = [(json.dumps(many.to_pydict()).encode(), "application/json")]
        for body, media in [*bodies, *((write(many), media) for write, media in FORMS)]:
            answer = send(client, body, media)
            refused(answer, 413)
            assert "1,000" in answer.json()["detail"] or "1000" in answer.json()["detail"]


def test_many_rows_at_once(client: TestClient) -> None:
    n = 200_000
    m = np.random.default_rng(1).integers(1, 8192, n)
    rows = pa.table({"op": pa.array(["linear"] * n), "dtype": ["bf16"] * n, "m": m, "n": m[::-1], "k": [4096] * n})
    found = read(send(client, stream(rows), ARROW))
    assert found.num_rows == n
    some = [0, 70_000, n - 1]
    few = read(send(client, stream(rows.take(some)), ARROW))
    assert found.take(some).to_pylist() == few.to_pylist()


def test_string_views_are_read_as_strings(client: TestClient) -> None:
    seen = TABLE.set_column(0, "op", TABLE["op"].cast(pa.string_view()))
    assert read(send(client, stream(seen), ARROW)).equals(read(send(client, stream(TABLE), ARROW)))


@forms
def test_a_row_without_a_gpu_is_named(client: TestClient, write: Write, media: str) -> None:
    table = TABLE.append_column("gpu", pa.array(["nvidia-l4", None, "nvidia-l4", None]))
    told = client.post("/predict/batch", content=write(table), headers={"content-type": media})
    assert told.status_code == 422, told.text
    assert [error["loc"] for error in told.json()["errors"]] == [["gpu", 1], ["gpu", 3]]


def test_unsupported_rows_name_the_roofline_as_predictor(client: TestClient) -> None:
    asked = {"predictor": "convmeter", "gpu": "nvidia-l4"}
    body = {"op": "linear", "m": 64, "n": 64, "k": [64, 128], "dtype": "fp32"}
    told = client.post("/predict/batch", params=asked, json=body).json()
    assert told["predictors"]["nvidia-l4"]["name"] == "roofline"
    assert "convmeter cannot answer for 2 distinct rows" in told["warnings"]["nvidia-l4"][0]
    metadata = read(send(client, stream(TABLE), ARROW, predictor="convmeter")).schema.metadata[b"gpucast"]
    assert json.loads(metadata)["warnings"]["h100-sxm5-80gb"]
