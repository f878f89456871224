"""Training pass: appends backward rows, block by block in reverse, and the optimiser's update.

A backward block runs as often as its forward block. With recomputation, the block's forward rows run again first (Chen
et al. 2016), except in the last block if it does not repeat: its activations are still in memory when backward begins.
Where several rows read one tensor, their gradients are added. With several microbatches, weight gradients are
accumulated from the second microbatch on; without an optimiser nothing clears them, so the first one accumulates too.

The update is one memory-bound launch per block and repetition, as PyTorch's fused optimisers are; torch.optim's default
moves three times as much (`Release.multi_tensor`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.networks.backward import Forward, backward
from app.networks.batched import same_in_all
from app.networks.build import InsertedRows, inserted, table_of, with_column
from app.networks.roles import Operands, biased, learning, of_experts, of_scores, operands, unfused
from app.networks.run import Run
from app.ops import OP_CODE, OPS
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import DTYPE_CODE, OUTPUT_BYTES, OpTable
from app.tables.workload import BACKWARD, UPDATE, Workload

# Bytes that an update moves per parameter. FP32: SGD reads p and g and writes p; Adam reads p, g, m, v and writes p, m,
# v. With 16-bit weights the FP32 master copy is read and written in place of p, and the 16-bit p written, which comes
# to the same: g 2 + master 8 (+ m 8 + v 8) + p 2.
UPDATE_BYTES = {"sgd": 12.0, "adam": 28.0, "adamw": 28.0}
# The same of torch.optim by default: a kernel for each of eight or nine operations on all tensors, which read or write
# 19 or 21 numbers in FP32. Our H200 moves so many bytes at 0.8 of its bandwidth.
MULTI_TENSOR_BYTES = {"sgd": 12.0, "adam": 76.0, "adamw": 84.0}
# Space between the positions of two rows' backward steps; at least the most steps of one row.
_ROOM = 8.0
_IN_TRAINING = np.array([OP_CODE[op.in_training or op.name] for op in OPS])


def training(w: Workload, run: Run) -> Workload:
    """Return the forward workload with backward and, unless `run.optimizer` is none, the update.

    `run` gives recomputation, the number of microbatches, and the devices over which ZeRO spreads the update.
    """
    blocks = w.blocks
    known = operands(w)
    forward = np.arange(blocks)
    target = blocks + forward[::-1]  # of each forward block
    parts = [_backward(w, run, known, target), *_sums(w, known, target), *_accumulated(w, run, target)]
    if run.recompute or run.recompute_scores:
        again = same_in_all(recomputed(w))[w.block] if run.recompute else of_scores(w)
        parts.append(_recomputed(w, np.flatnonzero(again), target))
    repeats, origin = [w.repeats, w.repeats[..., ::-1]], [forward, forward[::-1]]
    if run.optimizer != "none":
        parts.append(_update(w, run, 2 * blocks))
        repeats.append(w.repeats)
        origin.append(forward)
    w = replace(w, repeats=np.concatenate(repeats, axis=-1), origin=np.concatenate(origin))
    w = inserted(w, parts)
    # Each output has its own memory until backward reads it, so no row finds the previous row's output in the L2.
    return replace(w, ops=with_column(with_quantised_operands(_as_in_training(w.ops)), "eager", 0.0))


def recomputed(w: Workload) -> Bools:
    """Return True for forward blocks whose activations recomputation drops, bool [..., blocks]."""
    last = np.arange(w.blocks) == w.blocks - 1
    dropped: Bools = ~last | (w.repeats[..., : w.blocks] > 1)
    return dropped


def _backward(w: Workload, run: Run, known: Operands, target: Ints) -> InsertedRows:
    output, trained = w.output_bytes / w.ops.column("count"), learning(w, run)
    bias = biased(w) & trained
    alone = unfused(w, run)
    steps = backward(Forward(w.ops, known.producers, known.learning, known.fed, bias, trained, output, alone))
    order = _order(len(w), steps.source) + steps.number
    return InsertedRows(steps.ops, steps.source, target[w.block[steps.source]], order, BACKWARD)


def _as_in_training(ops: OpTable) -> OpTable:
    """Return the rows with those of forward as they are in training, where batch norm finds the batch's statistics."""
    back = same_in_all(ops.column("backward") > 0.0)
    return replace(ops, kind=np.where(back, ops.kind, _IN_TRAINING[ops.kind]))


def _order(n: int, source: Ints) -> Floats:
    """Return the position of a row's backward: after all forward rows, in reverse order."""
    return (n + _ROOM * (n - source)).astype(np.float64)


def _sums(w: Workload, known: Operands, target: Ints) -> list[InsertedRows]:
    """Return additions of gradients: of rows with several consumers, and of block inputs with several readers."""
    n = len(w)
    shared = np.flatnonzero(known.consumers > 1)
    order = _order(n, shared) - 1.0
    parts = [_additions(w, shared, known.consumers[shared] - 1, w.block[shared], order, target)]
    last = np.searchsorted(w.block, np.arange(w.blocks), side="right") - 1
    readers = np.bincount(w.block[known.from_outside], minlength=w.blocks)
    into = np.flatnonzero((readers > 1) & (np.arange(w.blocks) > 0))
    order = np.full(len(into), _order(n, np.array([-1]))[0])
    parts.append(_additions(w, last[into - 1], readers[into] - 1, into, order, target))
    return parts


def _additions(w: Workload, source: Ints, times: Ints, block: Ints, order: Floats, target: Ints) -> InsertedRows:
    dtype = w.ops.dtype[source]
    elements = np.maximum(w.output_bytes[..., source] / OUTPUT_BYTES[dtype], 1.0)
    return InsertedRows(
        table_of("add", dtype, w.ops.fields, b=1.0, h=elements, count=times.astype(np.float64)),
        source,
        target[block],
        order,
        BACKWARD,
    )


def _accumulated(w: Workload, run: Run, target: Ints) -> list[InsertedRows]:
    """Return rows that accumulate weight gradients (two reads, one write); the first after an update needs none."""
    micro = run.accumulation * run.parallelism.microbatches
    adding = micro if run.optimizer == "none" else micro - 1
    if not adding:
        return []
    held = w.per_block(w.weight_bytes * learning(w, run))
    moved = 3.0 * held * adding / micro
    return [_per_block(w, moved, target, BACKWARD)]


def _update(w: Workload, run: Run, first: int) -> InsertedRows:
    split, each = run.parallelism, w.parameters * learning(w, run)
    if split.zero:
        each = each / np.where(of_experts(w), split.expert_copies, split.replicas)
    moved = w.per_block(each) * (MULTI_TENSOR_BYTES if run.release.multi_tensor else UPDATE_BYTES)[run.optimizer]
    return _per_block(w, moved, first + np.arange(w.blocks), UPDATE)


def _per_block(w: Workload, moved: Floats, target: Ints, phase: int) -> InsertedRows:
    """Return one memory-bound row per block with `moved` bytes, after the block's other rows."""
    block = np.flatnonzero(same_in_all(moved > 0))
    dtype = np.full(len(block), DTYPE_CODE["fp32"], dtype=np.intp)
    ops = table_of("memory", dtype, w.ops.fields, bytes=moved[..., block])
    order = np.full(len(block), _order(len(w), np.array([-2]))[0])
    return InsertedRows(ops, np.searchsorted(w.block, block), target[block], order, phase)


def _recomputed(w: Workload, source: Ints, target: Ints) -> InsertedRows:
    """Return copies of the forward rows `source`, before their block's backward."""
    return InsertedRows(w.ops.take(source), source, target[w.block[source]], source.astype(np.float64), BACKWARD)


_NARROW = [DTYPE_CODE[name] for name in ("fp8", "fp8_block", "nvfp4")]


def with_quantised_operands(ops: OpTable) -> OpTable:
    """Return the rows with `m` at most `n` in every product in 8 or 4 bits."""
    narrow = (ops.kind == OP_CODE["linear"]) & np.isin(ops.dtype, _NARROW)
    if not narrow.any():
        return ops
    turned = narrow & same_in_all(~narrow | (ops.column("m") > ops.column("n")))
    columns = [ops.fields["m"], ops.fields["n"]]
    if ops.place is None:
        dims = ops.dims.copy()
        dims[columns] = np.where(turned, dims[columns[::-1]], dims[columns])
        return replace(ops, dims=dims)
    place = ops.place.copy()
    place[columns] = np.where(turned, place[columns[::-1]], place[columns])
    return replace(ops, place=place)
