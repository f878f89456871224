"""Kernels of PyTorch that load one element at a time, in the pipelines of diffusion models.

PyTorch's element-wise kernels load 16 bytes at once where all operands are contiguous, equally large and of one format.
With an operand that is repeated over rows (the shifts, scales and gates of a modulation, a norm's weights), strided
(rotary positions) or of another format (casts) each thread loads an element at a time. Too few bytes are then in flight
for a fast memory: an SM accesses some 3.5 elements of 16 bits per clock, whatever the bandwidth. That figure is of
kernels that load so: the gated activations of vLLM before 0.6 in Vidur's profiles (MIT), 3.35 on A100 and 3.7 on H100;
on an A40 they are as fast as its memory, as they should be. PyTorch's layer norm of phi-2 in the same profiles is as
slow: 3.2 and 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.graphs.run import Run
from app.ops import OP_CODE
from app.ops.alignment import ACCESSES_PER_CLOCK
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import Predictions

# Operators that stand for such kernels in a diffusion model's rows: two accesses per element; and casts between 16 and
# 32 bits, which access an element twice per 6 bytes.
_BROADCAST = [OP_CODE[name] for name in ("mul_scalar", "add_scalar", "layer_norm")]
_CAST, _CAST_BYTES = OP_CODE["memory"], 6.0
_DTYPES = [DTYPE_CODE[name] for name in ("fp16", "bf16")]


def with_single_loads(
    answer: Predictions, table: OpTable, run: Run, gpus: GpuTable, targets: Sequence[int]
) -> Predictions:
    """Return predictions of the rows on GPU rows `targets`, GPU by GPU, no shorter than their accesses take."""
    accesses = _accesses(table)
    if run.part is None or run.stack is not None or not accesses.any():
        return answer
    rows = gpus.take(np.asarray(targets, dtype=np.intp))
    per_s = ACCESSES_PER_CLOCK * rows.column("sm_count") * rows.column("boost_clock_hz")
    least = np.nan_to_num(accesses / per_s[:, None]).ravel()
    ratio = np.maximum(least / np.maximum(answer.latency_s, np.finfo(np.float64).tiny), 1.0)
    return replace(answer, latency_s=answer.latency_s * ratio, low_s=answer.low_s * ratio, high_s=answer.high_s * ratio)


def _accesses(table: OpTable) -> Floats:
    """Return the elements that each row reads and writes one at a time, float64 [n]."""
    sixteen = np.isin(table.dtype, _DTYPES)
    each = np.where(np.isin(table.kind, _BROADCAST), 2.0 * table.column("b") * table.column("h"), 0.0)
    casts = np.where(table.kind == _CAST, 2.0 / _CAST_BYTES * table.column("bytes"), 0.0)
    accesses: Floats = np.where(sixteen, np.nan_to_num(each) + np.nan_to_num(casts), 0.0)
    return accesses
