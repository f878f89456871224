"""What an operator is, in 64 bits: equal operators are found by these, one of a table and one that was measured.

Two of 1.2 million rows share a digest with a probability of 4e-8, and a query hits a foreign row with one of 7e-14.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.priors import IS_EAGER
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints, Singles
from app.tables.ops import OpTable

Digests = NDArray[np.uint64]

# SplitMix64 (Steele et al. 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BY_30, _BY_27, _BY_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_ABSENT = np.uint64(0x7FF8000000000000)
# How often an operator runs is no part of what it is; launch mode and serving stack have defaults, resolved first.
# Kinds of hybrid models count where they are given, so that earlier artefacts know their rows.
_APART = ("count", "eager", "stack", "hybrid")
_BY_STACK, _BY_HYBRID = np.uint64(1 << 32), np.uint64(1 << 40)


@compiled
def mixed(digest: np.uint64, value: np.uint64) -> np.uint64:
    """The digest of what it was of, and of one word more."""
    digest = (digest ^ value) + _STEP
    digest = (digest ^ (digest >> _BY_30)) * _FIRST
    digest = (digest ^ (digest >> _BY_27)) * _SECOND
    return digest ^ (digest >> _BY_31)


@compiled
def _digest(
    table: tuple[Ints, Ints, Floats, Digests], used: Ints, apart: tuple[int, int, int], digest: Digests
) -> None:
    """`used` [kinds, ...] are the rows of `dims` that say what an operator of a kind is, behind how many they are.

    `apart`: rows of the launch mode; of the serving stack, which is the first one where it is absent; and of the kind
    of hybrid model, -1 where no operator has it.
    """
    kind, dtype, dims, bits = table
    for k in range(len(digest)):
        eager, stack = dims[apart[0], k], dims[apart[1], k]
        graph = not IS_EAGER[dtype[k]] if np.isnan(eager) else eager <= 0.0
        run = np.uint64(2 * dtype[k] + graph) + np.uint64(0.0 if np.isnan(stack) else stack) * _BY_STACK
        if apart[2] >= 0 and not np.isnan(dims[apart[2], k]):
            run += np.uint64(1.0 + dims[apart[2], k]) * _BY_HYBRID
        # Each word by itself: codes are small, so that (kind, dtype) pairs share an exclusive or.
        value = mixed(mixed(np.uint64(0), np.uint64(kind[k])), run)
        for field in used[kind[k], 1 : 1 + used[kind[k], 0]]:
            value = mixed(value, _ABSENT if np.isnan(dims[field, k]) else bits[field, k])
        digest[k] = value


def digests(ops: OpTable) -> Digests:
    """What every row is, whatever the GPU: operator, dtype, dimensions, launch mode and serving stack, uint64 [n].

    The same for a row of its family's own table and for one of a table that mixes families.
    """
    digest = np.empty(ops.kind.size, dtype=np.uint64)
    used = np.zeros((len(OPS), 1 + len(ops.fields)), dtype=np.intp)
    for kind in np.flatnonzero(np.bincount(ops.kind)).tolist():
        rows = [ops.fields[name] for name in OPS[kind].fields if name not in _APART]
        used[kind, : 1 + len(rows)] = (len(rows), *rows)
    dims = np.ascontiguousarray(ops.dims)
    apart = (ops.fields["eager"], ops.fields["stack"], ops.fields.get("hybrid", -1))
    _digest((ops.kind, ops.dtype, dims, dims.view(np.uint64)), used, apart, digest)
    return digest


def feature_digests(features: Singles) -> Digests:
    """What every column of `features` float32 [rows, n] holds, the same for equal ones, uint64 [n]."""
    digest = np.zeros(features.shape[1], dtype=np.uint64)
    _mix(np.ascontiguousarray(features).view(np.uint32), digest)
    return digest


@compiled
def _mix(bits: NDArray[np.uint32], digest: Digests) -> None:
    for k in range(len(digest)):
        for row in range(len(bits)):
            digest[k] = mixed(digest[k], np.uint64(bits[row, k]))


class Seen(NamedTuple):
    """Distinct digests in the order in which they come: where each is first seen, [u], and each row's, [n]."""

    first: Ints
    of: Ints


def first_seen(digest: Digests) -> Seen:
    """Equal digests once."""
    n = len(digest)
    bits = max(int(2 * n - 1).bit_length(), 1)
    first, of = np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp)
    count = _fill_seen(digest, np.full(2**bits, -1, dtype=np.int32), np.uint64(64 - bits), first, of)
    return Seen(first[:count], of)


@compiled
def _fill_seen(digest: Digests, slots: NDArray[np.int32], shift: np.uint64, first: Ints, of: Ints) -> int:
    """By a table of at least twice as many slots, a power of two; returns how many are distinct."""
    count = 0
    for k in range(len(digest)):
        at = np.intp(digest[k] >> shift)
        while slots[at] >= 0 and digest[first[slots[at]]] != digest[k]:
            at = (at + 1) % len(slots)
        if slots[at] < 0:
            slots[at], first[count] = count, k
            count += 1
        of[k] = slots[at]
    return count


class Distinct(NamedTuple):
    """Distinct operator rows, and the index of every requested row among them.

    table    the distinct rows, each with a count of 1
    row      int [n], row of `table` for each requested operator
    repeats  float64 [n], how often that operator runs
    """

    table: OpTable
    row: Ints
    repeats: Floats


def deduplicate(table: OpTable) -> Distinct:
    """Return equal rows once, in order of first occurrence. Rows that differ only in `count` are equal."""
    first, row = first_seen(digests(table))
    once = table.take(first)
    once.dims[once.fields["count"]] = 1.0
    return Distinct(once, row, table.column("count").copy())
