"""One caller that sends much delays itself alone. The real service over HTTP; callers are addresses of this machine."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from app.wire.serving_form import SERVING_EXAMPLE
from benchmarks.hostile import PARQUET, trained_plan
from benchmarks.hostile_rows import numbered, table
from tests.busy_machine import least
from tests.service import Service

pytestmark = pytest.mark.slow

# Far less than the attack's work, and more than a model takes on a busy machine beside three requests.
WAIT_S = 3.0
SENT = 90
# Rows of a file whose check takes seconds.
LARGE = 500_000


def caller(service: Service, number: int) -> httpx.Client:
    """A client with an address of its own."""
    ways = httpx.HTTPTransport(local_address=f"127.0.0.{number}", limits=httpx.Limits(max_connections=SENT))
    return httpx.Client(base_url=service.client.base_url, transport=ways, timeout=120)


def model(k: int) -> dict[str, Any]:
    workload = {"kind": "model", "name": "resnet50", "mode": "inference", "batch": 1 + k, "dtype": "fp16"}
    return {"gpu": "nvidia-l4", "workload": workload}


def long(k: int) -> bytes:
    rows = [{"op": "linear", "m": 1 + j, "n": 3840 + k, "k": 1280, "dtype": "fp16"} for j in range(1000)]
    return json.dumps(
        {"gpus": ["nvidia-l4"] * 10, "detail": True, "workload": {"kind": "operators", "operators": rows}}
    ).encode()


@contextmanager
def sending(service: Service, over: threading.Event) -> Iterator[Counter[int]]:
    """While inside, one caller has 90 requests in flight, each of a second of work; their statuses."""
    found = Counter[int]()
    with caller(service, 2) as client, ThreadPoolExecutor(SENT) as threads:

        def send(k: int) -> None:
            while not over.is_set():
                try:
                    status = client.post("/predict", content=long(k), timeout=15).status_code
                except httpx.TransportError:
                    continue
                found[status] += 1

        sent = [threads.submit(send, k) for k in range(SENT)]
        try:
            yield found
        finally:
            over.set()
            for each in sent:
                each.result()


# The first test, since the service computes on for a while for callers who have left others.
def test_a_load_that_is_known_to_be_too_much_is_refused_before_it_is_simulated(service: Service) -> None:
    """It took half a second of processor time or more, for a request of 0.2 kB."""
    workload = SERVING_EXAMPLE["workload"] | {"load": {"concurrency": 65536}}
    number = iter(range(64))

    def refused_s() -> float:
        body = {"gpus": "all", "workload": workload | {"input_tokens": 900 + next(number)}}
        began = time.perf_counter()
        told = service.client.post("/predict", json=body)
        assert (told.status_code, "simulating it takes over" in told.text) == (413, True)
        return time.perf_counter() - began

    refused_s()
    assert least(refused_s, 0.1) < 0.1


def test_a_caller_with_many_requests_delays_itself_alone(service: Service) -> None:
    with caller(service, 1) as other, sending(service, threading.Event()) as found:
        while not found[429]:
            time.sleep(0.05)
        number = iter(range(64))

        def wait_s() -> float:
            began = time.monotonic()
            other.post("/predict", json=model(next(number))).raise_for_status()
            return time.monotonic() - began

        assert least(lambda: max(wait_s() for _ in range(8)), WAIT_S) < WAIT_S
    assert set(found) == {200, 429}


def test_readers_of_a_saved_plan_take_turns_with_searches(service: Service) -> None:
    """They had two threads of one caller, beside which another's small request waited 143 ms."""
    saved = service.client.post("/plan", json=json.loads(trained_plan()) | {"save": True}).json()["id"]

    def read(_: int) -> str:
        with suppress(httpx.ReadTimeout):  # its caller leaves
            answer = one.get(f"/predictions/{saved}", timeout=10)
            return str(answer.json()["detail"]) if answer.status_code == 429 else ""
        return ""

    with caller(service, 1) as other, caller(service, 2) as one, ThreadPoolExecutor(SENT) as threads:
        refused = threads.map(read, range(SENT))
        time.sleep(0.3)
        other.post("/predict", json=model(100), timeout=WAIT_S).raise_for_status()
        told = set(filter(None, refused))
    assert len(told) == 1 and "of your searches wait already" in told.pop()


def test_a_small_file_does_not_wait_for_a_large_one(service: Service) -> None:
    """Not for a turn, while the large one's rows are found to be of unknown GPUs: both are Parquet."""

    def send(client: httpx.Client, body: bytes) -> int:
        return client.post("/measurements", content=body, headers={"content-type": PARQUET}).status_code

    with caller(service, 1) as other, caller(service, 2) as one, ThreadPoolExecutor(1) as thread:
        large = thread.submit(send, one, table(LARGE, gpu=numbered("g", LARGE, LARGE)))
        time.sleep(0.3)
        statuses = [send(other, table(3 + k)) for k in range(2)]
        assert not large.done() and statuses == [200, 200]
        assert large.result() == 422
