"""Files of kernels, operators and models together, as `gpucast measure` writes them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.formats.own import IMPORTERS
from app.services.measurements.importing import import_parts
from app.store.session import Database
from tests.kernels_data import SAXPY

ABOUT = {"gpu": "tesla-v100-sxm2-16gb", "software": "pytorch-2.13", "source": "mixed", "outcome": "measured"}
GEMM = {"kind": "operator", "op": "linear", "m": 4096, "n": 4096, "k": 1024, "dtype": "fp32"}
SOFTMAX = {"kind": "operator", "op": "softmax", "b": 8192, "h": 1024, "dtype": "fp32"}
KERNEL = {name: value for name, value in SAXPY.items() if name != "size"} | SAXPY["size"]
RESNET = {"kind": "model", "name": "resnet50", "mode": "training", "batch": 64, "image_size": 224, "dtype": "fp16"}
TINY = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 64, "vocab_size": 1000}
GPT2 = {"kind": "model", "config": json.dumps(TINY), "mode": "prefill", "batch": 2, "sequence": 64, "fused": True}
UNKNOWN = {
    "name": "Tomorrow 1",
    "compute_capability": "10.0",
    "sm_count": 160,
    "boost_clock_hz": 2.0e9,
    "memory_bytes": 309237645312,
    "memory_bandwidth_bytes_per_s": 1.0e13,
}
ROWS: list[dict[str, Any]] = [
    ABOUT | GEMM | {"latency_ms": 20.0, "kernel.name": "sgemm", "kernel.grid": "32x32x1", "runs": 10},
    ABOUT | KERNEL | {"latency_ms": 21.0},
    ABOUT | GEMM | {"m": 1 << 20, "latency_ms": None, "outcome": "out_of_memory"},
    ABOUT | RESNET | {"latency_ms": 90.0, "phases_ms.forward": 30.0, "phases_ms.backward": 60.0},
    ABOUT | SOFTMAX | {"latency_ms": 22.0, "throttle_reason": "sw_power_cap", "outcome": None},
    ABOUT | GPT2 | {"latency_ms": 50.0, "peak_memory_bytes": 1e9},
    ABOUT | KERNEL | {"latency_ms": None, "outcome": "failed: illegal address"},
]
PARQUET, CSV = "application/vnd.apache.parquet", "text/csv"


def parquet(rows: list[dict[str, Any]], device: object = None) -> bytes:
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    if device is not None:
        table = table.replace_schema_metadata({"gpucast.device": json.dumps(device)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def text(rows: list[dict[str, Any]]) -> bytes:
    handle = io.StringIO()
    writer = csv.DictWriter(handle, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return handle.getvalue().encode()


def send(client: TestClient, body: bytes, media: str) -> Any:
    return client.post("/measurements", content=body, headers={"content-type": media})


def stored(client: TestClient, source: str) -> dict[float, Any]:
    items = client.get("/measurements", params={"limit": 1000, "source": source}).json()["items"]
    return {item["latency_ms"]: item for item in items}


def test_all_kinds_in_one_file_in_every_format(client: TestClient, database: Database, tmp_path: Path) -> None:
    first = send(client, parquet(ROWS), PARQUET)
    assert first.status_code == 200, first.text
    told = first.json()
    assert (told["received"], told["inserted"], told["unchanged"]) == (7, 5, 0)
    assert told["skipped"] == {"not measured: out_of_memory": 1, "not measured: failed": 1}
    assert told["ignored"] == {"peak_memory_bytes": 1, "throttle_reason": 1}
    again = send(client, text(ROWS), CSV).json()
    assert (again["received"], again["inserted"], again["unchanged"]) == (7, 0, 5)
    assert (again["skipped"], again["ignored"]) == (told["skipped"], told["ignored"])
    found = stored(client, "mixed")
    assert found[20.0]["workload"] == GEMM
    assert found[20.0]["kernel"] == {"name": "sgemm", "grid": [32, 32, 1]}
    assert found[21.0]["workload"] == SAXPY
    assert (found[90.0]["workload"], found[90.0]["phases_ms"]) == (RESNET, {"forward": 30.0, "backward": 60.0})
    assert found[50.0]["workload"] == GPT2 | {"config": TINY, "dtype": "fp16"}
    (tmp_path / "all.parquet").write_bytes(parquet(ROWS))
    (tmp_path / "failed.csv").write_bytes(text(ROWS[2:3]))
    report = import_parts(database, IMPORTERS["measurements"], tmp_path)
    assert (report.received, report.inserted, report.unchanged) == (8, 0, 5)
    assert report.skipped == {"not measured: out_of_memory": 2, "not measured: failed": 1}
    assert report.ignored == {"peak_memory_bytes": 1, "throttle_reason": 1}


@pytest.mark.parametrize("media", [PARQUET, CSV])
def test_errors_name_their_row_in_the_file(client: TestClient, media: str) -> None:
    wrong = [
        *ROWS,
        ABOUT | KERNEL | {"latency_ms": None},
        ABOUT | SOFTMAX | {"latency_ms": None},
        ABOUT | RESNET | {"latency_ms": 1e-3},
        ABOUT | {"kind": "galaxy", "latency_ms": 1.0},
    ]
    refused = send(client, parquet(wrong) if media == PARQUET else text(wrong), media)
    assert refused.status_code == 422
    places = [error["loc"] for error in refused.json()["errors"]]
    assert places == [
        [7, "latency_ms"],
        [8, "latency_ms"],
        [9, "latency_ms"],
        [10, "workload", "kind"],
    ]


@pytest.mark.parametrize(
    ("row", "loc", "said"),
    [
        (ABOUT | GEMM | {"latency_ms": 1.0, "colour": "red"}, ["colour"], "unknown column"),
        (ABOUT | GEMM | {"latency_ms": 1.0, "blocks": 2.0}, [0, "workload", "blocks"], "not a field of rows"),
        (ABOUT | KERNEL | {"latency_ms": 1.0, "op": "linear"}, [0, "workload", "op"], "not a field of rows"),
        (ABOUT | GPT2 | {"latency_ms": 1.0, "config": "[1]"}, [0, "workload.config"], "is not an object in JSON"),
        (ABOUT | GEMM | {"latency_ms": 1.0, "outcome": 3}, ["outcome"], "where text is expected"),
        (ABOUT | GEMM | {"latency_ms": 1.0, "kind": 3}, ["kind"], "where text is expected"),
    ],
)
def test_unreadable_columns_and_cells_are_named(client: TestClient, row: Any, loc: list[Any], said: str) -> None:
    refused = send(client, parquet([row]), PARQUET)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == loc
    assert said in refused.json()["errors"][0]["msg"]


def test_a_file_brings_the_gpu_that_it_was_measured_on(client: TestClient) -> None:
    rows = [
        row | {"gpu": "Tomorrow 1", "source": "brought"}
        for row in (ABOUT | GEMM | {"latency_ms": 20.0}, ABOUT | KERNEL | {"latency_ms": 21.0})
    ]
    nobodys = send(client, parquet(rows), PARQUET)
    assert (nobodys.status_code, [error["loc"] for error in nobodys.json()["errors"]]) == (
        422,
        [[0, "gpu"], [1, "gpu"]],
    )
    for device, said in (([1], "must be a GPU's specification"), ({"name": "Tomorrow 1"}, "sm_count")):
        refused = send(client, parquet(rows, device), PARQUET)
        assert refused.status_code == 422
        assert said in refused.text
    other = send(client, parquet(rows, UNKNOWN | {"name": "Another"}), PARQUET)
    assert "No GPU is called 'Tomorrow 1'" in other.text
    told = send(client, parquet(rows, UNKNOWN), PARQUET).json()
    assert (told["inserted"], told["added_gpus"]) == (2, ["tomorrow-1"])
    assert client.get("/gpus/tomorrow-1").json()["sm_count"] == 160
    # Known by now: what the file says of it changes nothing.
    assert send(client, parquet(rows, UNKNOWN | {"sm_count": 80}), PARQUET).json()["unchanged"] == 2


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ('"a\\u0000"', ["odd"]),
        ('{"\\u0000": 1}', ["odd"]),
        ("NaN", ["odd"]),
        ("1e400", ["odd"]),
        ("[0, -1e400]", ["odd", 1]),
    ],
)
def test_configuration_text_that_postgresql_cannot_store_is_named(
    client: TestClient, cell: str, place: list[Any]
) -> None:
    row = {"gpu": "titan-v", "software": "pytorch-2.1", "source": "odd", "latency_ms": 50.0}
    model = {"kind": "model", "config": TINY | {"odd": "HERE"}, "mode": "inference", "batch": 1, "sequence": 64}
    body = json.dumps([row | {"workload": model | {"dtype": "fp32"}}]).replace('"HERE"', cell)
    told = client.post("/measurements", content=body.encode())
    assert told.status_code == 422, told.text
    assert told.json()["errors"][0]["loc"] == [0, "workload", "config", *place]
