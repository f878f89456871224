"""What a step keeps in the memory of one device: the fullest of its pipeline stages.

Weights, their gradients, the optimiser's states and, with 16-bit weights, its FP32 master copy (16 bytes per parameter
with Adam in either case; ZeRO, Rajbhandari et al. 2020, section 3). ZeRO divides the optimiser's by the data-parallel
devices from stage 1, gradients from 2, weights from 3.

Activations: in training what backward needs, of every microbatch that a stage has begun and not ended: all of them in
GPipe, at most the stages from it to the last in 1F1B; recomputation keeps what enters each repetition of a block, and
one repetition's activations. In inference what is live at once: a row's output from its launch to its last reader.

Workspace: the GEMM library's, and in training the gradients of the largest output and of what it was computed from;
with several data-parallel devices also the buckets that gradients are copied into (DistributedDataParallel's default),
or with ZeRO 3 the largest layer's weights, gathered. Reserve: the CUDA context with its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.graphs.operands import fed_by
from app.graphs.run import Run
from app.graphs.stages import stage_repeats
from app.graphs.training_pass import recomputed
from app.tables.workload import FORWARD, Floats, Ints, Workload

# Bytes per parameter: FP32 states of the optimiser.
STATE_BYTES = {"none": 0.0, "sgd": 0.0, "adam": 8.0, "adamw": 8.0}
_MASTER_BYTES = 4.0
# cuBLAS's workspace, and what a context with PyTorch's kernels loaded takes before the first tensor.
_GEMM_WORKSPACE_BYTES = 32.0 * 2**20
RESERVE_BYTES = 500.0 * 2**20


class Memory(NamedTuple):
    """Bytes on the fullest device; of c configurations float64 [c] each."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    kv_cache: float
    workspace: float
    reserve: float

    @property
    def required_bytes(self) -> float:
        """All of it."""
        required: float = sum(self)
        return required


def memory(w: Workload, run: Run) -> Memory:
    """Memory of a step; `w` is forward, with or without the passes behind it."""
    return memories(w, run, (1.0,))[0]


def memories(w: Workload, run: Run, shares: Sequence[float]) -> list[Memory]:
    """Memory of steps whose batch is each of `shares` of the one that `w` was written for.

    Weights and their like stay as they are; outputs, what is kept of them, and keys and values grow with the batch.
    """
    training = run.mode == "training"
    ranks = stage_repeats(w, run.parallelism.pipeline)
    ranks = ranks.reshape(len(ranks), -1, w.blocks)
    held = [w.per_block(values) for values in (w.weight_bytes, w.kv_bytes, w.parameters, _masters(w))]
    weights, kv, parameters, masters = ((ranks * values).sum(axis=-1) for values in held)
    zero, data = run.parallelism.zero, run.parallelism.data
    gradients = weights * training / (data if zero >= 2 else 1)
    states = STATE_BYTES[run.optimizer] * parameters + masters * (run.optimizer != "none")
    optimizer = states * training / (data if zero >= 1 else 1)
    weights = weights / (data if zero >= 3 and training else 1)
    activations = _kept(w, run, ranks) if training else _live(w, ranks)
    workspace, flowing = np.full_like(weights, _GEMM_WORKSPACE_BYTES), np.zeros_like(weights)
    if training:
        flowing = flowing + 2.0 * w.output_bytes.max(axis=-1, initial=0.0)
        if data > 1 and zero in (0, 3):
            workspace = workspace + (gradients if zero == 0 else _most(ranks, held[0]))
    still = np.array(np.broadcast_arrays(weights, gradients, optimizer, 0.0, 0.0, workspace))
    grows = np.array(np.broadcast_arrays(0.0, 0.0, 0.0, activations, kv, flowing))
    return [_fullest(still + share * grows) for share in shares]


def _fullest(parts: Floats) -> Memory:
    """Of parts [figures, stages, c] those of the stage that keeps most."""
    fullest = parts.sum(axis=0).argmax(axis=0)
    parts = parts[:, fullest, np.arange(len(fullest))]
    found: list[Any] = parts[:, 0].tolist() if len(fullest) == 1 else list(parts)
    return Memory._make([*found, RESERVE_BYTES])


def _most(ranks: Floats, values: Floats) -> Floats:
    """The most of a figure of blocks, [..., blocks], on each stage, [stages, ...]."""
    most: Floats = ((ranks > 0) * values).max(axis=-1)
    return most


def _masters(w: Workload) -> Floats:
    """Bytes of FP32 copies of narrower weights."""
    return np.where(w.weight_bytes < _MASTER_BYTES * w.parameters, _MASTER_BYTES * w.parameters, 0.0)


def _ends(w: Workload) -> Ints:
    """Each forward block's last row."""
    ends: Ints = np.searchsorted(w.block, np.arange(w.blocks), side="right") - 1
    return ends


def _kept(w: Workload, run: Run, ranks: Floats) -> Floats:
    """Activations kept for backward on each stage, float64 [stages, c]; `ranks` is [stages, c, blocks]."""
    saved = w.per_block(w.saved_bytes)
    again = np.zeros_like(saved)
    if run.recompute:
        dropped = recomputed(w)
        again = np.where(dropped, saved, 0.0)
        inside = w.output_bytes[..., _ends(w)]
        entering = np.concatenate([np.zeros_like(inside[..., :1]), inside[..., :-1]], axis=-1)
        entering = np.where(w.repeats[..., : w.blocks] > 1, np.maximum(entering, inside), entering)
        saved = np.where(dropped, entering, saved)
    stages = len(ranks)
    micro = run.parallelism.microbatches
    begun = np.full(stages, float(micro))
    if run.parallelism.schedule == "1f1b":
        begun = np.minimum(begun, stages - np.arange(stages))
    if stages == 1:
        begun = np.ones(1)  # one microbatch after another: each is gone before the next
    kept: Floats = begun[:, None] * (ranks * saved).sum(axis=-1) + _most(ranks, again)
    return kept


def _live(w: Workload, ranks: Floats) -> Floats:
    """Most that outputs take at once, on each stage, float64 [stages, c]; `ranks` is [stages, c, blocks]."""
    n = int((w.phase == FORWARD).sum())
    if not n:
        return np.zeros(ranks.shape[:2])
    last = np.arange(n)
    inside = w.edges[:, (w.edges < n).all(axis=0)]
    np.maximum.at(last, inside[0], inside[1])
    ends = _ends(w)
    readers = np.flatnonzero(fed_by(w)[2][:n])
    readers = readers[w.block[readers] > 0]
    np.maximum.at(last, ends[w.block[readers] - 1], readers)
    written = w.output_bytes.T[:n]
    change = np.zeros((n + 1, *written.shape[1:]))
    change[:n] += written
    np.subtract.at(change, last + 1, written)
    live = np.cumsum(change[:n], axis=0)
    # Within a block that repeats, what enters the second repetition is its own output, as large as what entered.
    peak = np.zeros((w.blocks, *written.shape[1:]))
    np.maximum.at(peak, w.block[:n], live)
    return _most(ranks, peak.T)
