"""Measurements of operators and models over HTTP: every format, no duplicates, all rows or none."""

import csv
import io
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kernels_data import SAXPY
from tests.service import Service, wait_corrected

pytestmark = pytest.mark.slow

ABOUT = {"gpu": "tesla-v100-sxm2-16gb", "software": "pytorch-2.1", "source": "made up"}
OPERATORS: list[dict[str, Any]] = [
    {"op": "linear", "m": 4096, "n": 4096, "k": 1024, "dtype": "fp32"},
    {"op": "linear", "m": 4096, "n": 4096, "k": 1024, "dtype": "fp32", "phase": "backward"},
    {"op": "bmm", "b": 16, "m": 512, "n": 512, "k": 64, "dtype": "fp16"},
    {"op": "softmax", "b": 8192, "h": 1024, "dtype": "fp32", "run_state": "burst"},
    {
        "op": "moe",
        "tokens": 64,
        "hidden": 1024,
        "intermediate": 512,
        "experts": 8,
        "top_k": 2,
        "distribution": "power_law_1.2",
        "dtype": "fp16",
    },
    {
        "op": "attention_prefill",
        "batch": 2,
        "heads": 8,
        "head_dim": 64,
        "context_length": 512,
        "kv_dtype": "fp16",
        "dtype": "fp16",
    },
]
CONV: dict[str, Any] = {
    "op": "conv2d",
    "b": 8,
    "in_channels": 64,
    "out_channels": 64,
    "kernel_size": [1, 3],
    "input_size": 56,
    "padding": [0, 1],
    "dtype": "fp32",
}


def rows(operators: list[dict[str, Any]] = OPERATORS, **changes: Any) -> list[dict[str, Any]]:
    return [
        ABOUT | {"latency_ms": 20.0 + k, "workload": {"kind": "operator"} | operator} | changes
        for k, operator in enumerate(operators)
    ]


def flat(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "workload"} | row["workload"] for row in given]


def as_csv(given: list[dict[str, Any]]) -> bytes:
    names = list(dict.fromkeys(name for row in flat(given) for name in row))
    handle = io.StringIO()
    writer = csv.DictWriter(handle, names)
    writer.writeheader()
    writer.writerows(flat(given))
    return handle.getvalue().encode()


def as_parquet(given: list[dict[str, Any]]) -> bytes:
    names = dict.fromkeys(name for row in flat(given) for name in row)
    sink = io.BytesIO()
    pq.write_table(pa.table({name: [row.get(name) for row in flat(given)] for name in names}), sink)
    return sink.getvalue()


def send(server: httpx.Client, body: bytes, media: str) -> httpx.Response:
    return server.post("/measurements", content=body, headers={"content-type": media})


def stored(server: httpx.Client, **filters: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = server.get("/measurements", params={"limit": 1000} | filters).json()["items"]
    return items


def test_operators_are_stored_once_in_every_format(server: httpx.Client) -> None:
    given = rows()
    first = server.post("/measurements", json=given).raise_for_status().json()
    assert (first["received"], first["inserted"], first["unchanged"]) == (6, 6, 0)
    assert first["drift"]["rows"] == 6
    as_lists = [row | {"workload": {"kind": "operators", "operators": [dict(row["workload"])]}} for row in given]
    for row in as_lists:
        del row["workload"]["operators"][0]["kind"]
    for again in (
        server.post("/measurements", json=as_lists),
        send(server, as_csv(given), "text/csv"),
        send(server, as_parquet(given), "application/vnd.apache.parquet"),
    ):
        told = again.raise_for_status().json()
        assert (told["received"], told["inserted"], told["unchanged"], told["drift"]) == (6, 0, 6, None)
    found = {item["latency_ms"]: item for item in stored(server, source="made up")}
    assert [found[row["latency_ms"]]["workload"] for row in given] == [row["workload"] for row in given]
    assert {item["software"] for item in found.values()} == {"pytorch-2.1"}


def test_the_launched_kernel_and_all_figures_are_returned(server: httpx.Client) -> None:
    about: dict[str, Any] = {
        "source": "annotated",
        "kernel": {"name": "gemm_" + "x" * 500, "grid": [32, 8], "block": 256},
        "latency_std_ms": 0.5,
        "runs": 25,
        "clock_hz": 1.38e9,
        "power_w": 250.0,
        "measured_at": "2026-03-01T12:00:00Z",
    }
    given = rows([OPERATORS[0], CONV], **about)
    assert server.post("/measurements", json=given).raise_for_status().json()["inserted"] == 2
    for row, item in zip(given, sorted(stored(server, source="annotated"), key=lambda x: x["latency_ms"]), strict=True):
        assert item["kernel"] == {"name": about["kernel"]["name"], "grid": [32, 8, 1], "block": [256, 1, 1]}
        assert item["workload"] == row["workload"]
        for name in ("latency_ms", "latency_std_ms", "runs", "clock_hz", "power_w", "measured_at"):
            assert item[name] == row[name]
    # The same launch, annotated anew.
    again = [row | {"runs": 50, "latency_std_ms": 0.4, "power_w": 240.0} for row in given]
    assert server.post("/measurements", json=again).json()["unchanged"] == 2


def test_a_measured_convolution_answers_its_own_memory_format(service: Service) -> None:
    service.client.post("/measurements", json=rows([CONV], source="of one format")).raise_for_status()
    wait_corrected(service.client)
    assert support_of(service.client, CONV) == "measured"
    assert support_of(service.client, CONV | {"channels_last": 0}) == "measured"
    assert support_of(service.client, CONV | {"channels_last": 1}) != "measured"


def support_of(server: httpx.Client, operator: dict[str, Any]) -> object:
    workload = {"kind": "operators", "operators": [operator | {"software": ABOUT["software"]}]}
    answer = server.post("/predict", json={"gpu": ABOUT["gpu"], "workload": workload})
    return answer.raise_for_status().json()["predictions"][0]["support"]


def test_filters_and_pages_over_all_kinds(server: httpx.Client) -> None:
    model = {"kind": "model", "name": "resnet50", "mode": "training", "batch": 64, "image_size": 224, "dtype": "fp16"}
    phases = {"forward": 30.0, "backward": 60.0}
    mixed = [
        *rows(source="mixed"),
        ABOUT | {"source": "mixed", "latency_ms": 1.0, "workload": SAXPY},
        ABOUT | {"source": "mixed", "latency_ms": 90.0, "phases_ms": phases, "workload": model},
    ]
    assert server.post("/measurements", json=mixed).raise_for_status().json()["inserted"] == 8
    assert {item["workload"]["kind"] for item in stored(server, source="mixed")} == {"operator", "kernel", "model"}
    assert len(stored(server, source="mixed", kind="operator", name="linear", gpu="Tesla V100-SXM2-16GB")) == 2
    (trained,) = stored(server, source="mixed", kind="model", name="resnet50")
    assert (trained["workload"], trained["phases_ms"]) == (model, phases)
    assert stored(server, source="mixed", name="linear", kind="kernel") == []
    seen, cursor = [], None
    while True:
        params: dict[str, Any] = {"limit": 3, "source": "mixed"} | ({"after": cursor} if cursor else {})
        page = server.get("/measurements", params=params).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page.get("next")
        if cursor is None:
            break
    assert seen == sorted(set(seen))
    assert len(seen) == 8


def test_one_invalid_row_rejects_the_upload(server: httpx.Client) -> None:
    given = rows(source="half wrong")
    given[1] = given[1] | {"latency_ms": 1e-3}
    given[2] = given[2] | {"workload": given[2]["workload"] | {"m": 0}}
    given[3] = given[3] | {"gpu": "titan-w"}
    refused = server.post("/measurements", json=given)
    assert refused.status_code == 422
    assert [error["loc"] for error in refused.json()["errors"]] == [
        [1, "latency_ms"],
        [2, "workload", "m"],
        [3, "gpu"],
    ]
    assert "hardware limit" in refused.json()["errors"][0]["msg"]
    assert stored(server, source="half wrong") == []


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"workload": {"kind": "operator"}}, [0, "workload", "op"]),
        ({"workload": {"kind": "operator", "op": "lineer"}}, [0, "workload", "op"]),
        ({"workload": {"kind": "operators", "operators": OPERATORS[:2]}}, [0, "workload", "operators"]),
        (
            {"workload": {"kind": "operators", "operators": [OPERATORS[0] | {"m": -1}]}},
            [0, "workload", "operators", 0, "m"],
        ),
        ({"workload": {"kind": "operator"} | OPERATORS[0] | {"count": 2}}, [0, "workload", "count"]),
        ({"workload": {"kind": "operator"} | OPERATORS[0] | {"h": 2}}, [0, "workload", "h"]),
        ({"workload": {"kind": "operator"} | OPERATORS[0] | {"software": "vllm-0.24"}}, [0, "workload", "software"]),
        ({"workload": {"kind": "operator"} | OPERATORS[5] | {"kv_heads": 3}}, [0, "workload", "kv_heads"]),
        ({"workload": {"kind": "model", "name": "resnet50", "sequence": 3}}, [0, "workload", "sequence"]),
        ({"workload": {"kind": "graph"}}, [0, "workload", "kind"]),
        ({"phases_ms": {"forward": 1.0}}, [0, "phases_ms"]),
        ({"software": None}, [0, "software"]),
    ],
)
def test_errors_name_the_object(server: httpx.Client, change: dict[str, Any], loc: list[Any]) -> None:
    answer = server.post("/measurements", json=rows(OPERATORS[:1], **change))
    assert answer.status_code == 422, answer.text
    assert loc in [error["loc"] for error in answer.json()["errors"]]


HEADER = b"gpu,software,source,latency_ms,op,m,n,k,dtype"
SOUND = b"tesla-v100-sxm2-16gb,pytorch-2.1,bench,9,linear,1024,1024,1024,fp32"


@pytest.mark.parametrize(
    ("header", "line", "status", "loc"),
    [
        (HEADER, SOUND.replace(b",9,", b",fast,"), 422, [1, "latency_ms"]),
        (HEADER, SOUND.replace(b",9,", b",,"), 422, [1, "latency_ms"]),
        (HEADER, SOUND.replace(b",9,", b",nan,"), 422, [1, "latency_ms"]),
        (HEADER, SOUND.replace(b",9,", b",0.0001,"), 422, [1, "latency_ms"]),
        (HEADER, SOUND.replace(b"linear,1024", b"linear,1024.5"), 422, [1, "workload", "m"]),
        (HEADER, SOUND.replace(b"linear", b"lineer"), 422, [1, "workload", "op"]),
        (HEADER, SOUND.replace(b"fp32", b"fp33"), 422, [1, "workload", "dtype"]),
        (HEADER, SOUND.replace(b"tesla-v100-sxm2-16gb", b"titan-w"), 422, [1, "gpu"]),
        (HEADER, SOUND.replace(b"pytorch-2.1", b""), 422, [1, "software"]),
        (HEADER, SOUND + b",7", 422, [1, "workload", "dtype"]),
        (HEADER.replace(b"source", b"speed"), SOUND, 422, ["speed"]),
        (HEADER.replace(b",source", b",m"), SOUND, 422, ["m"]),
        (HEADER + b",kernel.grid", SOUND + b",0x1", 422, [1, "kernel", "grid"]),
        (HEADER + b",measured_at", SOUND + b",2026-01-01T00:00:00", 422, [1, "measured_at"]),
        (HEADER + b",kind", SOUND + b",kernel", 422, [1, "workload", "op"]),
    ],
)
def test_errors_name_the_cell(server: httpx.Client, header: bytes, line: bytes, status: int, loc: list[Any]) -> None:
    extra = header.count(b",") - HEADER.count(b",")
    body = b"\n".join((header, SOUND + b"," * extra, line, b""))
    answer = send(server, body, "text/csv")
    assert answer.status_code == status, answer.text
    assert loc in [error["loc"] for error in answer.json()["errors"]]
    assert stored(server, source="bench") == []


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("ticks", [2**63 - 1, 2**62, -(2**63), 253_402_300_800_000])
def test_invalid_dates_are_named(server: httpx.Client, unit: str, ticks: int) -> None:
    kernel = {"gpu": "titan-v", "software": "cuda", "source": "mine", "latency_ms": 0.91, "name": "mm", "dtype": "fp32"}
    counts = ("flops", "bytes", "working_set_bytes", "blocks", "threads_per_block", "registers_per_thread")
    kernel |= dict.fromkeys((*counts, "shared_memory_per_block"), 64)
    for row in (flat(rows(OPERATORS[:1]))[0], kernel | {"access_pattern": "coalesced"}):
        row.pop("measured_at", None)
        table = pa.Table.from_pylist([row])
        table = table.append_column("measured_at", pa.array([ticks], pa.timestamp(unit, "Asia/Tokyo")))
        sink = io.BytesIO()
        pq.write_table(table, sink)
        answer = send(server, sink.getvalue(), "application/vnd.apache.parquet")
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["loc"] == [0, "measured_at"]


def test_wrong_parquet_columns_are_named(server: httpx.Client) -> None:
    sound = flat(rows(OPERATORS[:1]))[0]
    for wrong, name in (({"m": "many"}, "m"), ({"speed": 1.0}, "speed"), ({"gpu": 7}, "gpu")):
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([sound | wrong]), sink)
        answer = send(server, sink.getvalue(), "application/vnd.apache.parquet")
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["loc"][-1] == name
