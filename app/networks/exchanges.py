"""Exchanges between devices: gradients of data parallelism, and keys and values of devices that share a sequence.

Data parallelism models PyTorch's DistributedDataParallel: gradients fill buckets of 25 MB in the order in which
backward computes them, and a full bucket starts its all_reduce, beside backward (Li et al. 2020). With ZeRO 1 and 2
gradients are reduce_scattered and updated weights gathered after the update; with ZeRO 3 each block's weights are
prefetched by all_gathers before its forward and its backward, and gradients reduce_scattered (Rajbhandari et al. 2020).
A repeated block that fills part of a bucket launches that fraction of a collective.

Context parallelism: each device holds an equal share of the queries, dealt so that all have as many pairs of query and
key (zig-zag, as in Megatron-LM and Llama 3, 2024). Forward sends every device's keys and values around a ring to all
others, beside their attention; backward sends them again, and returns their gradients. A ring of sends moves the bytes
of an all_gather and of a reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from app.networks.batched import same_in_all
from app.networks.build import InsertedRows, inserted, table_of
from app.networks.roles import learning, of_experts
from app.networks.run import Run, spanned
from app.ops import OP_CODE
from app.ops.attention_kernels import shared_heads
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import DTYPE_BYTES, DTYPE_CODE, OpTable
from app.tables.workload import BACKWARD, FORWARD, UPDATE, Workload

BUCKET_BYTES = 25.0 * 2**20
_ATTENTION, _GATHER = OP_CODE["attention_prefill"], OP_CODE["all_gather"]
# Gradients of weights in 8 and 4 bits are reduced in BF16 (Megatron-LM, TransformerEngine).
_LEAST_GRADIENT_BYTES = 2.0


def with_gradient_exchange(w: Workload, run: Run) -> Workload:
    """Return the training workload with its data-parallel collectives inserted (unchanged with one replica)."""
    if run.parallelism.replicas == 1 or not (w.phase == BACKWARD).any():
        return w
    return inserted(w, list(_exchange(w, run)))


def sends_gradients(w: Workload) -> Bools:
    """Return the rows that exchange gradients, [n]: reductions beside backward, of rows that hold weights.

    Those of a ring of keys and values, which attention holds none of, are not among them.
    """
    if not w.overlapped.any():
        return w.overlapped
    held = np.any(np.atleast_2d(w.parameters > 0), axis=0)
    sends: Bools = w.overlapped & (w.ops.kind != _GATHER) & held[w.source]
    return sends


class _Group(NamedTuple):
    """Devices that hold the same weights: their number, and the distance of neighbours."""

    devices: int
    stride: int


def _exchange(w: Workload, run: Run) -> Iterator[InsertedRows]:
    """Yield the exchange of gradients of all weights but the experts', then of these."""
    split, experts, sent = run.parallelism, of_experts(w), gradient_bytes(w) * learning(w, run)
    every = _Group(split.replicas, split.tensor)
    copies = _Group(split.expert_copies, split.tensor * split.replicas // split.expert_copies)
    if copies == every:
        yield from _exchange_in(w, sent, every, run)
        return
    for group, rows in ((every, ~experts), (copies, experts)):
        if group.devices > 1:
            yield from _exchange_in(w, sent * rows, group, run)


def _bucket_bytes(group: _Group, run: Run) -> float:
    """Return the bytes of gradients that are sent at once."""
    if run.release.gradient_bucket is None:
        return BUCKET_BYTES
    least, per_device = run.release.gradient_bucket
    return _LEAST_GRADIENT_BYTES * max(least, per_device * group.devices)


def _exposed(w: Workload, block: Ints, run: Run) -> Floats:
    """Return the share of each block's gather of updated weights that the step waits for, float64 [..., k].

    Megatron-LM gathers all chunks of layers but the first beside the next forward pass.
    """
    if not run.release.gathers_beside_forward:
        return np.ones(len(block))
    split = run.parallelism
    layers = np.maximum(w.repeats[..., block], 1.0)
    return np.ones_like(layers) / split.virtual_pipeline if split.pipeline > 1 else 1.0 / layers


def gradient_bytes(w: Workload) -> Floats:
    """Return the bytes of every row's gradients: in the format of the weights, of at least 16 bits."""
    size: Floats = np.maximum(w.weight_bytes, _LEAST_GRADIENT_BYTES * w.parameters)
    return size


def _exchange_in(w: Workload, held: Floats, group: _Group, run: Run) -> Iterator[InsertedRows]:
    """Yield the collectives of a group for gradients of `held` bytes, float64 [..., n]."""
    zero = run.parallelism.zero
    per_block = w.per_block(held)
    total = (per_block * w.repeats[..., : w.blocks]).sum(axis=-1, keepdims=True)
    if not same_in_all(total > 0).all():
        return
    backward = 2 * w.blocks - 1 - np.arange(w.blocks)
    wide = 2.0 if run.release.reduces_in_fp32 and zero else 1.0
    yield from _buckets(w, wide * held, np.minimum(_bucket_bytes(group, run), wide * total), backward, group, run)
    block = np.flatnonzero(same_in_all(per_block > 0))
    first = np.searchsorted(w.block, block)
    if zero >= 3:
        for phase, target in ((FORWARD, block), (BACKWARD, backward[block])):
            ops = _collective("all_gather", per_block[..., block], np.ones(len(block)), w, group, run)
            yield InsertedRows(ops, first, target, np.full(len(block), -1.0), phase, overlapped=True)
        if run.release.copies_units:
            yield from _copies(w, per_block[..., block], (block, backward[block]), wide)
    elif zero and (w.phase == UPDATE).any():
        ops = _collective("all_gather", per_block[..., block], _exposed(w, block, run), w, group, run)
        yield InsertedRows(ops, first, 2 * w.blocks + block, np.full(len(block), np.inf), UPDATE)


def _copies(w: Workload, held: Floats, blocks: tuple[Ints, Ints], wide: float) -> Iterator[InsertedRows]:
    """Yield what FSDP2 copies of units of `held` bytes: whole weights after each gather, gradients before they go."""
    first, (forward, backward) = np.searchsorted(w.block, blocks[0]), blocks
    places = ((FORWARD, forward, 2.0, -0.5), (BACKWARD, backward, 2.0, -0.5), (BACKWARD, backward, 1.0 + wide, np.inf))
    for phase, target, times, order in places:
        dtype = np.full(len(target), DTYPE_CODE["fp32"], dtype=np.intp)
        ops = table_of("memory", dtype, w.ops.fields, bytes=times * held)
        yield InsertedRows(ops, first, target, np.full(len(target), order), phase)


def _buckets(
    w: Workload, held: Floats, bucket: Floats, backward: Ints, group: _Group, run: Run
) -> Iterator[InsertedRows]:
    """Return a collective behind every backward row that fills a bucket, and one for the rest of each block.

    With several configurations a row is inserted if it fills a bucket in any of them; in the others its count is 0.
    """
    op = "reduce_scatter" if run.parallelism.zero else "all_reduce"
    ready = _ready(w, backward)
    rows = np.flatnonzero(same_in_all(held > 0))
    rows = rows[np.lexsort((ready[rows], backward[w.block[rows]]))]  # in the order in which gradients are computed
    block = w.block[rows]
    filled = np.cumsum(held[..., rows], axis=-1)
    new = np.flatnonzero(np.diff(block, prepend=-1))  # first row of each block
    before = filled[..., new] - held[..., rows[new]]
    filled -= np.repeat(before, np.diff(np.append(new, len(rows))), axis=-1)
    full = np.floor(filled / bucket * (1.0 + 1e-12))
    count = np.diff(full, prepend=0.0)
    count[..., new] = full[..., new]
    last = np.append(new[1:], len(rows)) - 1
    part = filled[..., last] / bucket - full[..., last]
    part = np.where(part > 1e-9, part, 0.0)
    for launches, place, order in ((count, rows, ready[rows] + 0.5), (part, rows[last], np.full(len(last), np.inf))):
        some = np.flatnonzero(np.atleast_2d(launches > 0).any(axis=0))
        ops = _collective(op, bucket, launches[..., some], w, group, run)
        source = place[some]
        yield InsertedRows(ops, source, backward[w.block[source]], order[some], BACKWARD, overlapped=True)


def _ready(w: Workload, backward: Ints) -> Floats:
    """Return the backward row that completes each forward row's gradient, [n]; its block's last row if it has none."""
    ready: Floats = np.searchsorted(w.block, backward[w.origin[w.block]], side="right") - np.ones(len(w))
    own = np.flatnonzero(w.phase == BACKWARD)
    ready[w.source[own]] = own  # the last one stays
    return ready


def _collective(op: str, message: Floats, count: Floats, w: Workload, group: _Group, run: Run) -> OpTable:
    dtype = np.full(count.shape[-1], DTYPE_CODE["fp32"], dtype=np.intp)
    devices, stride = group
    place = {"devices": devices, "nodes": spanned(devices, stride, run), "spread": devices * stride}
    return table_of(op, dtype, w.ops.fields, message_bytes=message, count=count, **place)


def with_key_exchange(w: Workload, run: Run) -> Workload:
    """Return the workload with the exchange of keys and values (unchanged where no devices share a sequence)."""
    if run.parallelism.context == 1:
        return w
    rows = np.flatnonzero(w.ops.kind == _ATTENTION)
    back = w.phase[rows] == BACKWARD
    parts = [_keys_exchanged("all_gather", w, rows[~back], run), _keys_exchanged("all_gather", w, rows[back], run)]
    parts.append(_keys_exchanged("reduce_scatter", w, rows[back], run))
    return inserted(w, [part for part in parts if len(part.source)])


def _keys_exchanged(op: str, w: Workload, rows: Ints, run: Run) -> InsertedRows:
    """Return a collective of the keys and values of attention `rows`: a gather beside it, a reduction behind it."""
    ops, split = w.ops.take(rows), run.parallelism
    place = {
        "devices": split.context,
        "nodes": spanned(split.context, split.tensor, run),
        "spread": split.context * split.tensor,
    }
    count = ops.column("count")
    made = table_of(
        op, ops.dtype, w.ops.fields, message_bytes=_keys_bytes(w, rows) * split.context, count=count, **place
    )
    order: Floats = rows.astype(np.float64) + (0.25 if op == "reduce_scatter" else -0.25)
    phase = int(w.phase[rows[0]]) if len(rows) else BACKWARD
    return InsertedRows(made, rows, w.block[rows], order, phase, overlapped=True)


def _keys_bytes(w: Workload, rows: Ints) -> Floats:
    """Return the bytes of a device's own keys and values, as many tokens as it has queries."""
    ops = w.ops.take(rows)
    tokens = ops.column("batch") * ops.column("query_length")
    held: Floats = 2.0 * tokens * shared_heads(ops) * ops.column("head_dim") * DTYPE_BYTES[ops.dtype]
    return held
