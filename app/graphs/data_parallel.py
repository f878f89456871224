"""Data parallelism: gradients are summed over devices in buckets, beside backward.

As PyTorch's DistributedDataParallel: gradients fill buckets of 25 MB in the order in which backward makes them, and
each full bucket's all_reduce starts (Li et al. 2020). With ZeRO 1 and 2 they are reduce_scattered, and the updated
weights gathered after the update; with ZeRO 3 each block's weights are gathered before its forward and its backward,
ahead of time, and gradients reduce_scattered (Rajbhandari et al. 2020). A bucket that a repeated block fills in part
counts in part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.graphs.many import alike
from app.graphs.rows import Rows, inserted, table_of
from app.graphs.run import Run, spanned
from app.ops import OP_CODE
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.workload import BACKWARD, FORWARD, UPDATE, Floats, Ints, Workload

BUCKET_BYTES = 25.0 * 2**20


def with_gradient_exchange(w: Workload, run: Run) -> Workload:
    """A training workload with its collectives over the data-parallel devices; as it is, where there is one."""
    if run.parallelism.data == 1 or not (w.phase == BACKWARD).any():
        return w
    return inserted(w, list(_exchange(w, run)))


def _exchange(w: Workload, run: Run) -> Iterator[Rows]:
    zero = run.parallelism.zero
    held = _held(w, run)
    per_block = w.per_block(held)
    total = (per_block * w.repeats[..., : w.blocks]).sum(axis=-1, keepdims=True)
    if not alike(total > 0).all():
        return
    backward = 2 * w.blocks - 1 - np.arange(w.blocks)
    yield from _buckets(w, held, np.minimum(BUCKET_BYTES, total), backward, run)
    block = np.flatnonzero(alike(per_block > 0))
    first = np.searchsorted(w.block, block)
    if zero >= 3:
        for phase, target in ((FORWARD, block), (BACKWARD, backward[block])):
            ops = _collective("all_gather", per_block[..., block], np.ones(len(block)), w, run)
            yield Rows(ops, first, target, np.full(len(block), -1.0), phase, overlapped=True)
    elif zero and (w.phase == UPDATE).any():
        ops = _collective("all_gather", per_block[..., block], np.ones(len(block)), w, run)
        yield Rows(ops, first, 2 * w.blocks + block, np.full(len(block), np.inf), UPDATE)


def _held(w: Workload, run: Run) -> Floats:
    """Bytes of gradients that each row shares with other devices: experts dealt over all of them share none."""
    parallelism = run.parallelism
    dealt = (w.ops.kind == OP_CODE["moe"]) & (parallelism.expert >= parallelism.data * parallelism.tensor)
    return np.where(dealt, 0.0, w.weight_bytes)


def _buckets(w: Workload, held: Floats, bucket: Floats, backward: Ints, run: Run) -> Iterator[Rows]:
    """Full buckets behind the backward rows that fill them, and what is left at the end of each block.

    Of several configurations, rows that fill one in any: in the others their launches are none.
    """
    op = "reduce_scatter" if run.parallelism.zero else "all_reduce"
    ready = _ready(w, backward)
    rows = np.flatnonzero(alike(held > 0))
    rows = rows[np.lexsort((ready[rows], backward[w.block[rows]]))]  # in the order in which gradients are made
    block = w.block[rows]
    filled = np.cumsum(held[..., rows], axis=-1)
    new = np.flatnonzero(np.diff(block, prepend=-1))  # where a block's rows begin
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
        ops = _collective(op, bucket, launches[..., some], w, run)
        source = place[some]
        yield Rows(ops, source, backward[w.block[source]], order[some], BACKWARD, overlapped=True)


def _ready(w: Workload, backward: Ints) -> Floats:
    """The backward row that ends the gradient of each forward row, [n]: the end of its block where none is its own."""
    ready: Floats = np.searchsorted(w.block, backward[w.origin[w.block]], side="right") - np.ones(len(w))
    own = np.flatnonzero(w.phase == BACKWARD)
    ready[w.source[own]] = own  # the last one stays
    return ready


def _collective(op: str, message: Floats, count: Floats, w: Workload, run: Run) -> OpTable:
    dtype = np.full(count.shape[-1], DTYPE_CODE["fp32"], dtype=np.intp)
    devices, tensor = run.parallelism.data, run.parallelism.tensor
    place = {"devices": devices, "nodes": spanned(devices, tensor, run), "spread": devices * tensor}
    return table_of(op, dtype, w.ops.fields, message_bytes=message, count=count, **place)
