"""A caller that sends much beside one that sends little, and a stop beside all kinds of work; for benchmarks.hostile.

Attacker, watcher and server are processes of their own; the attacker has another address. The watcher's waits count as
in benchmarks.hostile: as the processor time that the API process takes meanwhile, at most the time on the clock.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.store import keys
from app.store.postgres import EmbeddedPostgres
from app.wire.serving_form import SERVING_EXAMPLE
from benchmarks import hostile
from benchmarks.hostile_run import (
    GOAL_BYTES,
    GOAL_MS,
    JSON,
    SMALL,
    listening,
    print_case,
    print_header,
    processor_clock,
)
from benchmarks.http_route import BOUNDED, ask, server
from tests.busy_machine import until
from tests.learning import workload
from tests.server_processes import set_read_only
from tests.service import free_port

ATTACKER, WATCHER = "127.0.0.2", "127.0.0.1"
SECONDS, GRACE_S = 10.0, 3.0
# A stop ends so long after its grace at most.
_LATE_S = 5.0
_SPAWN = get_context("spawn")
Statuses = Counter[str]
Attack = Callable[[int, Event, "Queue[Any]"], None]


class Case(NamedTuple):
    """An attack, and what the watcher asks meanwhile: paths, or for POST /predict a function that makes bodies."""

    name: str
    attack: Attack
    asked: Sequence[str | Callable[[int], bytes]]
    read_only: bool = False


class Watched(NamedTuple):
    """What the watcher saw: statuses, milliseconds of waits as counted and on the clock, bytes that memory grew by."""

    statuses: Statuses
    waits_ms: list[float]
    clock_ms: list[float]
    grown: int


def served(k: int) -> bytes:
    """A served model with more requests in flight than may be simulated on all GPUs."""
    workload = SERVING_EXAMPLE["workload"] | {"load": {"concurrency": 65536}, "input_tokens": 900 + k}
    return json.dumps({"gpus": "all", "workload": workload}).encode()


def within_limits(k: int) -> bytes:
    """A second of work within all limits."""
    return hostile.operators(1000 + k % 500, detail=True, gpus=[hostile.GPU] * 10)


def within_steps(k: int) -> bytes:
    """A served model on all GPUs with about as many simulated steps as an answer may take: half a second."""
    workload = hostile.served(concurrency=64) | {"input_tokens": 8192 + k}
    return json.dumps({"gpus": "all", "workload": workload}).encode()


def model(k: int) -> bytes:
    """A prediction of a network."""
    workload = {"kind": "model", "name": "resnet50", "mode": "inference", "batch": 1 + k % 1000, "dtype": "fp16"}
    return json.dumps({"gpu": hostile.GPU, "workload": workload}).encode()


def send(port: int, source: str, path: str, body: bytes = b"", media: str = JSON) -> str:
    """Return the status of a request on a connection of its own, or the name of an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300, source_address=(source, 0))
    try:
        connection.request("POST" if body else "GET", path, body or None, {"Content-Type": media} if media else {})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except OSError as error:
        return type(error).__name__
    except http.client.HTTPException as error:
        return type(error).__name__
    finally:
        connection.close()


def measured(k: int) -> bytes:
    """A measured kernel."""
    about = {"gpu": "rtx-4070", "software": "cuda", "workload": workload("matmul", 1024)}
    return json.dumps([about | {"latency_ms": 1.0, "source": f"x{k}"}]).encode()


def flood(
    port: int, over: Event, results: Queue[Any], *, at_once: int, body: Callable[[int], bytes], path: str = "/predict"
) -> None:
    """Have so many requests in flight."""

    def keep_sending(first: int) -> Statuses:
        found = Statuses()
        for k in range(first, 2**31, at_once):
            if over.is_set():
                break
            found[send(port, ATTACKER, path, body(k))] += 1
        return found

    with ThreadPoolExecutor(at_once) as threads:
        results.put(sum(threads.map(keep_sending, range(at_once)), Statuses()))


def hold(port: int, over: Event, results: Queue[Any], *, connections: int) -> None:
    """Hold idle connections, and open those that are closed anew."""
    held = list[socket.socket]()
    while not over.is_set():
        for _ in range(connections):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(ATTACKER, 0)))
        over.wait(2.0)
        for each in held:
            each.close()
        held.clear()
    results.put(Statuses())


def watch(port: int, over: Event, results: Queue[Any], asked: Sequence[str | Callable[[int], bytes]]) -> None:
    """Ask, every 20 ms, until it is over."""
    api = listening(port)
    clock, before = processor_clock(api.pid), api.memory_info().rss
    seen = Watched(Statuses(), [], [], 0)
    for k in range(2**31):
        if over.is_set():
            break
        what = asked[k % len(asked)]
        began, used = time.perf_counter(), time.clock_gettime(clock)
        sent = (what, b"") if isinstance(what, str) else ("/predict", what(k))
        seen.statuses[send(port, WATCHER, *sent)] += 1
        took = time.perf_counter() - began
        seen.clock_ms.append(1e3 * took)
        seen.waits_ms.append(1e3 * min(took, time.clock_gettime(clock) - used))
        seen = seen._replace(grown=max(seen.grown, api.memory_info().rss - before))
        time.sleep(0.02)
    results.put(seen)


MODELS, PROBES = (model,), ("/livez", "/readyz")
UPLOADS = partial(flood, at_once=75, body=measured, path="/measurements")
CASES = (
    Case("75 served models of 65,536 in flight on all GPUs", partial(flood, at_once=75, body=served), MODELS),
    Case("75 times a second of work within the limits", partial(flood, at_once=75, body=within_limits), MODELS),
    Case("75 served models just within the limits", partial(flood, at_once=75, body=within_steps), MODELS),
    Case("75 uploads", UPLOADS, MODELS),
    Case("75 uploads to a database that is read-only", UPLOADS, MODELS, read_only=True),
    Case("900 idle connections", partial(hold, connections=900), PROBES),
)
_STOP, _FORGED = "a stop beside twelve kinds of work", "changes with a cookie from a page of another origin"


def see_all(word: str) -> list[bool]:
    """Print a line per case whose name has the word; return whether each reaches the goals."""
    every: dict[str, Callable[[], bool]] = {case.name: partial(_see, case) for case in CASES}
    chosen = [see for name, see in (every | {_STOP: _see_stop, _FORGED: _see_forged}).items() if word in name]
    if chosen:
        print_header("case", "attacker got", "others got", "on the clock", "memory")
    return [see() for see in chosen]


def _see(case: Case) -> bool:
    with (
        tempfile.TemporaryDirectory() as folder,
        server("app.main:create_app", "--factory", *BOUNDED, GPUCAST_DATA_DIR=folder) as port,
    ):
        ask(port)
        send(port, WATCHER, "/predict", model(0))
        if case.read_only:
            set_read_only(EmbeddedPostgres(Path(folder) / "postgres"), True)
        over, attacked, watched = _SPAWN.Event(), _SPAWN.Queue(), _SPAWN.Queue()
        api = listening(port)
        before = sum(api.cpu_times()[:2])
        attacker = _SPAWN.Process(target=case.attack, args=(port, over, attacked))
        watcher = _SPAWN.Process(target=watch, args=(port, over, watched, case.asked))
        attacker.start()
        watcher.start()
        time.sleep(SECONDS)
        over.set()
        statuses, seen = attacked.get(), watched.get()
        computed = sum(api.cpu_times()[:2]) - before
        for each in (attacker, watcher):
            each.join()
    longest = max(seen.waits_ms)
    good = longest <= GOAL_MS and set(seen.statuses) == {"200"} and seen.grown <= GOAL_BYTES
    good &= "500" not in statuses
    cells = (_shown(statuses) or "nothing", _shown(seen.statuses), f"{max(seen.clock_ms):.0f} ms")
    return print_case(case.name, good, computed, longest, *cells, f"{seen.grown / 2**20:.0f} MiB")


def _shown(statuses: Statuses) -> str:
    return ", ".join(f"{count:,} x {status}" for status, count in sorted(statuses.items()))


def _kinds_of_work() -> Iterator[tuple[str, str, bytes]]:
    """Path, media type and body of each."""
    yield "/compare", JSON, hostile.served_compare(rate_per_s=100.0)
    yield "/plan", JSON, hostile.served_plan()
    yield "/plan", JSON, hostile.trained_plan()
    yield "/compare", JSON, hostile.compare()
    yield "/compare", JSON, hostile.split_graph(12_000)
    yield hostile.PAGE, "", b""
    yield hostile.MEASURED, hostile.PARQUET, hostile.million_rows()
    yield "/measurements", hostile.CSV, hostile.csv_rows(900_000)
    yield "/predict", JSON, hostile.patterns("model", 90, **hostile.PREFILL)
    yield hostile.BATCH, JSON, hostile.columns(1_000_000)
    yield "/graphs", JSON, hostile.graph(100_000)
    yield "/graphs", hostile.ONNX, hostile.onnx_functions(5)


def _small(port: int, over: threading.Event) -> Statuses:
    """Return what comes of small requests until connections are refused."""
    found = Statuses()
    while not over.is_set() and not found["ConnectionRefusedError"]:
        found[send(port, WATCHER, "/predict", SMALL)] += 1
    return found - Statuses({"ConnectionRefusedError": 1})


def _see_stop() -> bool:
    """Start the whole service, let it work, and send SIGTERM."""
    port, over = free_port(), threading.Event()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(16) as threads:
        own = {"GPUCAST_STOP_GRACE_S": f"{GRACE_S:g}", "GPUCAST_DATA_DIR": folder, "PORT": str(port)}
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve"],
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ask(port)
        work = [threads.submit(send, port, ATTACKER, path, body, media) for path, media, body in _kinds_of_work()]
        small = [threads.submit(_small, port, over) for _ in range(4)]
        time.sleep(2.0)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait()
        took = time.monotonic() - began
        over.set()
        statuses = Statuses(each.result() for each in work)
        others = sum((each.result() for each in small), Statuses())
    expected = set(others) == {"200"} and set(statuses) <= {"200", "201", "422", "429", "503"}
    good = code == 0 and took <= GRACE_S + _LATE_S and expected
    return print_case(f"{_STOP}: over after {took:.1f} s", good, None, None, _shown(statuses), _shown(others), "", "")


def _see_forged() -> bool:
    """Send changes with an admin's cookie from a page of another origin, as browsers before 2023 do, and from ours."""
    with tempfile.TemporaryDirectory() as folder:
        with open_runtime(Settings(data_dir=Path(folder))) as runtime, runtime.database.begin() as connection:
            cookie = {"Cookie": f"gpucast_key={keys.create_first(connection)}"}
        with_keys = {"GPUCAST_DATA_DIR": folder, "GPUCAST_KEYS": "on"}
        with server("app.main:create_app", "--factory", *BOUNDED, **with_keys) as port:
            until(lambda: send(port, WATCHER, "/livez") == "200")
            got = Statuses(_change(port, cookie | {"Origin": each}) for each in ("https://evil.example", "null"))
            ours = Statuses([_change(port, cookie | {"Origin": f"http://127.0.0.1:{port}"})])
    good = set(got) == {"403"} and set(ours) == {"200"}
    return print_case(_FORGED, good, None, None, _shown(got), _shown(ours), "", "")


def _change(port: int, headers: dict[str, str]) -> str:
    """Return the status of a DELETE with these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("DELETE", "/measurements?source=nobody", headers=headers)
    answer = connection.getresponse()
    answer.read()
    return str(answer.status)
