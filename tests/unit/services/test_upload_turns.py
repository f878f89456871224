"""Of many small uploads at a time one is checked: the others do not want Python's lock meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from traceback import walk_stack

from app.engine.catalogue import load_catalog
from app.engine.engine import Engine
from app.services.measurements.store_uploads import ingest
from app.store.session import Database
from app.tables.gpus import GpuTable
from app.wire.measurement_form import Objects, Upload
from tests.unit.services.test_ingest import ROW

UPLOADS, ROWS = 12, 100


def busy(work: list[Future[object]]) -> int:
    """Return the most threads that were seen to check or compare rows at once, until all uploads have their answers."""
    most = 0
    while not all(each.done() for each in work):
        threads = 0
        for frame in sys._current_frames().values():
            names = {each.f_code.co_name for each, _ in walk_stack(frame)}
            threads += bool(names & {"parse_rows", "compare_with_predictions"})
        most = max(most, threads)
        time.sleep(0.0005)
    return most


def test_small_uploads_are_checked_one_at_a_time(database: Database) -> None:
    with database.begin() as connection:
        catalog = load_catalog(connection)
    engine = Engine(catalog, GpuTable.from_specs(catalog.specs))
    together = threading.Barrier(UPLOADS)

    def send(k: int) -> object:
        together.wait()
        rows = [ROW | {"gpu": "titan-v", "latency_ms": 1.5 + k + j / 1e3} for j in range(ROWS)]
        return ingest(database, engine, Upload((Objects.of(rows),)), dry_run=True)

    with ThreadPoolExecutor(UPLOADS) as threads:
        uploads = [threads.submit(send, k) for k in range(UPLOADS)]
        assert busy(uploads) == 1
        assert all(each.result() for each in uploads)
