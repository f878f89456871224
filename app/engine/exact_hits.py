"""Exact hits: the time measured of that very operator on that very GPU, found by its digest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from app.predictors.operator_digests import Digests, digests, mixed
from app.runtime.compiled import compiled
from app.tables.arrays import Floats, Ints
from app.tables.measurements import Evidence, Measurements
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable

# A bucket holds about as many digests as a cache line.
_PER_BUCKET = 8


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
