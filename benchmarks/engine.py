"""Benchmark of kernel predictions inside the engine, one at a time and in bulk.

    python -m benchmarks.engine [--predictor auto]

Times are minima over many repeats, microseconds, which exclude other load.
"""

from __future__ import annotations

import argparse
import json
import sys
import timeit
from collections.abc import Callable

import numpy as np

from app.engine.catalogue import load_seed_specs
from app.engine.engine import Engine
from app.engine.snapshot import Snapshot
from app.services.kernels.predict_kernels import predict_kernel
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.wire.kernel_tables import tables_with_measured
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload
from app.wire.predict_body import read_request, write_response
from app.wire.prediction_form import PredictRequest

GOAL_US = 60.0
LOOPS, REPEATS = 200, 50
BULK = 100_000
TARGET, SOURCE = "rtx-4070", "titan-v"


def main() -> None:
    """Print microseconds per prediction; exit with 1 if a single one exceeds the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predictor", default="auto")
    predictor = parser.parse_args().predictor
    specs = load_seed_specs()
    snapshot = Snapshot.of(Engine(Catalog(specs), GpuTable.from_specs(specs)))
    slowest = 0.0
    for measured in (0, 1, 3):
        single = _single(snapshot, predictor, measured)
        slowest = max(slowest, single)
        print(f"one kernel, {measured} measured rows: engine {single:6.1f} us", flush=True)
    print(f"the whole request, 1 measured row: {_request(snapshot, predictor):6.1f} us")
    print(f"{BULK:,} at once, 1 measured row each: {_bulk(snapshot, predictor):6.2f} us a prediction")
    sys.exit(slowest > GOAL_US)


def _body(predictor: str, measured: int) -> bytes:
    rows = KERNEL_EXAMPLE["measured"] * measured
    return json.dumps({"gpu": TARGET, "predictor": predictor, "workload": KERNEL_EXAMPLE | {"measured": rows}}).encode()


def _read(body: bytes) -> PredictRequest:
    request = read_request(body)
    assert isinstance(request, PredictRequest)
    return request


def least(call: Callable[[], object], loops: int = LOOPS, repeats: int = REPEATS) -> float:
    """Return the microseconds of one call, the minimum over many repeats."""
    call()
    return min(timeit.repeat(call, number=loops, repeat=repeats)) / loops * 1e6


def _single(snapshot: Snapshot, predictor: str, measured: int) -> float:
    ops, given = _tables(snapshot, measured)
    engine, evidence = snapshot.engine, Evidence(given, np.zeros(measured, dtype=np.intp))
    i, j = np.zeros(1, dtype=np.intp), np.array([snapshot.row_of[TARGET]])

    def call() -> object:
        return engine.predict(ops, engine.gpus, i, j, predictor=predictor, coverage=0.8, evidence=evidence)

    return least(call)


def _tables(snapshot: Snapshot, measured: int) -> tuple[OpTable, Measurements]:
    workload = _read(_body("auto", measured)).workload
    assert isinstance(workload, KernelWorkload)
    return tables_with_measured([workload], [snapshot.row_of[SOURCE]] * measured)


def _request(snapshot: Snapshot, predictor: str) -> float:
    body = _body(predictor, 1)
    return least(lambda: write_response(predict_kernel(snapshot, _read(body))))


def _bulk(snapshot: Snapshot, predictor: str) -> float:
    engine, i = snapshot.engine, np.zeros(BULK, dtype=np.intp)
    ops, given = _tables(snapshot, 1)
    evidence = Evidence(given.take(i), np.arange(BULK))
    j = np.arange(BULK) % len(engine.gpus)

    def call() -> object:
        return engine.predict(ops, engine.gpus, i, j, predictor=predictor, coverage=0.8, evidence=evidence)

    return least(call, loops=1, repeats=3) / BULK


if __name__ == "__main__":
    main()
