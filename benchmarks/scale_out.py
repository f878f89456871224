"""One, two and four API processes behind one port: predictions and uploads a second, and what limits them.

    python -m benchmarks.scale_out [--processes 1 2 4] [--seconds 5] [--rows 200000] [--soak-minutes 10]

Starts the whole service on an empty data folder, once for each number of processes. Then one process answers
predictions at half of its capacity for some minutes: its memory must stay within 2 %. Exits 1 if it does not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
import uvloop

from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.engine.catalogue import load_seed_specs
from app.engine.exact_hits import OperatorIndex
from app.engine.measurement_tables import stored_operators
from app.tables.gpus import GpuTable
from app.wire.prediction_form import PREDICT_EXAMPLE
from benchmarks.load import at_rate, flat_out, quantiles
from benchmarks.uploads import rows
from tests.service import Service

MOST_GROWTH = 0.02
# Before memory is compared: caches fill, and connections open.
SETTLING_S = 60.0
_PREDICT = json.dumps(PREDICT_EXAMPLE).encode()


@dataclass
class Used:
    """Processor time by what used it, seconds."""

    seconds: Counter[str]
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        parts = [f"{name} {spent / self.elapsed_s:.2f}" for name, spent in self.seconds.most_common()]
        return f"processors used of {os.cpu_count()}: " + ", ".join(parts)


@contextmanager
def used(service: Service) -> Iterator[Used]:
    """Processor time while the block runs."""
    found, before, began = Used(Counter()), spent(service), time.monotonic()
    yield found
    found.elapsed_s = time.monotonic() - began
    found.seconds = spent(service) - before


def spent(service: Service) -> Counter[str]:
    """Processor time so far of the service's processes, of its database's and of this one, seconds."""
    assert service.process is not None
    main = psutil.Process(service.process.pid)
    total = Counter({"load": sum(psutil.Process().cpu_times()[:2])})
    for process in (main, *main.children(recursive=True)):
        command = " ".join(process.cmdline())
        name = "worker" if "worker" in command else "corrections" if "correction_process" in command else "API"
        total[name] += sum(process.cpu_times()[:2])
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "postgres":
            total["PostgreSQL"] += sum(process.cpu_times()[:2])
    return total


@contextmanager
def served(processes: int) -> Iterator[Service]:
    """A service of some API processes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = Settings(data_dir=Path(folder) / "data", workers=processes)
        with Service(settings, Path(folder) / "log") as service:
            yield service


def measure(processes: int, seconds: float) -> float:
    """Print what a number of processes answers; returns predictions a second."""
    bodies = (json.dumps([row]).encode() for row in rows(1_000_000))
    with served(processes) as service:
        uvloop.run(flat_out(service.port, "/predict", lambda: _PREDICT, 1.0))
        rates: list[float] = []
        for what, path, body, connections in (
            ("predictions", "/predict", lambda: _PREDICT, 16),
            ("uploads", "/measurements", lambda: next(bodies), 4),
        ):
            with used(service) as processor:
                waits = uvloop.run(flat_out(service.port, path, body, seconds, connections))
            middle, late, _ = quantiles(waits)
            rates.append(len(waits) / seconds)
            times = f"p50 {middle:.1f} ms, p99 {late:.1f} ms"
            print(f"{processes} API processes: {rates[-1]:>8,.0f} {what}/s, {times}; {processor}", flush=True)
    return rates[0]


def stored(rows_sent: int) -> None:
    """Print what a large upload, its rows on disk and a start with them cost."""
    sink = io.BytesIO()
    absent = dict.fromkeys(("b", "m", "n", "k", "h"))  # a table has the columns of its first row
    pq.write_table(pa.Table.from_pylist([{**absent, **row.pop("workload"), **row} for row in rows(rows_sent)]), sink)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = Settings(data_dir=Path(folder) / "data")
        with Service(settings, Path(folder) / "log") as service:
            service.client.timeout = 600
            began = time.monotonic()
            media = {"content-type": "application/vnd.apache.parquet"}
            service.client.post("/measurements", content=sink.getvalue(), headers=media).raise_for_status()
            uploaded_s = time.monotonic() - began
        with open_runtime(settings) as runtime, runtime.database.begin(long=True) as connection:
            size = connection.execute(sa.text("SELECT pg_total_relation_size('operator_measurements')")).scalar_one()
            began = time.monotonic()
            index = OperatorIndex.build(stored_operators(connection, _gpus()), len(_gpus()))
            read_s = time.monotonic() - began
    held = sum(column.nbytes for column in (index.keys, index.latency_s, index.start)) / len(index)
    per_row = size / rows_sent
    print(f"upload of {rows_sent:,} rows: {rows_sent / uploaded_s:,.0f} rows/s; {per_row:.0f} bytes a row on disk")
    print(f"read at a start: {rows_sent / read_s:,.0f} rows/s; {held:.0f} bytes a row in each process")


@lru_cache(maxsize=1)
def _gpus() -> GpuTable:
    return GpuTable.from_specs(load_seed_specs())


def soak(minutes: float, rate: float) -> float:
    """Growth of one process's memory under predictions at a rate, after SETTLING_S, as a share."""
    with served(1) as service:
        assert service.process is not None
        main = psutil.Process(service.process.pid)
        uvloop.run(at_rate(service.port, "/predict", lambda: _PREDICT, rate, SETTLING_S))
        before = main.memory_info().rss
        waits = uvloop.run(at_rate(service.port, "/predict", lambda: _PREDICT, rate, 60.0 * minutes))
        after = main.memory_info().rss
    middle, late, longest = quantiles(waits)
    growth: float = after / before - 1
    times = f"p50 {middle:.1f} ms, p99 {late:.1f} ms, longest {longest:.0f} ms"
    print(f"{len(waits):,} predictions at {rate:,.0f}/s: {times}")
    print(f"memory {before / 2**20:.0f} MiB, {minutes:g} minutes later {after / 2**20:.0f} MiB: {growth:+.1%}")
    return growth


def main() -> None:
    """Print rates, and the growth of memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--soak-minutes", type=float, default=10.0)
    options = parser.parse_args()
    stored(options.rows)
    rates = [measure(processes, options.seconds) for processes in options.processes]
    if options.soak_minutes > 0:
        sys.exit(soak(options.soak_minutes, rates[0] / 2) > MOST_GROWTH)


if __name__ == "__main__":
    main()
