"""A million measured rows in one Parquet file, uploaded beside small requests; for benchmarks.hostile.

    python -m benchmarks.hostile_rows [--rows N] [--only WORD]

Server, uploader, watcher and another caller, who uploads a row every quarter of a second, are processes of their own,
and the server has a PostgreSQL of its own. Waits count as in benchmarks.hostile, but those of the other caller's
uploads on the clock. Memory is that of the API process with those that decode files, shared pages counted once, until
the new rows are in force; that with the process that fits corrections, which is there in the minute after a start, is
shown beside it. Then the file is sent again with other sources, and its caller leaves: how long the API process, its
others and the database go on computing.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import hostile_run
from benchmarks.hostile import PARQUET
from benchmarks.hostile_callers import ATTACKER, WATCHER, send
from benchmarks.http_route import BOUNDED, ask, server

ROWS = 1_000_000
GOAL_RATE, GOAL_BYTES, GOAL_ENDS_S, GOAL_UPLOAD_S = 30_000, 600_000_000, 1.0, 1.0
_UPLOAD_EVERY_S = 0.25
_EVERY_S, _WEIGH_S = 0.005, 0.05
# The caller leaves so many seconds after it began to send: its rows are being stored.
_LEAVES_S = 5.0
# Work is over when all processes compute less than this share of a span.
_IDLE_SHARE, _IDLE_S, _LONGEST_S = 0.2, 0.25, 120.0
_SPAWN = get_context("spawn")


def table(n: int, /, **columns: Any) -> bytes:
    """A compressed file of distinct products with plausible times; `columns` replace or add some."""
    k = np.arange(n)
    m, width = 1 + k % 1000, 1 + k // 1000
    texts = {"gpu": "titan-v", "op": "linear", "dtype": "fp16", "source": f"{n:,} rows", "software": "pytorch-2.1"}
    figures = {"m": m, "n": width, "k": np.full(n, 64), "latency_ms": 0.01 + 2e-9 * m * width}
    held = {name: pa.array([value] * n) for name, value in texts.items()} | figures | columns
    sink = io.BytesIO()
    pq.write_table(pa.table(held), sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def numbered(word: str, number: int, n: int) -> pa.Array:
    """So many texts, in turn."""
    texts = pa.array([f"{word}{k}" for k in range(number)])
    return pa.DictionaryArray.from_arrays(pa.array(np.arange(n) % number), texts)


def dated(n: int) -> pa.Array:
    """A time of every row."""
    return pa.array((1_704_067_200 + np.arange(n)).astype("datetime64[s]"), pa.timestamp("s", "UTC"))


class Case(NamedTuple):
    """An upload: its name, a function of the number of rows that makes its file, and the status that it must get."""

    name: str
    body: Callable[[int], bytes]
    status: str = "200"
    path: str = "/measurements"


def impossible(n: int) -> bytes:
    """Large products in no time."""
    return table(n, **{"n": np.full(n, 8192), "k": np.full(n, 8192), "latency_ms": np.full(n, 1e-5)})


CASES = (
    Case("rows", table),
    Case("rows, dry run", table, path="/measurements?dry_run=true"),
    Case("rows and times", lambda n: table(n, measured_at=dated(n))),
    Case("rows of 1,000 kernels", lambda n: table(n, **{"kernel.name": numbered("k", 1000, n)})),
    Case("rows of as many sources", lambda n: table(n, source=numbered("s", n, n)), "422"),
    Case("rows of as many unknown GPUs", lambda n: table(n, gpu=numbered("g", n, n)), "422"),
    Case("doubtful rows", lambda n: table(n, latency_ms=np.full(n, 1e6)), "422"),
    Case("impossible rows", impossible, "422"),
)


class Seen(NamedTuple):
    """What others saw: milliseconds of the longest wait, as counted and on the clock, and most bytes of processes.

    `upload_s` is the longest wait of a small upload on the clock, seconds.
    """

    wait_ms: float = 0.0
    clock_ms: float = 0.0
    bytes: int = 0
    bytes_in_all: int = 0
    upload_s: float = 0.0


def watch(port: int, pipe: Connection) -> None:
    """Send small requests and weigh the server until told to stop; then send what was seen."""
    api, over, seen = hostile_run.listening(port), threading.Event(), Seen()
    clock, weights = hostile_run.processor_clock(api.pid), [weight(api)]

    def weigh() -> None:
        while not over.wait(_WEIGH_S):
            weights.append(weight(api))

    thread = threading.Thread(target=weigh)
    thread.start()
    pipe.send("watching")
    while not pipe.poll():
        time.sleep(_EVERY_S)
        began, used = time.perf_counter(), time.clock_gettime(clock)
        status = send(port, WATCHER, "/predict", hostile_run.SMALL)
        took = 1e3 * (time.perf_counter() - began)
        assert status == "200", status
        computed = 1e3 * (time.clock_gettime(clock) - used)
        seen = seen._replace(wait_ms=max(seen.wait_ms, min(took, computed)), clock_ms=max(seen.clock_ms, took))
    over.set()
    thread.join()
    pipe.send(Seen(seen.wait_ms, seen.clock_ms, *map(max, zip(*weights, strict=True))))


def upload(port: int, pipe: Connection) -> None:
    """Upload a new row again and again until told to stop; then send the longest wait, seconds."""
    longest, number = 0.0, 0
    workload = {"kind": "operator", "op": "linear", "dtype": "fp16", "m": 512, "n": 512, "k": 512}
    pipe.send("uploading")
    while not pipe.poll(_UPLOAD_EVERY_S):
        number += 1
        about = {"gpu": "titan-v", "software": "pytorch-2.1", "source": "small"}
        row = {**about, "workload": workload, "latency_ms": 0.02 + 1e-6 * number}
        began = time.perf_counter()
        status = send(port, WATCHER, "/measurements", json.dumps([row]).encode())
        longest = max(longest, time.perf_counter() - began) if status == "200" else math.inf
    pipe.send(longest)


def weight(api: psutil.Process) -> tuple[int, int]:
    """Return the bytes of a process and of those that decode for it, and of all that it started."""
    own = every = 0
    for each in (api, *api.children(recursive=True)):
        with suppress(psutil.Error):
            size = each.memory_full_info().pss
            every += size
            own += 0 if "app.engine.correction_process" in each.cmdline() else size
    return own, every


def see(port: int, case: Case, body: bytes) -> tuple[str, float, Seen]:
    """Send an upload beside small requests; return its status, its seconds and what others saw."""
    with beside(watch, port) as watcher, beside(upload, port) as uploader:
        began = time.perf_counter()
        status = send(port, ATTACKER, case.path, body, PARQUET)
        took = time.perf_counter() - began
        time.sleep(1.0)  # until the next poll of the database
        seen = [_over(each) for each in (watcher, uploader)]
    return status, took, seen[0]._replace(upload_s=seen[1])


@contextmanager
def beside(caller: Callable[[int, Connection], None], port: int) -> Iterator[Connection]:
    """Run another caller, which has begun, in a process of its own."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=caller, args=(port, theirs))
    process.start()
    ours.recv()
    yield ours
    process.join()


def _over(caller: Connection) -> Any:
    caller.send("over")
    return caller.recv()


def ends_s(port: int, folder: str, case: Case, body: bytes) -> float:
    """Send an upload and leave; return how long the server and its database compute afterwards."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300, source_address=(ATTACKER, 0))
    connection.request("POST", case.path, body, {"Content-Type": PARQUET})
    time.sleep(_LEAVES_S)
    connection.close()
    began = time.perf_counter()
    while (at := time.perf_counter()) - began < _LONGEST_S:
        before = _computed_s(port, folder)
        time.sleep(_IDLE_S)
        if _computed_s(port, folder) - before < _IDLE_SHARE * _IDLE_S:
            break
    return at - began


def _computed_s(port: int, folder: str) -> float:
    """Return the processor time of the API process, those that it started, and connections to its database."""
    api, total = hostile_run.listening(port), 0.0
    databases = (each for each in psutil.process_iter() if each.name().startswith("postgres"))
    for each in (api, *api.children(recursive=True), *databases):
        with suppress(psutil.Error):
            if each.name() != "postgres" or each.cwd().startswith(folder):
                total += sum(each.cpu_times()[:2])
    return total


def see_all(word: str, rows: int = ROWS) -> list[bool]:
    """Print a line per case whose name has the word; return whether each reaches the goals."""
    chosen = [case for case in CASES if word in f"million {case.name}"]
    if chosen:
        hostile_run.print_header(
            "upload", "sent", "status", "answered", "rows a second", "clock", "upload", "memory", "in all", "ends"
        )
    return [_see(case, rows) for case in chosen]


def _see(case: Case, rows: int) -> bool:
    body = case.body(rows)
    with (
        tempfile.TemporaryDirectory() as folder,
        server("app.main:create_app", "--factory", *BOUNDED, GPUCAST_DATA_DIR=folder) as port,
    ):
        ask(port)
        before = _computed_s(port, folder)
        status, took, seen = see(port, case, body)
        computed_s = _computed_s(port, folder) - before
        left_s = ends_s(port, folder, case, case.body(rows + 1))
    quick = rows / took >= GOAL_RATE and seen.wait_ms <= hostile_run.GOAL_MS and left_s <= GOAL_ENDS_S
    good = status == case.status and quick and seen.bytes <= GOAL_BYTES and seen.upload_s <= GOAL_UPLOAD_S
    cells = (
        f"{len(body) / 1e6:.1f} MB",
        status,
        f"{took:.1f} s",
        f"{rows / took:,.0f}",
        f"{seen.clock_ms:.0f} ms",
        f"{seen.upload_s:.2f} s",
        f"{seen.bytes / 1e6:.0f} MB",
        f"{seen.bytes_in_all / 1e6:.0f} MB",
        f"{left_s:.1f} s",
    )
    return hostile_run.print_case(f"{rows:,} {case.name}", good, computed_s, seen.wait_ms, *cells)


def main() -> None:
    """Print the table; exit 1 unless all goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"rows of a file (default: {ROWS:,})")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name has this word")
    options = parser.parse_args()
    good = see_all(options.only, options.rows)
    sys.exit(not (good and all(good)))


if __name__ == "__main__":
    main()
