"""A trial of a version before it serves: it answers for all that it claims to know.

Artefacts are files that other versions of the code, or other installations, wrote. One that cannot answer must not end
a start, nor the first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from app.bands.coverage import COVERAGE
from app.engine.engine import Served
from app.ops import MIXED_FIELDS, OP_CODE, OPS
from app.predictors.base import Predictor
from app.store.artifacts import ArtifactRefused
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.ops import DTYPE_CODE, OpTable
from app.wire.kernel_tables import NO_MEASUREMENTS, tables_with_measured
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload

# Of a dimension that a row may not leave out.
_SIZE = 64.0
_NONE = Evidence(NO_MEASUREMENTS, np.empty(0, dtype=np.intp))


def tried(served: Served, gpus: GpuTable) -> Served:
    """The version, once it answered for GPUs of this table; ArtifactRefused says why it did not."""
    try:
        _ask(served, gpus)
    except Exception as error:
        raise ArtifactRefused(f"It cannot answer: {error!r}.") from error
    return served


def tried_on(predictor: Predictor, gpus: GpuTable, cells: Sequence[tuple[str, str]], on: Sequence[int]) -> None:
    """Raise ArtifactRefused unless a predictor answers for operators in these dtypes on these rows of `gpus`."""
    try:
        _ask_operators(predictor, gpus, cells, np.array(on, dtype=np.intp))
    except Exception as error:
        raise ArtifactRefused(f"It cannot answer: {error!r}.") from error


def _ask_operators(predictor: Predictor, gpus: GpuTable, cells: Sequence[tuple[str, str]], on: Ints) -> None:
    ops = operator_rows(cells)
    i, j = np.tile(np.arange(len(ops)), len(on)), np.repeat(on, len(ops))
    predictor.predict(ops, gpus, i, j, evidence=_NONE)


def _ask(served: Served, gpus: GpuTable) -> None:
    """Launches and operators that it knows, on a GPU and on those that it learned from."""
    if not np.isfinite(served.log_offsets(COVERAGE)).all():
        raise ValueError("its intervals are not finite")
    on = np.array([0, *(row for row, gpu in enumerate(gpus.ids) if row and gpu in served.gpus)], dtype=np.intp)
    if served.predictor.can.learns_launches:
        ops, rows = tables_with_measured([msgspec.convert(KERNEL_EXAMPLE, KernelWorkload)], [0])
        first = np.zeros(len(on), dtype=np.intp)
        for evidence in (Evidence(rows.take(first), np.arange(len(on))), _NONE):
            served.predictor.predict(ops, gpus, first, on, evidence=evidence)
    if served.cells:
        _ask_operators(served.predictor, gpus, served.cells, on)


def operator_rows(cells: Sequence[tuple[str, str]]) -> OpTable:
    """A row of each operator in each dtype, of a middling size, in the order of OPS."""
    codes = sorted((OP_CODE[op], DTYPE_CODE[dtype]) for op, dtype in cells)
    dims = np.full((len(MIXED_FIELDS), len(codes)), np.nan)
    for row, (kind, _) in enumerate(codes):
        for dim in OPS[kind].dims:
            for column in dim.columns:
                middling = min(max(_SIZE, dim.least), dim.most)
                dims[MIXED_FIELDS[column], row] = middling if dim.default is None else dim.default
    kind, dtype = np.array(codes, dtype=np.intp).T
    return OpTable(kind.copy(), dtype.copy(), np.zeros(len(codes), dtype=np.intp), MIXED_FIELDS, dims)


def learned_cells(payload: dict[str, Any], predictor: Any) -> list[tuple[str, str]]:
    """Operators and dtypes that a payload's version learned."""
    return [(op, dtype) for op, dtype in predictor.learned_cells(payload["state"])]
