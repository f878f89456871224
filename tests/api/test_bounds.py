"""One request holds neither others nor the process: limits on work, on the real service over HTTP."""

from __future__ import annotations

import dataclasses
import io
import json
import socket
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.services.measurements.store_uploads import ingest
from app.wire.measurement_form import Upload
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.busy_machine import least, until
from tests.export_bytes import archive
from tests.service import Service, wait_corrected

pytestmark = pytest.mark.slow

# Generous, for busy machines: `python -m benchmarks.hostile` has the figures.
STALL_S, TOOK_S, GROWN_BYTES = 0.25, 10, 2**29
NETWORK = {"kind": "model", "name": "densenet201", "mode": "training", "batch": 4096, "dtype": "fp32"}


def linears(n: int, **more: Any) -> dict[str, Any]:
    rows = [{"op": "linear", "m": 1 + k, "n": 3840, "k": 1280, "dtype": "fp16"} for k in range(n)]
    return {"workload": {"kind": "operators", "operators": rows}, **more}


class Beside:
    """What many small requests see, sent one after another: seconds of each, and bytes of the API process after it.

    Of a request's time no more counts than the process computed in it: the rest it waited for the machine's cores.
    """

    def __init__(self, service: Service) -> None:
        assert service.process is not None
        self.url = str(service.client.base_url)
        self.process = psutil.Process(service.process.pid)
        self.bytes_before = self.process.memory_info().rss
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.over = threading.Event()

    def send(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self.over.is_set():
                began, computed = time.perf_counter(), self.computed_s
                client.post("/predict", json=PREDICT_EXAMPLE).raise_for_status()
                self.seconds.append(min(time.perf_counter() - began, self.computed_s - computed))
                self.bytes.append(self.process.memory_info().rss)

    @property
    def computed_s(self) -> float:
        """Seconds that all threads of the API process have computed."""
        return float(sum(self.process.cpu_times()[:2]))

    @property
    def longest_s(self) -> float:
        return max(self.seconds[1:], default=0.0)  # the first one opens the connection

    @property
    def grown_bytes(self) -> int:
        return max(self.bytes) - self.bytes_before


@contextmanager
def small_requests(service: Service) -> Iterator[Beside]:
    """While inside, small requests are sent."""
    beside = Beside(service)
    thread = threading.Thread(target=beside.send)
    thread.start()
    try:
        while not beside.seconds:
            time.sleep(0.01)
        yield beside
    finally:
        beside.over.set()
        thread.join()


T = TypeVar("T")


def leaving_others_alone(service: Service, ask: Callable[[], T], grown_bytes: int = GROWN_BYTES) -> T:
    """Return what `ask` returns, after tries of which the quickest held up neither its caller nor small requests.

    The machine delays a request now and then; what holds the event loop delays one in every try.
    """
    found: list[T] = []

    def share_of_limit() -> float:
        wait_corrected(service.client)  # by what the last try stored
        with small_requests(service) as others:
            began = others.computed_s
            found.append(ask())
            took = others.computed_s - began
        assert others.grown_bytes < grown_bytes
        return max(others.longest_s / STALL_S, took / TOOK_S)

    assert least(share_of_limit, 1.0) < 1.0
    return found[-1]


def uncatalogued(service: Service, number: int) -> dict[str, Any]:
    spec: dict[str, Any] = service.client.get("/gpus/titan-v").raise_for_status().json()
    return {name: value for name, value in spec.items() if name not in ("id", "aliases", "provenance")} | {
        "name": f"unknown {number}"
    }


def test_long_work_leaves_other_requests_alone(service: Service) -> None:
    rows = [{"gpu": uncatalogued(service, k), "latency_ms": 1 + k} for k in range(400)]
    kernel = PREDICT_EXAMPLE["workload"] | {"measured": rows}
    hostile = [{"gpu": "titan-v", "workload": kernel}, linears(2000, gpu="nvidia-l4", detail=True)]

    def ask() -> list[int]:
        return [service.client.post("/predict", json=body).status_code for body in hostile]

    assert leaving_others_alone(service, ask) == [200, 200]


def test_detail_is_limited_in_rows_times_gpus(client: TestClient) -> None:
    told = client.post("/predict", json=linears(10_000, gpus="all", detail=True))
    assert (told.status_code, told.json()["status"]) == (413, 413)
    assert "20,000 rows with detail" in told.json()["detail"]
    told = client.post("/predict", json={"gpus": "all", "workload": NETWORK, "detail": True})
    assert told.status_code == 413, told.text


def left(service: Service) -> float:
    """Requests whose callers left, by the service's metrics."""
    lines = service.client.get("/metrics").text.splitlines()
    counts = [
        line.rpartition(" ")[2] for line in lines if line.startswith("gpucast_requests_total") and '"499"' in line
    ]
    return sum(map(float, counts))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", linears(1999, gpus=["nvidia-l4"] * 10, detail=True)),
        ("/compare", {"workload": NETWORK, "search_parallelism": True, "max_devices": 64}),
    ],
    ids=["predict", "compare"],
)
def test_the_work_of_a_caller_who_leaves_ends(service: Service, path: str, body: dict[str, Any]) -> None:
    def answered() -> int:
        """How many of two callers got an answer: one who leaves soon, one who waits for as long as the first's work."""
        before, began = left(service), time.monotonic()
        with pytest.raises(httpx.ReadTimeout):
            service.client.post(path, json=body, timeout=0.3)
        until(lambda: left(service) > before)
        try:
            service.client.post(path, json=body, timeout=time.monotonic() - began)
        except httpx.ReadTimeout:
            return 0
        return 1

    assert least(answered, 1) == 0, "its work goes on"


# Bodies are made when their test runs: on collection, every process of tests would make all of them.
Body = Callable[[], bytes]


@cache
def unknown_names(size: int) -> bytes:
    """JSON of that many bytes: an object of unknown names."""
    return b"{" + b",".join(b'"k%06d":1' % k for k in range(size // 12 - 1)) + b"}"


def rows_of(row: bytes, count: int) -> bytes:
    """JSON: an array of so many equal rows."""
    return b"[" + b",".join([row] * count) + b"]"


OPERATOR = {"gpu": "titan-v", "software": "x", "source": "x", "latency_ms": 1e6}
OPERATOR |= {"workload": {"kind": "operator", "op": "linear", "m": 1, "n": 1, "k": 1}}


def many_tensors(nodes: int, tensors: int) -> bytes:
    """A graph whose nodes write as many tensors each."""
    node = b'{"name":"n%d","op":"relu","outputs":[' + b",".join([b'{"shape":[8]}'] * tensors) + b"]}"
    return b'{"nodes":[' + b",".join(node % k for k in range(nodes)) + b"]}"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/measurements", lambda: rows_of(json.dumps(OPERATOR).encode(), 430_000), "at most 200,000 rows"),
        ("/measurements", lambda: rows_of(b"0", 1_000_000), "at most 200,000 rows"),
        ("/graphs", lambda: many_tensors(600, 1_000), "600,000 tensors; at most 524,288"),
    ],
    ids=["doubtful operators", "wrong rows", "tensors"],
)
def test_bodies_of_more_than_fits_in_memory_name_their_limit(
    service: Service, path: str, body: Body, named: str
) -> None:
    content = body()
    told = leaving_others_alone(service, lambda: service.client.post(path, content=content), 2**30)
    assert told.status_code in (413, 422), told.text
    assert named in told.json()["detail"].lower()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", lambda: unknown_names(4_000_000)),
        ("/predict", lambda: rows_of(unknown_names(12_000), 300)),
        ("/predict/batch?gpu=nvidia-l4", lambda: unknown_names(40_000_000)),
        ("/measurements", lambda: unknown_names(40_000_000)),
        ("/measurements", lambda: rows_of(b"{}", 12_000_001)),
        ("/measurements", lambda: rows_of(b"{}", 900_001)),
        ("/graphs", lambda: unknown_names(40_000_000)),
    ],
    ids=["predict", "lists", "batch", "measurements", "too many rows", "empty rows", "graphs"],
)
def test_hostile_json_is_refused_at_once(service: Service, path: str, body: Body) -> None:
    content = body()
    told = leaving_others_alone(service, lambda: service.client.post(path, content=content))
    assert 400 <= told.status_code < 500, told.text


def test_a_graph_of_many_nodes_leaves_other_requests_alone(service: Service) -> None:
    outputs = [{"shape": [8, 8]}] * 4
    nodes = [{"name": f"n{k}", "op": "relu", "inputs": ["x"], "outputs": outputs} for k in range(100_000)]
    network = json.dumps({"inputs": [{"name": "x", "shape": [8, 8]}], "nodes": nodes}).encode()

    def stored_and_read() -> httpx.Response:
        stored = service.client.post("/graphs", content=network).raise_for_status()
        return service.client.get(f"/graphs/{stored.json()['graph_id']}")

    assert leaving_others_alone(service, stored_and_read).json()["graph"] == json.loads(network)


def test_rows_of_a_refused_upload_are_freed_in_its_thread(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop would free what the error refers to, and stop every request meanwhile."""
    uploads = []

    def record(database: Any, engine: Any, upload: Upload, **options: Any) -> Any:
        uploads.append(upload)
        return ingest(database, engine, upload, **options)

    monkeypatch.setattr("app.api.measurements.ingest", record)
    assert client.post("/measurements", json=[{}] * 3).status_code == 422
    assert [len(upload) for upload in uploads] == [0] * len(uploads) != []


def test_error_texts_are_bounded(client: TestClient) -> None:
    name = "k" * 3_000_000
    told = client.post("/predict", json={name: 1, "gpu": "x" * 900_000})
    assert told.status_code == 422
    assert len(told.content) < 10_000
    told = client.post("/retrain", json={f"k{k}": 1 for k in range(800)})
    assert (told.status_code, len(told.json()["errors"])) == (422, 20)


def parquet(columns: dict[str, pa.Array], **options: Any) -> tuple[str, bytes]:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", store_schema=False, **options)
    return "application/vnd.apache.parquet", sink.getvalue()


def arrow(columns: dict[str, pa.Array]) -> tuple[str, bytes]:
    sink, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return "application/vnd.apache.arrow.stream", sink.getvalue()


def one_word(rows: int, length: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * length])


FILES = {
    "dictionary in Parquet": lambda: parquet({"op": one_word(300_000, 100_000)}),
    "differences in Parquet": lambda: parquet(
        {"op": pa.array(["x" * 20_000] * 14_000)}, use_dictionary=False, column_encoding={"op": "DELTA_BYTE_ARRAY"}
    ),
    "columns in Parquet": lambda: parquet({f"c{k}": pa.array([1]) for k in range(40_000)}),
    "one text in Parquet": lambda: parquet({"op": pa.array(["x" * 300_000_000])}),
    "rows in Parquet": lambda: parquet({"op": one_word(3_000_000, 1)}),
    "dictionary in Arrow": lambda: arrow({"op": one_word(300_000, 100_000)}),
    "one text in Arrow": lambda: arrow({"op": pa.array(["x" * 300_000_000], pa.large_string())}),
}


@cache
def unpacking(name: str) -> tuple[str, bytes]:
    return FILES[name]()


@pytest.mark.parametrize(
    ("path", "name"),
    [("/predict/batch?gpu=nvidia-l4", name) for name in FILES] + [("/measurements", name) for name in list(FILES)[:5]],
)
def test_files_that_unpack_to_gigabytes_are_refused(service: Service, path: str, name: str) -> None:
    media, body = unpacking(name)
    told = leaving_others_alone(
        service, lambda: service.client.post(path, content=body, headers={"content-type": media})
    )
    assert told.status_code == 413, told.text
    good = parquet(
        {name: pa.array([value]) for name, value in {"op": "linear", "m": 1, "n": 1, "k": 1, "dtype": "fp16"}.items()}
    )
    told = service.client.post("/predict/batch?gpu=nvidia-l4", content=good[1], headers={"content-type": good[0]})
    assert told.status_code == 200, "the next file is decoded"


def test_texts_in_any_encoding_are_read(client: TestClient) -> None:
    columns = {"op": ["linear"] * 3, "m": [1, 2, 3], "n": [1] * 3, "k": [1] * 3, "dtype": ["fp16"] * 3}
    for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        media, body = parquet(
            {name: pa.array(cells) for name, cells in columns.items()},
            use_dictionary=False,
            column_encoding={"op": encoding, "dtype": encoding},
        )
        told = client.post("/predict/batch?gpu=nvidia-l4", content=body, headers={"content-type": media})
        assert told.status_code == 200, told.text


def test_more_work_of_a_caller_than_may_wait_is_429(settings: Settings, tmp_path: Path) -> None:
    tight = dataclasses.replace(settings, max_waiting=2)
    body = {"workload": NETWORK, "search_parallelism": True, "max_devices": 64}

    def status(_: int) -> int:
        try:
            told = crowded.client.post("/compare", json=body, timeout=4)
        except httpx.ReadTimeout:  # it works, or waits
            return 0
        if told.status_code == 429:
            assert "of your searches wait already" in told.json()["detail"]
            assert told.headers["content-type"] == "application/problem+json"
            assert int(told.headers["retry-after"]) > 0
        return told.status_code

    def few() -> bool:
        return crowded.client.post("/predict", json=linears(500, gpu="l40s")).status_code == 200

    def many() -> Counter[int]:
        until(few)  # who left makes room
        with ThreadPoolExecutor(12) as callers:
            return Counter(callers.map(status, range(12)))

    with Service(tight, tmp_path / "log") as crowded:
        assert leaving_others_alone(crowded, many)[429] == 12 - 1 - 2
        assert crowded.client.get("/readyz").status_code == 200
        until(few)


def test_bodies_of_all_requests_of_a_caller_are_bounded(service: Service) -> None:
    head = b"POST /measurements HTTP/1.1\r\nHost: here\r\nContent-Length: 60000000\r\n\r\n"
    with ExitStack() as held:
        for _ in range(4):
            sender = held.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=30))
            sender.sendall(head + b" " * 50_000_000)
        refused = sender.recv(10_000)
        assert b" 429 " in refused
        assert b"retry-after" in refused
        assert service.client.post("/predict", json=PREDICT_EXAMPLE).status_code == 200
    until(lambda: service.client.post("/measurements", content=b" " * 50_000_000).status_code == 400)  # they make room


LARGE = 4 * 2**20 + 1


@pytest.mark.parametrize(
    ("path", "size"), [("/predict", LARGE), ("/compare", LARGE), ("/retrain", 65_537), ("/keys", 65_537)]
)
def test_bodies_are_limited_by_route(client: TestClient, path: str, size: int) -> None:
    for content in (b" " * size, (b" " * 1000 for _ in range(1 + size // 1000))):
        told = client.post(path, content=content)
        assert told.status_code == 413, told.text
        assert f"over {size - 1:,} bytes" in told.json()["detail"]


def test_uploads_may_be_larger(client: TestClient) -> None:
    row = json.dumps({"op": "linear", "m": 1, "n": 1, "k": 1, "dtype": "fp16"})[:-1].encode()
    told = client.post("/predict/batch?gpu=nvidia-l4", content=row + b" " * LARGE + b"}")
    assert told.status_code == 200


def test_an_archive_that_unpacks_to_much_leaves_other_requests_alone(service: Service) -> None:
    body = archive(b"[" + b"0," * 30_000_000 + b"0]", compression=zipfile.ZIP_DEFLATED)
    assert len(body) < 70_000

    def ask() -> httpx.Response:
        return service.client.post("/graphs", content=body, headers={"content-type": "application/zip"})

    answer = leaving_others_alone(service, ask)
    assert (answer.status_code, answer.json()["detail"][:21]) == (422, "net/models/model.json")
