"""Training pass: appends backward rows, block by block in reverse, and the optimiser's update.

A backward block runs as often as its forward block. With recomputation, the block's forward rows run again first (Chen
et al. 2016), except in the last block if it does not repeat: its activations are still in memory when backward begins.
Where several rows read one tensor, their gradients are added. With several microbatches, weight gradients are
accumulated from the second microbatch on; without an optimiser nothing clears them, so the first one accumulates too.

Backward of each operator is expressed where possible in forward operators, which predictors have learned. Each operator
has its rule (`Op.backward`, app.ops.gradient), which follows PyTorch's autograd: a matrix product runs two products and
sums the bias gradient over rows; an operator without a rule runs as itself with `backward` 1. A rule maps each column
of a step to a column of the forward row, so that all steps of all rows are one gather.

The update is one memory-bound launch per block and repetition, as PyTorch's fused optimisers are; torch.optim's default
moves three times as much (`Release.multi_tensor`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from app.networks.batched import as_batched, same_in_all
from app.networks.build import DEFAULTS, InsertedRows, inserted, table_of, with_column
from app.networks.roles import Operands, biased, learning, of_experts, of_modules, operands, unfused
from app.networks.run import FULL, OFFLOAD, OPERATORS, Run
from app.ops import OP_CODE, OPS
from app.ops.gradient import DERIVED
from app.ops.grouped import is_depthwise
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OUTPUT_BYTES, OpTable
from app.tables.workload import BACKWARD, UPDATE, Workload

# Constant columns of steps; the last (NaN) fills the columns that an operator does not have.
_DEFAULTS = {value for row in DEFAULTS.values() for value in row.values() if value is not None}
_NUMBERS = (*sorted(value for value in _DEFAULTS if np.isfinite(value)), np.nan)
_STEPS = [(kind, step) for kind, op in enumerate(OPS) for step in op.backward]
_COUNT = np.bincount([kind for kind, _ in _STEPS], minlength=len(OPS))
_FIRST = np.cumsum(_COUNT) - _COUNT
_KIND = np.array([kind if step.op is None else OP_CODE[step.op] for kind, step in _STEPS])
_NEEDS = np.array([step.needs for _, step in _STEPS])


class Forward(NamedTuple):
    """n forward rows.

    ops        OpTable of n rows
    producers  int [n], number of rows of the same block that feed each row
    learning   bool [n], True if the output has a gradient
    fed        bool [n], True if the input needs a gradient (the network's input does not)
    bias       bool [n], True if the row adds a bias that is trained
    trained    bool [n], True if the row's weights are trained
    output     float64 [n] or [c, n], bytes that a launch writes
    unfused    bool [n], True if PyTorch's own kernels run the row, one after the other
    """

    ops: OpTable
    producers: Ints
    learning: Bools
    fed: Bools
    bias: Bools
    trained: Bools
    output: Floats
    unfused: Bools


class Backward(NamedTuple):
    """m rows of backward.

    source  int [m], the forward row of each
    number  int [m], its position among the steps of that row, from 0
    """

    ops: OpTable
    source: Ints
    number: Ints


def backward(forward: Forward) -> Backward:
    """Return the steps of every row that has a gradient, ordered by forward row."""
    ops = forward.ops
    count = np.where(forward.learning, _COUNT[ops.kind], 0)
    source = np.repeat(np.arange(len(ops)), count)
    number = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
    step = _FIRST[ops.kind[source]] + number
    own = same_in_all(is_depthwise(ops))
    needs = (np.ones(len(ops), dtype=np.bool_), forward.fed, forward.bias, forward.producers > 1, forward.trained)
    met = np.array([*needs, forward.unfused, own, forward.fed & ~own, forward.trained & ~own])
    runs = met[_NEEDS[step], source]
    source, number, step = source[runs], number[runs], step[runs]
    figures, places = _figures(forward), _places(tuple(ops.fields.items()))[step].T
    kind, dtype, label = _KIND[step], ops.dtype[source], ops.label[source]
    if figures.place is None:
        rows = OpTable(kind, dtype, label, ops.fields, figures.dims[places, source])
    else:
        rows = OpTable(kind, dtype, label, ops.fields, figures.dims, figures.place[places, source])
    return Backward(rows, source, number)


def _figures(forward: Forward) -> OpTable:
    """Return the rows with DERIVED and _NUMBERS appended to their columns."""
    ops = forward.ops
    elements, count = ops.column("b") * ops.column("h"), ops.column("count")
    derived = (
        np.maximum(forward.output, 1.0),
        elements * (DTYPE_BYTES + OUTPUT_BYTES)[ops.dtype],
        count * np.clip(forward.producers, 1, 2),
        count * 2.0,
    )
    n, numbers = len(ops), np.array(_NUMBERS)[:, None]
    if ops.place is None and forward.output.ndim == 1:
        return replace(ops, dims=np.concatenate([ops.dims, derived, np.repeat(numbers, n, axis=1)]))
    c = len(forward.output) if ops.place is None else ops.dims.shape[1]
    ops = as_batched(ops, c)
    assert ops.place is not None
    added = [np.broadcast_to(column, (c, n)).T for column in derived]
    at = len(ops.dims) + np.arange(len(derived) * n).reshape(-1, n)
    constant = np.broadcast_to(len(ops.dims) + at.size + np.arange(len(numbers))[:, None], (len(numbers), n))
    dims = np.concatenate([ops.dims, *added, np.repeat(numbers, c, axis=1)])
    return replace(ops, dims=dims, place=np.concatenate([ops.place, at, constant]))


@lru_cache(maxsize=256)
def _places(fields: tuple[tuple[str, int], ...]) -> Ints:
    """Return the row of `_figures` that holds each column of each step, int [steps, columns]."""
    row_of = dict(fields)
    columns = 1 + max(row_of.values())
    figure_of: dict[str | float | None, int] = {name: columns + k for k, name in enumerate(DERIVED)}
    figure_of |= {number: columns + len(DERIVED) + k for k, number in enumerate(_NUMBERS)}
    absent = columns + len(DERIVED) + len(_NUMBERS) - 1
    places = np.empty((len(_STEPS), columns), dtype=np.intp)
    for row, (_, step) in zip(places, _STEPS, strict=True):
        row[:] = np.arange(columns) if step.op is None else absent
        for name, default in (DEFAULTS[step.op] if step.op else {}).items():
            row[row_of[name]] = figure_of.get(default, absent)
        for name, given in step.columns.items():
            row[row_of[name]] = figure_of[given] if given in figure_of else row_of[str(given)]
    return places


# Bytes that an update moves per parameter. FP32: SGD reads p and g and writes p; Adam reads p, g, m, v and writes p, m,
# v. With 16-bit weights the FP32 master copy is read and written in place of p, and the 16-bit p written, which comes
# to the same: g 2 + master 8 (+ m 8 + v 8) + p 2.
UPDATE_BYTES = {"sgd": 12.0, "adam": 28.0, "adamw": 28.0}
# The same of torch.optim by default: a kernel for each of eight or nine operations on all tensors, which read or write
# 19 or 21 numbers in FP32. Our H200 moves so many bytes at 0.8 of its bandwidth.
MULTI_TENSOR_BYTES = {"sgd": 12.0, "adam": 76.0, "adamw": 84.0}
# Space between the positions of two rows' backward steps; at least the most steps of one row.
_ROOM = 8.0
_KEPT = [OP_CODE[name] for name in ("attention_prefill", "attention_mla", "all_reduce", "reduce_scatter")]
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
    if run.recompute and OFFLOAD not in run.recompute:
        # Copies of these forward rows come before their block's backward.
        source = np.flatnonzero(same_in_all(runs_again(w, run)))
        order = source.astype(np.float64)
        again = w.ops.take(source)
        again = with_column(again, "count", run.recompute_layers * again.column("count"))
        parts.append(InsertedRows(again, source, target[w.block[source]], order, BACKWARD))
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


def runs_again(w: Workload, run: Run) -> Bools:
    """Return True for forward rows that backward computes again, bool [n] or [c, n].

    Per operator every product of an odd number in its block, attention and what a group of devices summed are kept.
    """
    if not {FULL, OPERATORS} & {*run.recompute}:
        return of_modules(w, run.recompute)
    again: Bools = recomputed(w)[..., w.block]
    return again & ~kept_of_operators(w) if OPERATORS in run.recompute else again


def kept_of_operators(w: Workload) -> Bools:
    """Return True for rows whose output recomputation per operator keeps, bool [n] (torchtitan's list)."""
    products = w.ops.kind == OP_CODE["linear"]
    number = np.cumsum(products)
    before = (number - products)[np.searchsorted(w.block, w.block)]
    kept: Bools = (products & ((number - before) % 2 == 1)) | np.isin(w.ops.kind, _KEPT)
    return kept


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
