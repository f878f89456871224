"""A sweep on a Dask cluster of one and of two hosts, in network namespaces of their own; then with a worker killed.

    python -m benchmarks.dask_hosts [--rows 2000000]

Needs the right to make network namespaces (root) and the extra `dask`. Each host runs one worker of one thread. Prints
rows a second; exits 1 unless the sweep with a killed worker writes the same rows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from app.bootstrap.runtime import open_runtime
from app.config import Settings

BRIDGE, NETWORK, PORT = "gpucast-bench", "10.213.7", 18786
CHUNK_ROWS = 50_000


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


@contextmanager
def bridge() -> Iterator[str]:
    """A bridge between this host and others; its address here."""
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        run("ip", "address", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        yield f"{NETWORK}.1"
    finally:
        run("ip", "link", "delete", BRIDGE)


@contextmanager
def host(number: int) -> Iterator[tuple[str, ...]]:
    """A network namespace on the bridge; the prefix of commands that run there."""
    name = f"{BRIDGE}-{number}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", f"gpucast-v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"gpucast-v{number}", "master", BRIDGE, "up")
        inside = ("ip", "netns", "exec", name)
        run(*inside, "ip", "address", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "link", "set", "eth0", "up")
        yield inside
    finally:
        run("ip", "netns", "delete", name)


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, and its children."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        for each in (*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)):
            each.kill()
        process.wait()


def dask(what: str, *options: str) -> tuple[str, ...]:
    """The command of a scheduler or worker without pages."""
    return (sys.executable, "-m", "dask", what, *options, "--no-dashboard")


def swept(source: Path, folder: Path, scheduler: str, kill: psutil.Process | None = None) -> tuple[float, int]:
    """Seconds of a sweep, and the rows that it wrote; `kill`: a worker that is killed after the first chunks."""
    command = (sys.executable, "-m", "app.cli", "sweep", str(source), str(folder), "--gpu", "h100-sxm5-80gb")
    began = time.monotonic()
    quiet = subprocess.DEVNULL
    sweep = subprocess.Popen(
        [*command, "--chunk-rows", str(CHUNK_ROWS), "--dask", scheduler], stdout=quiet, stderr=quiet
    )
    while kill is not None and sweep.poll() is None:
        if len([*folder.glob("part-*.parquet")]) >= 2:
            for process in (*kill.children(recursive=True), kill):
                process.kill()
            kill = None
        time.sleep(0.05)
    if sweep.wait() != 0:
        raise RuntimeError("the sweep failed")
    parts = folder.glob("part-*.parquet")
    return time.monotonic() - began, sum(pq.read_metadata(part).num_rows for part in parts)


def table(rows: int) -> pa.Table:
    """Distinct matrix products."""
    draw = np.random.default_rng(0)
    sizes = {name: draw.integers(1, 16_384, rows) for name in ("m", "n", "k")}
    return pa.table({"op": ["linear"] * rows, "dtype": ["bf16"] * rows, **sizes})


def main() -> None:
    """Print rows a second with one host, with two, and with two of which one is lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        os.environ.update(held.enter_context(open_runtime(Settings(data_dir=folder / "data"))).settings.environment())
        pq.write_table(table(options.rows), folder / "rows.parquet", row_group_size=CHUNK_ROWS)
        address = f"tcp://{held.enter_context(bridge())}:{PORT}"
        held.enter_context(started(*dask("scheduler", "--host", address)))
        hosts = [held.enter_context(host(number)) for number in (1, 2)]
        written = []
        for name, count, lost in (("one host", 1, False), ("two hosts", 2, False), ("two, one lost", 2, True)):
            with ExitStack() as running:
                workers = [
                    running.enter_context(
                        started(*inside, *dask("worker", address, "--nthreads", "1", "--nworkers", "1"))
                    )
                    for inside in hosts[:count]
                ]
                kill = psutil.Process(workers[-1].pid) if lost else None
                seconds, rows = swept(folder / "rows.parquet", folder / name.replace(" ", "-"), address, kill)
            written.append(rows)
            print(f"{name:<16}{rows:>10,} rows in {seconds:5.1f} s: {rows / seconds:>9,.0f} rows/s", flush=True)
    sys.exit(set(written) != {options.rows})


if __name__ == "__main__":
    main()
