"""Number formats in which GPUs run a network's rows where nobody asked for theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.engine.engine import Engine
from app.ops import OP_CODE
from app.predictors import DEFAULT
from app.predictors.base import calibrated
from app.predictors.roofline import formats_run
from app.stacks.libraries import kernel_fact
from app.stacks.release import Release
from app.tables.architectures import GENERATIONS
from app.tables.arrays import Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable

# Experts in MXFP4 with activations in 16 bits, and with those in MXFP8.
_WIDE, _NARROW = "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"
# By code of a stack: generations of GPUs on which it takes the latter.
_NARROWS: list[tuple[str, ...]] = [generations or () for generations in kernel_fact("mxfp8_activations")]
_NARROWING = [
    [float(code) for code, generations in enumerate(_NARROWS) if generation in generations]
    for generation in GENERATIONS
]


def activations_note(experts: str | None, release: Release) -> str:
    """Return on which GPUs a release's experts of a format take other activations; empty for none."""
    generations = _NARROWS[release.code] if experts == _WIDE and release.code is not None else ()
    return f"; on {' and '.join(generations)} experts {_NARROW}, as {release.stack} runs them" if generations else ""


def as_run(engine: Engine, ops: OpTable, gpus: GpuTable, target: int) -> OpTable:
    """Return rows in the formats that GPU row `target` runs where nobody asked for theirs; `ops` where it has these.

    Rows that were measured there in a format which the data sheet lacks keep it. Activations of experts in MXFP4 have
    the format of their stack.
    """
    stacks = _with_activations(ops, int(gpus.column("generation")[target]))
    dtype = formats_run(gpus)[stacks, target]
    if (dtype == ops.dtype).all():
        return ops
    served = engine.serving(DEFAULT, gpus.ids[target]).predictor
    if calibrated(served):
        dtype = np.where(served.ran_on(gpus.ids[target])[ops.kind, stacks], stacks, dtype)
    return replace(ops, dtype=dtype)


def _with_activations(ops: OpTable, generation: int) -> Ints:
    """Return the formats of rows, of experts in MXFP4 with the activations that their stack takes on a generation."""
    if not _NARROWING[generation]:
        return ops.dtype
    rows = np.flatnonzero((ops.kind == OP_CODE["moe"]) & (ops.dtype == DTYPE_CODE[_WIDE]))
    if not len(rows):
        return ops.dtype
    dtype = ops.dtype.copy()
    dtype[rows[np.isin(ops.column("stack")[rows], _NARROWING[generation])]] = DTYPE_CODE[_NARROW]
    return dtype
