"""Predict many configurations of models on one GPU: latency tables for architecture search.

Transformers that differ only by sizes, batch and sequence, and a ConvNet with images of any size and batch, are
lowered, predicted and scheduled together, with shared operators predicted once. Networks that were measured as a whole,
and invalid ones, are predicted individually. Both ways give the answers of POST /predict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import structs

from app.bands.widths import OTHER
from app.engine.snapshot import Snapshot
from app.errors import GpucastError
from app.predictors.roofline import peaks
from app.services.models.predict_networks import predict_network
from app.services.models.run_options import run_assumption
from app.services.models.whole_networks import predicts_networks_only
from app.services.operators.common import unsupported_mask
from app.services.sweep.model_groups import Group, Table
from app.steps.memory import memory
from app.steps.networks import StepRows, step_rows
from app.steps.schedule import STEP_PHASES
from app.steps.timing import StepQuery, time_step
from app.tables.arrays import Floats, Ints
from app.tables.workload import Workload
from app.wire.network_form import ModelRequest, ModelWorkload
from app.wire.prediction_form import MemoryParts, Phases

# Rows lowered at once over all configurations (about ten megabytes of figures), and the first number of configurations,
# before their number of rows is known.
_ROWS_AT_ONCE, _FIRST = 200_000, 256
TIMES = ("latency_ms", "low_ms", "high_ms", *(f"{phase}_ms" for phase in STEP_PHASES))
FIGURES = (*TIMES, *MemoryParts.__struct_fields__, "required_bytes")


class SweepTarget(NamedTuple):
    """GPU id and predictor of a sweep's rows."""

    snapshot: Snapshot
    gpu: str
    predictor: str
    coverage: float


def predict_models(table: pa.Table, target: SweepTarget) -> pa.Table:
    """Return a step of each configuration: columns of FIGURES, and `fits`. Raises BadInput that names a wrong row."""
    engine = target.snapshot.engine
    rows = Table(table, engine.models.on(target.gpu))
    figures = np.empty((len(FIGURES), len(table)))
    together = rows.together & (not predicts_networks_only(target.predictor))

    def one_by_one(some: Iterable[int]) -> None:
        for row in some:
            try:
                figures[:, row] = _predict_single(rows.workload(row), target)
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
                answers = None if workload is None else _predict_group(workload, part, of, target)
                if workload is None or answers is None:
                    one_by_one(np.sort(part.rows[of]).tolist())  # raises the error of the wrong row
                    continue
                figures[:, part.rows[of]] = answers
                at_once = max(_ROWS_AT_ONCE // len(workload), 1)
    fits = figures[-1] <= engine.gpus.column("memory_bytes")[target.snapshot.row_of[target.gpu]]
    return pa.table([*figures, fits], names=[*FIGURES, "fits"])


def _predict_single(workload: ModelWorkload, target: SweepTarget) -> list[float]:
    """Return the figures of one configuration, from POST /predict's service."""
    request = ModelRequest(gpu=target.gpu, workload=workload, predictor=target.predictor, coverage=target.coverage)
    (answer,) = predict_network(target.snapshot, request, max_rows=2**63, advise=False).predictions
    assert isinstance(answer.phases_ms, Phases)
    assert isinstance(answer.memory.breakdown, MemoryParts)
    return [
        *(answer.latency_ms, answer.interval_ms.low, answer.interval_ms.high, *structs.astuple(answer.phases_ms)),
        *(*structs.astuple(answer.memory.breakdown), answer.memory.required_bytes),
    ]


def _predict_group(w: Workload, group: Group, of: Ints, target: SweepTarget) -> Floats | None:
    """Return FIGURES of the group's configurations `of` with common rows, [figures, c]; None if they cannot run."""
    engine, gpu = target.snapshot.engine, target.snapshot.row_of[target.gpu]
    run, rows = group.run_of(of), step_rows(w, len(of))
    if _has_unsupported_dtype(rows, target):
        return None
    query = StepQuery(engine, engine.gpus, [gpu], target.predictor)
    step = time_step(query, rows, run, launched=run.release.eager)
    if (assumption := run_assumption(run)) is not None:
        step = step.widened(OTHER[assumption.other].token)
    used, done = memory(w, run), step.done
    kept = np.array(np.broadcast_arrays(*used, used.required_bytes, done.step_s)[:-1])
    return np.vstack([np.vstack([done.step_s, *step.ends(target.coverage), done.phases_s]) * 1e3, kept])


def _has_unsupported_dtype(rows: StepRows, target: SweepTarget) -> bool:
    table, gpus, gpu = rows.distinct.table, target.snapshot.engine.gpus, target.snapshot.row_of[target.gpu]
    if not np.isnan(peaks(gpus)[:, gpu])[table.dtype].any():
        return False
    return bool(unsupported_mask(target.snapshot.engine, table, rows.work, gpus, gpu).any())
