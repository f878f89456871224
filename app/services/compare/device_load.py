"""Work of one device in one step of a workload, for the power model."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from app.engine.operator_rows import Distinct, read_operators
from app.engine.power import Load
from app.ops.figures import Work
from app.ops.kinds import kinds_of, work_of
from app.services.graphs.graph_store import Graphs
from app.services.models.resolve_networks import resolve_network
from app.steps.networks import prepare, rows_per_step
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_CODE, DTYPES
from app.wire.graph_form import NetworkWorkload
from app.wire.kernel_workload import KernelWorkload
from app.wire.operator_forms import OperatorsWorkload

ComparableWorkload: TypeAlias = KernelWorkload | OperatorsWorkload | NetworkWorkload


def device_load(workload: ComparableWorkload, graphs: Graphs | None) -> Load:
    """Return FLOPs by number format and bytes; for a pipelined network those of the mean stage."""
    if isinstance(workload, KernelWorkload):
        flops = np.zeros(len(DTYPES))
        flops[DTYPE_CODE[workload.dtype]] = workload.flops
        return Load(flops, workload.bytes)
    if isinstance(workload, OperatorsWorkload):
        distinct = read_operators(workload.operators)
        return _load(distinct, work_of(distinct.table, kinds_of(distinct.table)), distinct.repeats)
    network, run = resolve_network(workload, graphs)
    rows = prepare(network, run)
    return _load(rows.distinct, rows.work, rows_per_step(rows, run) / run.parallelism.pipeline)


def _load(distinct: Distinct, work: Work, times: Floats) -> Load:
    """Return the load of rows that run `times` often, float64 [n]; `work` is per distinct row."""
    runs = np.bincount(distinct.row, weights=times, minlength=len(distinct.table))
    flops = np.bincount(distinct.table.dtype, weights=work.flops * runs, minlength=len(DTYPES))
    return Load(flops.astype(np.float64), float(work.bytes @ runs))
