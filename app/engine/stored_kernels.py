"""Convert stored kernel measurements to a table that predictors train on and transfer from."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from app.store.measurements import MeasurementRow
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload


def stored_kernels(rows: Sequence[MeasurementRow], gpus: GpuTable) -> tuple[Measurements, list[str]]:
    """Return the rows whose GPU is in `gpus` as a table, and their ids. `Measurements.gpu` are rows of `gpus`."""
    position = {gpu_id: j for j, gpu_id in enumerate(gpus.ids)}
    known = [row for row in rows if row.kind == "kernel" and row.gpu_id in position]
    table = Measurements(
        kernel_table(msgspec.convert([row.workload for row in known], list[KernelWorkload])),
        np.array([position[row.gpu_id] for row in known], dtype=np.intp),
        np.array([row.latency_s for row in known], dtype=np.float64),
    )
    return table, [row.id for row in known]
