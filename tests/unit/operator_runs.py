"""Measured operators made up for tests."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from app.tables.measurements import Measurements, OperatorRuns
from app.tables.ops import OpTable


def runs_of(op: str, dtype: str, table: OpTable, *, gpu: Sequence[int], latency_s: Sequence[float]) -> OperatorRuns:
    """Rows of one operator; the key is a digest of the row's place, GPU and time."""
    n = len(table)
    times, on = np.array(latency_s, dtype=np.float64), np.array(gpu, dtype=np.intp)
    said = [repr((op, dtype, *table.dims[:, k].tolist(), int(on[k]), float(times[k]))) for k in range(n)]
    key = np.frombuffer(b"".join(blake2b(row.encode(), digest_size=8).digest() for row in said), dtype=np.uint64)
    nothing = np.full((3, n), np.nan)
    zeros = np.zeros(n, dtype=np.intp)
    rows = Measurements(table, on, times)
    return OperatorRuns(op, dtype, rows, zeros, zeros - 1, nothing, nothing, key, ("made",), ())
