"""Fusion as torch.compile does it: consecutive memory-bound operators become one kernel.

By NeuSight's rule for fused operators, traffic of intermediate tensors is removed and the operators' work adds up.
Operators that say so (`Op.fusible`: element-wise ones, norms, softmax, copies and reductions) fuse if they are
consecutive in a block, pass tensors on, and no matrix product is between them. Products do not fuse (Inductor gives
products in the GEMM library's kernels no epilogue). A fused kernel reads each outside tensor once and writes the
tensors that are read outside.

Attention written as softmax(scale x scores + mask) is recognised and runs as one kernel (PyTorch 2.1,
`fuse_attention`): tensors between its two products stay on the chip. Masks that overwrite scores (GPT-2) are not
recognised.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.networks.batched import same_in_all, work_of_rows
from app.networks.build import stacked, table_of
from app.ops import OP_CODE, OPS
from app.tables.arrays import Bools, Floats, Ints
from app.tables.ops import OpTable
from app.tables.workload import Workload

_FUSIBLE = np.flatnonzero([op.fusible for op in OPS])
# Operators that PyTorch's pattern allows between the two products of attention.
_SCALING = [OP_CODE[name] for name in ("div_scalar", "mul_scalar")]
_BETWEEN = [*_SCALING, *(OP_CODE[name] for name in ("add_scalar", "add", "softmax"))]


def fused(w: Workload) -> Workload:
    """Return the forward workload with each group of fusible rows merged into a `memory` row in place of its last."""
    group = _groups(w)
    size = np.bincount(group)
    last = np.zeros(len(size), dtype=np.intp)
    last[group] = np.arange(len(w))  # the last one stays
    tails = np.sort(last)
    place = np.searchsorted(tails, last)[group]
    merged = size[group[tails]] > 1
    outside = _read_outside(w, group)

    by_place = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[by_place], np.arange(len(tails)))

    def summed(values: Floats) -> Floats:
        return np.add.reduceat(values.T[by_place], starts, axis=0).T

    edges = place[w.edges]
    return replace(
        w,
        ops=_merged(w.ops.take(tails), np.flatnonzero(merged), summed(_traffic(w, group, outside))),
        names=_names(w, place, tails, merged),
        phase=w.phase[tails],
        source=np.arange(len(tails)),
        block=w.block[tails],
        edges=np.unique(edges[:, edges[0] != edges[1]], axis=1),
        parameters=summed(w.parameters),
        weight_bytes=summed(w.weight_bytes),
        output_bytes=summed(w.output_bytes * outside),
        saved_bytes=summed(w.saved_bytes * outside),  # backward recomputes intermediate tensors
        kv_bytes=summed(w.kv_bytes),
        overlapped=w.overlapped[tails],
    )


def _groups(w: Workload) -> Ints:
    """Return the group of every row, int [n]: connected rows within a run of fusible rows of one block."""
    n = len(w)
    fusible = np.isin(w.ops.kind, _FUSIBLE)
    if w.unknown:  # some `memory` rows stand for unknown operators
        fusible &= w.ops.kind != OP_CODE["memory"]
    run = np.cumsum(~fusible) + np.cumsum(np.diff(w.block, prepend=0))
    a, b = w.edges
    joined = fusible[a] & fusible[b] & (run[a] == run[b])
    drawn = _drawn(w)
    drawn = drawn[fusible[drawn] & fusible[drawn + 1] & (run[drawn] == run[drawn + 1])]
    a, b = np.concatenate([a[joined], drawn]), np.concatenate([b[joined], drawn + 1])
    return _joined(n, a, b)


def _joined(n: int, a: Ints, b: Ints) -> Ints:
    """Return the group of each of n rows joined by the edges a to b, int [n] (union-find, Tarjan 1975)."""
    root = list(range(n))

    def root_of(row: int) -> int:
        while root[row] != row:
            root[row] = row = root[root[row]]
        return row

    for producer, consumer in zip(a.tolist(), b.tolist(), strict=True):
        first, second = sorted((root_of(producer), root_of(consumer)))
        root[second] = first
    return np.unique([root_of(row) for row in range(n)], return_inverse=True)[1]


def _drawn(w: Workload) -> Ints:
    """Return rows that draw random numbers for the next row only: fused, the numbers stay in registers."""
    rows = np.flatnonzero(same_in_all(w.output_bytes == 0) & (w.ops.kind == OP_CODE["memory"]))
    drawn: Ints = rows[rows + 1 < len(w)]
    return drawn


def _read_outside(w: Workload, group: Ints) -> Bools:
    """Return rows whose output is read outside their group: by other rows, or by the next block."""
    inside = w.edges[:, group[w.edges[0]] == group[w.edges[1]]]
    readers = np.bincount(w.edges[0], minlength=len(w))
    outside: Bools = (readers == 0) | (np.bincount(inside[0], minlength=len(w)) < readers)
    return outside


def _traffic(w: Workload, group: Ints, outside: Bools) -> Floats:
    """Return the bytes that each row adds to its group's traffic, float64 [..., n]."""
    traffic = work_of_rows(w.ops).bytes * w.ops.column("count") - np.where(outside, 0.0, w.output_bytes)
    added, written = traffic.T, w.output_bytes.T
    from_group, into_group = group[w.edges]
    inside = from_group == into_group
    np.subtract.at(added, w.edges[1, inside], written[w.edges[0, inside]])
    # A group reads each outside tensor once.
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
    """Return groups that lie between the two products of a recognised attention, bool [groups]."""
    kind, product = w.ops.kind, OP_CODE["bmm"]
    producer, consumer = w.edges[:, group[w.edges[0]] != group[w.edges[1]]]
    is_attention: Bools = np.bincount(group, weights=kind == OP_CODE["softmax"]) > 0
    is_attention &= np.bincount(group, weights=np.isin(kind, _SCALING)) > 0
    is_attention &= np.bincount(group, weights=~np.isin(kind, _BETWEEN)) == 0
    for inside, outside in ((group[consumer], kind[producer]), (group[producer], kind[consumer])):
        is_attention &= np.bincount(inside, minlength=len(is_attention)) > 0
        is_attention &= np.bincount(inside, weights=outside != product, minlength=len(is_attention)) == 0
    return is_attention


def _merged(ops: OpTable, rows: Ints, moved: Floats) -> OpTable:
    """Return the table with the given rows replaced by `memory` rows of `moved` bytes."""
    moved, burst = np.maximum(moved[..., rows], 1.0), ops.column("burst")[..., rows]
    memory = table_of("memory", ops.dtype[rows], ops.fields, bytes=moved, burst=burst)
    place = np.arange(len(ops))
    place[rows] = len(ops) + np.arange(len(rows))
    return stacked([ops, memory]).take(place)


def _names(w: Workload, place: Ints, tails: Ints, merged: Bools) -> tuple[str, ...]:
    """Return one name per merged row: the names of its group's rows, joined."""
    names = [w.names[row] for row in tails.tolist()]
    parts: dict[int, list[str]] = {k: [] for k in np.flatnonzero(merged).tolist()}
    for row, k in enumerate(place.tolist()):
        if k in parts:
            parts[k].append(w.names[row])
    for k, joined in parts.items():
        names[k] = "~".join(joined)
    return tuple(names)
