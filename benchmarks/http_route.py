"""POST /predict against a bare ASGI handler with the same bodies: one worker each, alternating, in one run.

    python -m benchmarks.http_route [--seconds 2] [--rounds 5] [--connections 16]

The bare handler reads the body, parses it and writes the same answer with orjson. Absolute figures depend on the
machine; the ratio should not.
"""

from __future__ import annotations

import argparse
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
from typing import Any

import orjson
import uvloop

from app.wire.prediction_form import PREDICT_EXAMPLE
from benchmarks.load import flat_out

GOAL = 0.45
BODY = json.dumps(PREDICT_EXAMPLE).encode()
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


def main() -> None:
    """Print both rates of every round and the median ratio; exit 1 if it is under the goal."""
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
    for port in (ours, theirs):
        _rate(port, WARM_UP_S, options.connections)
    ratios = []
    for number in range(options.rounds):
        mine = _rate(ours, options.seconds, options.connections)
        other = _rate(theirs, options.seconds, options.connections)
        ratios.append(mine / other)
        print(
            f"round {number + 1}: gpucast {mine:7.0f}/s   bare ASGI {other:7.0f}/s   ratio {ratios[-1]:.2f}", flush=True
        )
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


def _rate(port: int, seconds: float, connections: int) -> float:
    """Answers per second over keep-alive connections."""
    return len(uvloop.run(flat_out(port, "/predict", lambda: BODY, seconds, connections))) / seconds


if __name__ == "__main__":
    main()
