"""POST /predict against a bare ASGI handler with the same bodies: one worker each, alternating, in one run.

No body repeats within a second: every request is a kernel of another size, measured at another time.

    python -m benchmarks.http_route [--seconds 2] [--rounds 5] [--connections 16]

The bare handler reads the body, parses it and writes the same answer with orjson. Absolute figures depend on the
machine; the ratio should not. It is that of the CPU time of a request in the server's process: rates also show what
the client takes, which is more than the bare handler, and what else runs on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import orjson
import psutil
import uvloop

from app.wire.prediction_form import PREDICT_EXAMPLE
from benchmarks.load import flat_out

GOAL = 0.45
BODY = json.dumps(PREDICT_EXAMPLE).encode()
BODIES = 50_000
BOUNDED = ("--http", "app.api.http_protocol:BoundedHttp")  # as `gpucast serve` runs it
WARM_UP_S = 1.0
START_S = 120


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Parse the body, write the answer: the least that any handler with these bodies does."""
    if scope["type"] != "http":
        return
    message = await receive()
    orjson.loads(message["body"])
    body = orjson.dumps(_ANSWER)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_ANSWER: Any = orjson.loads(os.environ.get("BARE_ANSWER", "{}"))


class Served(NamedTuple):
    """Answers per second, and CPU time of the server per answer, microseconds."""

    rate: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.rate:7.0f}/s {self.cpu_us:5.1f} us"


def bodies() -> Iterator[bytes]:
    """Different kernels, over and over."""
    made = [_body(k) for k in range(BODIES)]
    return itertools.cycle(made)


def _body(k: int) -> bytes:
    workload = PREDICT_EXAMPLE["workload"]
    other = {"flops": workload["flops"] + 4096 * k, "bytes": workload["bytes"] + 64 * k, "blocks": 4096 + k}
    measured = [{**workload["measured"][0], "latency_ms": round(0.91 + 1e-6 * k, 6)}]
    return json.dumps({**PREDICT_EXAMPLE, "workload": {**workload, **other, "measured": measured}}).encode()


def main() -> None:
    """Print rate and CPU time of every round and the median ratio of CPU times; exit 1 if it is under the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        ours = held.enter_context(server("app.main:create_app", "--factory", *BOUNDED, GPUCAST_DATA_DIR=folder))
        answer = ask(ours)
        theirs = held.enter_context(server("benchmarks.http_route:bare", BARE_ANSWER=answer))
        assert orjson.loads(ask(theirs)) == orjson.loads(answer)
        ratio = _compare(ours, theirs, options)
    print(f"median ratio {ratio:.2f}, goal {GOAL}")
    sys.exit(ratio < GOAL)


def _compare(ours: int, theirs: int, options: argparse.Namespace) -> float:
    each = bodies()
    for port in (ours, theirs):
        _load(port, each, WARM_UP_S, options.connections)
    ratios = []
    for number in range(options.rounds):
        mine = _load(ours, each, options.seconds, options.connections)
        other = _load(theirs, each, options.seconds, options.connections)
        ratios.append(other.cpu_us / mine.cpu_us)
        print(f"round {number + 1}: gpucast {mine}   bare ASGI {other}   ratio {ratios[-1]:.2f}", flush=True)
    return statistics.median(ratios)


@contextmanager
def server(*target: str, **environment: str) -> Iterator[int]:
    """One uvicorn worker on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    quick = ("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning")
    command = (sys.executable, "-m", "uvicorn", *quick, *target, "--port", str(port))
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def ask(port: int) -> str:
    """One answer, once the server gives any."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", BODY, {"Content-Type": "application/json"})
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _load(port: int, each: Iterator[bytes], seconds: float, connections: int) -> Served:
    """Answers over keep-alive connections, each of which sends the next request as soon as it has an answer."""
    server = psutil.Process(next(each.pid for each in psutil.Process().children() if str(port) in each.cmdline()))
    before = server.cpu_times()
    answers = len(uvloop.run(flat_out(port, "/predict", lambda: next(each), seconds, connections)))
    after = server.cpu_times()
    cpu_s = after.user - before.user + after.system - before.system
    return Served(answers / seconds, 1e6 * cpu_s / answers)


if __name__ == "__main__":
    main()
