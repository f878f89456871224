"""What one deep-learning operator costs `auto` inside the engine, what many cost, and Arrow batches over HTTP.

    python -m benchmarks.operators [--rows 500000] [--no-http]

Inside the engine `auto` is trained on made-up rows of one operator, as many as its largest models take; over HTTP a
fresh installation answers with all that ships. Times are the least of many repeats: what the code costs when nothing
else runs. Memory is the resident set (RSS) of the one serving process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import urllib.request

import numpy as np
import psutil
import pyarrow as pa

from app.bands.conformal import Intervals
from app.engine.catalogue import load_seed_specs
from app.engine.engine import Engine, Served, untrained
from app.engine.snapshot import Snapshot
from app.ops import OP_CODE, OPS
from app.predictors.auto.operators.learning.fitting import MOST_TREES, ROWS_PER_TREE
from app.predictors.auto.predictor import Auto
from app.services.operators.operator_tables import predict_rows
from app.steps.predict_rows import OperatorQuery
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, OperatorRuns
from app.tables.ops import DTYPE_CODE, OpTable
from benchmarks.engine import least
from benchmarks.http_route import server

ONE_ROW_US, BULK_US, ROWS_PER_S, MEMORY_MB = 150.0, 2.0, 250_000.0, 400.0
GPU, OP, DTYPE = "h100-sxm5-80gb", "linear", "bf16"
BULK, BATCHES = 200_000, 8
START_S = 120
_NO_ROWS = np.empty(0, dtype=np.intp)


def main() -> None:
    """Print every figure beside its goal; exit 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a batch")
    parser.add_argument("--http", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    specs = load_seed_specs()
    gpus = GpuTable.from_specs(specs)
    auto = Auto().fit_operators([_measured(gpus, MOST_TREES[False] * ROWS_PER_TREE)], gpus)
    served = {**untrained(), ("auto", "*"): Served(auto, Intervals.prior(), "benchmark")}
    snapshot = Snapshot.of(Engine(Catalog(specs), gpus, served))
    missed = [
        _told("one row, engine", _one_row(snapshot), ONE_ROW_US, "us"),
        _told(f"{BULK:,} rows, engine, per row", _bulk(snapshot), BULK_US, "us"),
    ]
    if options.http:
        missed += _over_http(options.rows)
    print(f"load average {os.getloadavg()[0]:.2f}")
    sys.exit(any(missed))


def _told(what: str, figure: float, goal: float, unit: str, *, least_is_best: bool = True) -> bool:
    print(f"{what:<46}{figure:>12,.2f} {unit:<8} goal {goal:,.0f}", flush=True)
    return figure > goal if least_is_best else figure < goal


def _shapes(n: int, seed: int) -> OpTable:
    """Layers of 1 to 16,384 rows and 256 to 16,384 features, multiples of eight: others teach nothing."""
    op, draw = OPS[OP_CODE[OP]], np.random.default_rng(seed)
    dims = np.zeros((len(op.fields), n))
    for name, low, step in (("m", 1.0, 1.0), ("n", 256.0, 8.0), ("k", 256.0, 8.0)):
        dims[op.fields[name]] = step * np.rint(np.exp(draw.uniform(np.log(low), np.log(16384.0), n)) / step)
    dims[op.fields["count"]] = 1.0
    dims[op.fields["eager"]] = np.nan
    zeros = np.zeros(n, dtype=np.intp)
    return OpTable(zeros + OP_CODE[OP], zeros + DTYPE_CODE[DTYPE], zeros, op.fields, dims)


def _measured(gpus: GpuTable, n: int) -> OperatorRuns:
    """Made-up rows: what untrained `auto` says, with an error that depends on the shape."""
    ops, zeros = _shapes(n, 0), np.zeros(n, dtype=np.intp)
    on = np.full(n, gpus.ids.index(GPU))
    answer = Auto().predict(ops, gpus, np.arange(n), on, evidence=_nothing(ops)).latency_s
    off = 0.2 * np.sin(3.0 * np.log(ops.column("m"))) + 0.1 * np.random.default_rng(1).normal(size=n)
    blank = np.full((3, n), np.nan)
    rows = Measurements(ops, on, answer * np.exp(off))
    key = np.arange(n, dtype=np.uint64)
    return OperatorRuns(OP, DTYPE, rows, zeros, zeros - 1, blank, blank, key, ("made up",), ())


def _nothing(ops: OpTable) -> Evidence:
    return Evidence(Measurements(ops.take(_NO_ROWS), _NO_ROWS, np.empty(0)), _NO_ROWS)


def _one_row(snapshot: Snapshot) -> float:
    """Microseconds of one prediction."""
    engine, ops = snapshot.engine, _shapes(1, 2)
    evidence, i, j = _nothing(ops), np.zeros(1, dtype=np.intp), np.array([snapshot.row_of[GPU]])
    return least(lambda: engine.predict(ops, engine.gpus, i, j, predictor="auto", coverage=0.8, evidence=evidence))


def _bulk(snapshot: Snapshot) -> float:
    """Microseconds per row of a table in the chunks that it is served in."""
    query = OperatorQuery(snapshot.engine, _shapes(BULK, 3), snapshot.engine.gpus, "auto", 0.8)
    return least(lambda: predict_rows(query, snapshot.row_of[GPU]), loops=1, repeats=5) / BULK


def _over_http(rows: int) -> list[bool]:
    """Arrow batches, one after another, to the one serving process of a fresh installation."""
    body = _arrow(rows)
    with (
        tempfile.TemporaryDirectory() as folder,
        server("app.main:create_app", "--factory", GPUCAST_DATA_DIR=folder) as port,
    ):
        _await(port)
        process = _listening(port)
        before = process.memory_info().rss / 1e6
        fastest = min(_posted(port, body) for _ in range(BATCHES))
        after = process.memory_info().rss / 1e6
    return [
        _told(f"{rows:,} rows, Arrow over HTTP", rows / fastest, ROWS_PER_S, "rows/s", least_is_best=False),
        _told("memory of the worker at its start", before, MEMORY_MB, "MB"),
        _told(f"memory of the worker after {BATCHES} batches", after, MEMORY_MB, "MB"),
    ]


def _arrow(rows: int) -> bytes:
    """A stream of m, n, k and one operator."""
    ops = _shapes(rows, 4)
    op = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int8)), pa.array([OP]))
    dtype = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int8)), pa.array([DTYPE]))
    sizes = {name: pa.array(ops.column(name).astype(np.int32)) for name in ("m", "n", "k")}
    table = pa.table({"op": op, "dtype": dtype, **sizes})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _await(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _listening(port: int) -> psutil.Process:
    """The child of this process that listens."""
    for child in psutil.Process().children():
        if any(found.laddr.port == port for found in child.net_connections()):
            return child
    raise RuntimeError(f"nothing listens on {port}")


def _posted(port: int, body: bytes) -> float:
    """Seconds of one batch."""
    url = f"http://127.0.0.1:{port}/predict/batch?gpu={GPU}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/vnd.apache.arrow.stream"})
    began = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        answer.read()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
