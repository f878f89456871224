"""Fusion as torch.compile does it: what is bound by memory and follows one another becomes one kernel.

NeuSight's rule for fused operators: the traffic of tensors that stay inside is removed, the operators' own work adds
up. Which operators fuse is declared here: element-wise ones, norms, softmax, copies and reductions, that follow one
another in a block without a product between and pass tensors on. Products keep to themselves (in Inductor, products in
the GEMM library's kernels take no epilogue). The fused kernel moves what its rows read from outside, each tensor once,
and what of theirs is read outside.

Attention written as softmax(scale x scores + mask) is found and runs as one kernel (PyTorch 2.1, `fuse_attention`):
what lies between its two products stays on the chip. Masks that overwrite scores (GPT-2) are not found.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.graphs.many import alike, work
from app.graphs.rows import stacked, table_of
from app.ops import OP_CODE
from app.ops.elementwise import ELEMENTWISE_OPS
from app.tables.ops import OpTable
from app.tables.workload import Bools, Floats, Ints, Workload

_FUSIBLE = [OP_CODE[op.name] for op in ELEMENTWISE_OPS]
# What PyTorch finds between the products of attention.
_SCALING = [OP_CODE[name] for name in ("div_scalar", "mul_scalar")]
_BETWEEN = [*_SCALING, *(OP_CODE[name] for name in ("add_scalar", "add", "softmax"))]
_FUSIBLE += [OP_CODE[name] for name in ("softmax", "layer_norm", "rms_norm", "batch_norm", "copy", "memory")]


def fused(w: Workload) -> Workload:
    """A forward workload, its fusible rows merged: each group a `memory` row in place of its last row."""
    group = _groups(w)
    size = np.bincount(group)
    last = np.zeros(len(size), dtype=np.intp)
    last[group] = np.arange(len(w))  # the last one stays
    kept = np.sort(last)
    place = np.searchsorted(kept, last)[group]
    merged = size[group[kept]] > 1
    outside = _read_outside(w, group)

    by_place = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[by_place], np.arange(len(kept)))

    def summed(values: Floats) -> Floats:
        return np.add.reduceat(values.T[by_place], starts, axis=0).T

    edges = place[w.edges]
    return replace(
        w,
        ops=_merged(w.ops.take(kept), np.flatnonzero(merged), summed(_traffic(w, group, outside))),
        names=_names(w, place, kept, merged),
        phase=w.phase[kept],
        source=np.arange(len(kept)),
        block=w.block[kept],
        edges=np.unique(edges[:, edges[0] != edges[1]], axis=1),
        parameters=summed(w.parameters),
        weight_bytes=summed(w.weight_bytes),
        output_bytes=summed(w.output_bytes * outside),
        saved_bytes=summed(w.saved_bytes * outside),  # backward computes what stayed inside again
        kv_bytes=summed(w.kv_bytes),
        overlapped=w.overlapped[kept],
    )


def _groups(w: Workload) -> Ints:
    """The group of every row, int [n]: rows that pass tensors on, in one run of fusible rows of a block."""
    n = len(w)
    fusible = np.isin(w.ops.kind, _FUSIBLE)
    if w.unknown:  # among the `memory` rows are operators that nobody knows
        fusible &= w.ops.kind != OP_CODE["memory"]
    run = np.cumsum(~fusible) + np.cumsum(np.diff(w.block, prepend=0))
    a, b = w.edges
    joined = fusible[a] & fusible[b] & (run[a] == run[b])
    drawn = _drawn(w)
    drawn = drawn[fusible[drawn] & fusible[drawn + 1] & (run[drawn] == run[drawn + 1])]
    a, b = np.concatenate([a[joined], drawn]), np.concatenate([b[joined], drawn + 1])
    return _joined(n, a, b)


def _joined(n: int, a: Ints, b: Ints) -> Ints:
    """The number of the group of each of n rows, which edges a to b join (union-find, Tarjan 1975)."""
    root = list(range(n))

    def root_of(row: int) -> int:
        while root[row] != row:
            root[row] = row = root[root[row]]
        return row

    for one, other in zip(a.tolist(), b.tolist(), strict=True):
        first, second = sorted((root_of(one), root_of(other)))
        root[second] = first
    return np.unique([root_of(row) for row in range(n)], return_inverse=True)[1]


def _drawn(w: Workload) -> Ints:
    """Random numbers of the row behind them, which nobody else reads: fused, they stay in registers."""
    rows = np.flatnonzero(alike(w.output_bytes == 0) & (w.ops.kind == OP_CODE["memory"]))
    drawn: Ints = rows[rows + 1 < len(w)]
    return drawn


def _read_outside(w: Workload, group: Ints) -> Bools:
    """Rows whose output others than their group read: later rows, or (nobody in the block) the next block."""
    inside = w.edges[:, group[w.edges[0]] == group[w.edges[1]]]
    readers = np.bincount(w.edges[0], minlength=len(w))
    outside: Bools = (readers == 0) | (np.bincount(inside[0], minlength=len(w)) < readers)
    return outside


def _traffic(w: Workload, group: Ints, outside: Bools) -> Floats:
    """What each row adds to the bytes that its group moves, float64 [..., n]."""
    traffic = work(w.ops).bytes * w.ops.column("count") - np.where(outside, 0.0, w.output_bytes)
    added, written = traffic.T, w.output_bytes.T
    from_group, into_group = group[w.edges]
    inside = from_group == into_group
    np.subtract.at(added, w.edges[1, inside], written[w.edges[0, inside]])
    # A tensor from outside that several rows of a group read is read once.
    producer, reader = w.edges[:, ~inside]
    _, first = np.unique(np.stack([producer, into_group[~inside]]), axis=1, return_index=True)
    again = np.ones(len(producer), dtype=np.bool_)
    again[first] = False
    np.subtract.at(added, reader[again], written[producer[again]])
    added[_in_attention(w, group)[group]] = 0.0
    drawn = _drawn(w)
    added[drawn] = 0.0
    np.subtract.at(added, drawn + 1, written[drawn + 1])
    return np.maximum(traffic, 0.0)


def _in_attention(w: Workload, group: Ints) -> Bools:
    """Groups that lie between the two products of an attention that is found, bool [groups]."""
    kind, product = w.ops.kind, OP_CODE["bmm"]
    producer, consumer = w.edges[:, group[w.edges[0]] != group[w.edges[1]]]
    found: Bools = np.bincount(group, weights=kind == OP_CODE["softmax"]) > 0
    found &= np.bincount(group, weights=np.isin(kind, _SCALING)) > 0
    found &= np.bincount(group, weights=~np.isin(kind, _BETWEEN)) == 0
    for inside, outside in ((group[consumer], kind[producer]), (group[producer], kind[consumer])):
        found &= np.bincount(inside, minlength=len(found)) > 0
        found &= np.bincount(inside, weights=outside != product, minlength=len(found)) == 0
    return found


def _merged(ops: OpTable, rows: Ints, moved: Floats) -> OpTable:
    """The table with `memory` in place of the given rows."""
    moved, burst = np.maximum(moved[..., rows], 1.0), ops.column("burst")[..., rows]
    memory = table_of("memory", ops.dtype[rows], ops.fields, bytes=moved, burst=burst)
    place = np.arange(len(ops))
    place[rows] = len(ops) + np.arange(len(rows))
    return stacked([ops, memory]).take(place)


def _names(w: Workload, place: Ints, kept: Ints, merged: Bools) -> tuple[str, ...]:
    """Names of a group's rows, joined."""
    names = [w.names[row] for row in kept.tolist()]
    parts: dict[int, list[str]] = {k: [] for k in np.flatnonzero(merged).tolist()}
    for row, k in enumerate(place.tolist()):
        if k in parts:
            parts[k].append(w.names[row])
    for k, joined in parts.items():
        names[k] = "~".join(joined)
    return tuple(names)
