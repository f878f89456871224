"""POST /measurements of one row, alone and beside predictions, while a GPU has many rows that `auto` did not learn.

    python -m benchmarks.uploads [--rows 1500] [--seconds 20] [--uploads 50] [--predictions 500]

Starts the whole service on an empty data folder. Stores measured operators of a GPU, then sends further rows one by
one: first alone, then at a rate beside predictions at another. Exits 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from app.config import Settings
from app.wire.prediction_form import PREDICT_EXAMPLE
from benchmarks.load import at_rate, connected, quantiles
from tests.service import Service, wait_corrected

# Aims: median of an upload, and the longest answer of either kind, milliseconds.
MEDIAN_MS, STALL_MS = 50.0, 100.0
GPU = "titan-v"
DTYPES, OPERATORS = ("fp32", "fp16"), ("linear", "bmm", "softmax", "layer_norm", "gelu", "add")
_PREDICT = json.dumps(PREDICT_EXAMPLE).encode()


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Distinct measured operators, made up."""
    draw = np.random.default_rng(0)
    for k in range(count):
        op, dtype = OPERATORS[k % len(OPERATORS)], DTYPES[k // len(OPERATORS) % len(DTYPES)]
        m, n, size = (int(each) for each in draw.integers(64, 4096, 3))
        product, batch = {"m": m, "n": n, "k": size}, 4 if op == "bmm" else 1
        dims = {"b": batch, **product} if op == "bmm" else product if op == "linear" else {"b": 64 + k, "h": n}
        seconds = 5e-5 + (2 * batch * m * n * size / 4e12 if "m" in dims else 8 * dims["b"] * n / 3e11)
        yield {
            "gpu": GPU,
            "software": "pytorch-2.4",
            "source": "benchmark",
            "latency_ms": 1e3 * seconds * float(draw.uniform(1.0, 1.2)),
            "workload": {"kind": "operator", "op": op, "dtype": dtype, **dims},
        }


def printed(name: str, waits: list[float]) -> tuple[float, float]:
    """Print the quantiles of waits; returns the median and the longest."""
    middle, late, longest = quantiles(waits)
    print(f"{name:<44}{len(waits):>6} requests: p50 {middle:6.1f} ms, p99 {late:6.1f} ms, longest {longest:6.1f} ms")
    return middle, longest


def processor_ms(service: Service) -> float:
    """Milliseconds of processor time that the API process has taken."""
    assert service.process is not None
    times = psutil.Process(service.process.pid).cpu_times()
    return 1e3 * float(times.user + times.system)


def corrected_s(service: Service) -> float:
    """Seconds until corrections include every row."""
    began = time.monotonic()
    wait_corrected(service.client)
    return time.monotonic() - began


def main() -> None:
    """Print the waits of uploads and predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--uploads", type=float, default=50.0)
    parser.add_argument("--predictions", type=float, default=500.0)
    options = parser.parse_args()
    alone = 100
    made = list(rows(options.rows + alone + int(options.seconds * options.uploads)))
    left = iter(json.dumps([row]).encode() for row in made[options.rows :])
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Service(Settings(data_dir=Path(folder) / "data"), Path(folder) / "log") as service,
    ):
        service.client.post("/measurements", json=made[: options.rows]).raise_for_status()
        print(f"{options.rows} rows of a GPU correct predictions after {corrected_s(service):.1f} s")
        before = processor_ms(service)
        first = printed("uploads of one row, alone", uvloop.run(_alone(service.port, left, alone)))
        print(f"processor time of the service: {(processor_ms(service) - before) / alone:.1f} ms an upload")
        print(f"the last of them corrects predictions after {corrected_s(service):.1f} s")
        uploads, predictions = uvloop.run(_together(service.port, left, options))
        second = printed(f"uploads at {options.uploads:g}/s beside predictions", uploads)
        third = printed(f"predictions at {options.predictions:g}/s beside uploads", predictions)
        print(f"the last of them corrects predictions after {corrected_s(service):.1f} s")
    sys.exit(max(first[0], second[0]) > MEDIAN_MS or max(second[1], third[1]) > STALL_MS)


async def _alone(port: int, bodies: Iterator[bytes], count: int) -> list[float]:
    waits = []
    async with connected(port, "/measurements") as ask:
        for _ in range(count):
            began = time.perf_counter()
            await ask(next(bodies))
            waits.append(1e3 * (time.perf_counter() - began))
    return waits


async def _together(port: int, bodies: Iterator[bytes], options: argparse.Namespace) -> tuple[list[float], list[float]]:
    uploads = at_rate(port, "/measurements", lambda: next(bodies), options.uploads, options.seconds)
    predictions = at_rate(port, "/predict", lambda: _PREDICT, options.predictions, options.seconds)
    both = await asyncio.gather(uploads, predictions)
    return both[0], both[1]


if __name__ == "__main__":
    main()
