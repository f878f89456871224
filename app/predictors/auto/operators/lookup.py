"""Exact hits: the time measured of that very operator on that very GPU, found by a 64-bit digest of what it is.

Two of 1.2 million rows share a digest with a probability of 4e-8, and a query hits a foreign row with one of 7e-14.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OPS
from app.predictors.priors import IS_EAGER
from app.runtime.compiled import compiled
from app.tables.measurements import Evidence, Measurements
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Digests = NDArray[np.uint64]

# SplitMix64 (Steele et al. 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BY_30, _BY_27, _BY_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_ABSENT = np.uint64(0x7FF8000000000000)
# A bucket holds about as many digests as a cache line.
_PER_BUCKET = 8
# How often an operator runs is no part of what it is, and the stack is resolved by dtype first.
_APART = ("count", "eager")


@compiled
def mixed(digest: np.uint64, value: np.uint64) -> np.uint64:
    """The digest of what it was of, and of one word more."""
    digest = (digest ^ value) + _STEP
    digest = (digest ^ (digest >> _BY_30)) * _FIRST
    digest = (digest ^ (digest >> _BY_27)) * _SECOND
    return digest ^ (digest >> _BY_31)


@compiled
def _digest(table: tuple[Ints, Ints, Floats, Digests], used: Ints, eager: int, digest: Digests) -> None:
    """`used` [kinds, ...] are the rows of `dims` that say what an operator of a kind is, behind how many they are."""
    kind, dtype, dims, bits = table
    for k in range(len(digest)):
        stack = dims[eager, k]
        graph = not IS_EAGER[dtype[k]] if np.isnan(stack) else stack <= 0.0
        value = mixed(np.uint64(kind[k]), np.uint64(2 * dtype[k] + graph))
        for field in used[kind[k], 1 : 1 + used[kind[k], 0]]:
            value = mixed(value, _ABSENT if np.isnan(dims[field, k]) else bits[field, k])
        digest[k] = value


@compiled
def _find(
    digest: Digests, i: Ints, j: Ints, known: int, stored: tuple[Digests, Floats, Ints, np.uint64], found: Floats
) -> int:
    """Fill `found` with measured times, NaN where there is none; returns how many there are."""
    keys, latency_s, start, shift = stored
    hits = 0
    for q in range(len(i)):
        found[q] = np.nan
        if j[q] >= known:
            continue
        wanted = mixed(digest[i[q]], np.uint64(j[q]))
        bucket = np.intp(wanted >> shift)
        for k in range(start[bucket], start[bucket + 1]):
            if keys[k] == wanted:
                found[q] = latency_s[k]
                hits += 1
                break
    return hits


def digests(ops: OpTable) -> Digests:
    """What every row is, whatever the GPU: operator, dtype, dimensions, and whether the host launches it, uint64 [n].

    The same for a row of its family's own table and for one of a table that mixes families.
    """
    digest = np.empty(len(ops), dtype=np.uint64)
    used = np.zeros((len(OPS), 1 + len(ops.fields)), dtype=np.intp)
    for kind in np.flatnonzero(np.bincount(ops.kind)).tolist():
        rows = [ops.fields[name] for name in OPS[kind].fields if name not in _APART]
        used[kind, : 1 + len(rows)] = (len(rows), *rows)
    dims = np.ascontiguousarray(ops.dims)
    _digest((ops.kind, ops.dtype, dims, dims.view(np.uint64)), used, ops.fields["eager"], digest)
    return digest


@dataclass(frozen=True, slots=True)
class OperatorIndex:
    """Measured operators by digest, m of them: 20 bytes each.

    keys       uint64 [m], sorted
    latency_s  float64 [m], seconds, the median of equal rows
    start      int [buckets + 1], where the digests of each bucket begin; the bucket is the digest >> shift
    known      GPUs of the engine's table; rows behind them are a request's own, which nothing was measured on
    """

    keys: Digests
    latency_s: Floats
    start: Ints
    shift: np.uint64
    known: int

    @classmethod
    def build(cls, runs: Iterable[OperatorRuns], known: int) -> Self:
        """From measured rows whose GPUs are rows of a table of `known` GPUs."""
        parts = [(_on(digests(run.rows.ops), run.rows.gpu), run.rows.latency_s) for run in runs if len(run)]
        keys = np.concatenate([np.empty(0, dtype=np.uint64), *(part[0] for part in parts)])
        times = np.concatenate([np.empty(0), *(part[1] for part in parts)])
        order = np.lexsort((times, keys))
        unique, first, count = np.unique(keys[order], return_index=True, return_counts=True)
        times = times[order]
        middle = 0.5 * (times[first + (count - 1) // 2] + times[first + count // 2])
        bits = max(int(np.ceil(np.log2(max(len(unique), 1) / _PER_BUCKET))), 1)
        shift = np.uint64(64 - bits)
        start = np.searchsorted((unique >> shift).astype(np.intp), np.arange(2**bits + 1))
        return cls(unique, middle, start.astype(np.intp), shift, known)

    def __len__(self) -> int:
        return len(self.keys)

    def times(self, ops: OpTable, i: Ints, j: Ints) -> Floats | None:
        """Measured seconds of operator row `i[q]` on GPU row `j[q]`, NaN where there are none; None if none has any."""
        if not len(self.keys) or not len(ops):
            return None
        found = np.empty(len(i))
        stored = (self.keys, self.latency_s, self.start, self.shift)
        return found if _find(digests(ops), i, j, self.known, stored, found) else None

    def evidence(self, ops: OpTable, i: Ints, j: Ints) -> Evidence:
        """The measured rows of the very operators asked for, at most one per query."""
        found = self.times(ops, i, j)
        hits = np.empty(0, dtype=np.intp) if found is None else np.flatnonzero(np.isfinite(found))
        times = np.empty(0) if found is None else found[hits]
        return Evidence(Measurements(ops.take(i[hits]), j[hits], times), hits)


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


def _on(digest: Digests, gpu: Ints) -> Digests:
    """Digests of rows on their GPUs."""
    placed = np.empty_like(digest)
    _place(digest, gpu, placed)
    return placed


@compiled
def _place(digest: Digests, gpu: Ints, placed: Digests) -> None:
    for k in range(len(digest)):
        placed[k] = mixed(digest[k], np.uint64(gpu[k]))


NO_OPERATORS = OperatorIndex.build((), 0)
