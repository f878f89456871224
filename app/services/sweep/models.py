"""Many configurations of models on one GPU: latency tables for architecture search.

Transformers that differ by sizes, batch and sequence only, and a ConvNet on images of any size and batch, are lowered,
predicted and scheduled together, an operator that several of them share once. Networks that were measured whole on the
GPU, and whatever is refused, are asked for one by one; both ways answer as POST /predict does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import structs

from app.engine.gpu_rows import Snapshot
from app.errors import GpucastError
from app.graphs.run import Run
from app.graphs.schedule import STEP_PHASES
from app.graphs.step_memory import memory
from app.ops import OPS
from app.ops.kinds import kinds_of, work_of
from app.predictors.roofline import peaks
from app.services.models.networks import distinct_rows
from app.services.models.predict_networks import predict_network
from app.services.models.steps import stage_transfer, timeline
from app.services.models.whole_networks import predicts_networks_only
from app.services.operators.common import unsupported_mask
from app.services.operators.internode import predict_on
from app.services.operators.operator_tables import CHUNK, slice_rows
from app.services.sweep.model_groups import Group, Table
from app.tables.arrays import Floats
from app.tables.ops import OpTable
from app.tables.predictions import Predictions
from app.tables.workload import Workload
from app.wire.network_form import ModelRequest, ModelWorkload
from app.wire.prediction_form import MemoryParts, Phases

# Rows lowered at once, of all configurations together: some ten megabytes of figures; and configurations before it is
# known how many rows each has.
_ROWS_AT_ONCE, _FIRST = 200_000, 256
TIMES = ("latency_ms", "low_ms", "high_ms", *(f"{phase}_ms" for phase in STEP_PHASES))
FIGURES = (*TIMES, *MemoryParts.__struct_fields__, "required_bytes")
_GROUP_NAMES = sorted({op.group for op in OPS})
_GROUPS = np.array([_GROUP_NAMES.index(op.group) for op in OPS])


class Asked(NamedTuple):
    """On what, and of whom."""

    snapshot: Snapshot
    gpu: str
    predictor: str
    coverage: float


def predict_models(table: pa.Table, asked: Asked) -> pa.Table:
    """A step of each configuration: columns of FIGURES, and `fits`; BadInput names the row that is wrong, and why."""
    engine = asked.snapshot.engine
    rows = Table(table, engine.models.on(asked.gpu))
    figures = np.empty((len(FIGURES), len(table)))
    together = rows.together & (not predicts_networks_only(asked.predictor))

    def one_by_one(some: Iterable[int]) -> None:
        for row in some:
            try:
                figures[:, row] = _alone(rows.workload(row), asked)
            except GpucastError as error:
                error.detail = f"row {row}: {error.detail}"
                raise

    one_by_one(np.flatnonzero(~together).tolist())
    for group in rows.groups() if together.any() else ():
        first, at_once = 0, _FIRST
        while first < len(group.rows):
            part = group.part(first, first + at_once)
            first += at_once
            for of, workload in part.lower_groups():
                answers = None if workload is None else _together(workload, len(of), part, asked)
                if workload is None or answers is None:
                    one_by_one(np.sort(part.rows[of]).tolist())  # which names the row
                    continue
                figures[:, part.rows[of]] = answers
                at_once = max(_ROWS_AT_ONCE // len(workload), 1)
    fits = figures[-1] <= engine.gpus.column("memory_bytes")[asked.snapshot.row_of[asked.gpu]]
    return pa.table([*figures, fits], names=[*FIGURES, "fits"])


def _alone(workload: ModelWorkload, asked: Asked) -> list[float]:
    """One configuration, as POST /predict answers it."""
    request = ModelRequest(gpu=asked.gpu, workload=workload, predictor=asked.predictor, coverage=asked.coverage)
    (one,) = predict_network(asked.snapshot, request, max_rows=2**63, advise=False).predictions
    assert isinstance(one.phases_ms, Phases)
    assert isinstance(one.memory.breakdown, MemoryParts)
    return [
        *(one.latency_ms, one.interval_ms.low, one.interval_ms.high, *structs.astuple(one.phases_ms)),
        *(*structs.astuple(one.memory.breakdown), one.memory.required_bytes),
    ]


def _together(w: Workload, c: int, group: Group, asked: Asked) -> Floats | None:
    """FIGURES of c configurations that have their rows in common, [figures, c]; None where they cannot run."""
    table, row, _ = distinct_rows(w.ops)
    if _lacks_dtypes(table, asked):
        return None
    answer = _answered(table, group.run, asked)
    of = np.broadcast_to(row.reshape(len(w), -1), (len(w), c))
    line = _GROUPS[w.ops.kind]
    transfer_s: Floats | float = 0.0
    if group.run.parallelism.pipeline > 1:
        transfer_s = _answered(stage_transfer(w, group.run), group.run, asked).latency_s
    done, low, high = timeline(
        w, line, answer, of, group.run, launched=group.launched, coverage=asked.coverage, transfer_s=transfer_s
    )
    used = memory(w, group.run)
    kept = np.array(np.broadcast_arrays(*used, used.required_bytes, done.step_s)[:-1])
    return np.vstack([np.vstack([done.step_s, low, high, done.phases_s]) * 1e3, kept])


def _lacks_dtypes(table: OpTable, asked: Asked) -> bool:
    gpus, target = asked.snapshot.engine.gpus, asked.snapshot.row_of[asked.gpu]
    if not np.isnan(peaks(gpus)[:, target])[table.dtype].any():
        return False
    return bool(unsupported_mask(asked.snapshot.engine, table, work_of(table, kinds_of(table)), gpus, target).any())


def _answered(table: OpTable, run: Run, asked: Asked) -> Predictions:
    """Every row on the GPU, as many at once as stay in the cache."""
    engine, target, parts = asked.snapshot.engine, asked.snapshot.row_of[asked.gpu], []
    for first in range(0, len(table), CHUNK):
        part = slice_rows(table, first, first + CHUNK)
        answer = predict_on(
            engine,
            part,
            engine.gpus,
            [target],
            predictor=asked.predictor,
            coverage=asked.coverage,
            network_bytes_per_s=run.parallelism.network_bytes_per_s,
        )
        parts.append(answer)
    if len(parts) == 1:
        return parts[0]
    return Predictions(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Predictions.__dataclass_fields__)
    )
