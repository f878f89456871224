"""Exact hits: the time measured of that very operator on that very GPU, found by its digest.

Beside them, the measured times of whole networks and of served loads, as the engine keeps them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from app.networks.run import Run
from app.predictors.operator_digests import Digests, digests, mixed
from app.runtime.compiled import compiled
from app.tables.arrays import Bools, Floats, Ints
from app.tables.measurements import Evidence, Measurements, OperatorRuns
from app.tables.ops import OpTable

# A bucket holds about as many digests as a cache line.
_PER_BUCKET = 8


@compiled
def _find(
    digest: Digests, i: Ints, j: Ints, known: int, stored: tuple[Digests, Floats, Ints, np.uint64], measured_s: Floats
) -> int:
    """Fill `measured_s` with measured times, NaN where there is none; returns how many there are."""
    keys, latency_s, start, shift = stored
    hits = 0
    for q in range(len(i)):
        measured_s[q] = np.nan
        if j[q] >= known:
            continue
        key = mixed(digest[i[q]], np.uint64(j[q]))
        bucket = np.intp(key >> shift)
        for k in range(start[bucket], start[bucket + 1]):
            if keys[k] == key:
                measured_s[q] = latency_s[k]
                hits += 1
                break
    return hits


class Times(NamedTuple):
    """Digests of rows on their GPUs, uint64 [n], and their times, float64 [n], seconds."""

    key: Digests
    latency_s: Floats

    def take(self, rows: Bools) -> Times:
        """Return the rows of a mask."""
        return Times(self.key[rows], self.latency_s[rows])


class _Medians(NamedTuple):
    """Distinct digests in ascending order with the median of their times, and all rows of those that repeat."""

    median: Times
    repeated: Times


def _medians(rows: Times) -> _Medians:
    order = np.lexsort((rows.latency_s, rows.key))
    ordered = Times(rows.key[order], rows.latency_s[order])
    unique, first, count = np.unique(ordered.key, return_index=True, return_counts=True)
    times = ordered.latency_s
    middle = 0.5 * (times[first + (count - 1) // 2] + times[first + count // 2])
    return _Medians(Times(unique, middle), ordered.take(np.repeat(count > 1, count)))


def _joined(parts: Iterable[Times]) -> Times:
    keys, times = zip(*parts, strict=True)
    return Times(np.concatenate(keys), np.concatenate(times))


def _times(runs: Iterable[OperatorRuns]) -> Times:
    none = Times(np.empty(0, dtype=np.uint64), np.empty(0))
    parts = (Times(_on(digests(run.rows.ops), run.rows.gpu), run.rows.latency_s) for run in runs if len(run))
    return _joined([none, *parts])


def _among(held: Digests, keys: Digests) -> Bools:
    """Return which keys are among the sorted ones. NumPy's `isin` and `unique` keep Python's lock for half a second."""
    place = np.searchsorted(held, keys)
    inside = place < len(held)
    inside[inside] = held[place[inside]] == keys[inside]
    return inside


@dataclass(frozen=True, slots=True)
class OperatorIndex:
    """Measured operators by digest, m of them: 20 bytes each.

    keys       uint64 [m], sorted
    latency_s  float64 [m], seconds, the median of equal rows
    start      int [buckets + 1], where the digests of each bucket begin; the bucket is the digest >> shift
    known      GPUs of the engine's table; rows behind them are a request's own, which nothing was measured on
    repeated   rows of the digests that were measured more than once
    """

    keys: Digests
    latency_s: Floats
    start: Ints
    shift: np.uint64
    known: int
    repeated: Times

    @classmethod
    def build(cls, runs: Iterable[OperatorRuns], known: int) -> Self:
        """From measured rows whose GPUs are rows of a table of `known` GPUs."""
        return cls._of(_medians(_times(runs)), known)

    def updated(self, runs: Iterable[OperatorRuns]) -> Self:
        """Return the index of these rows too, which it does not hold yet; other digests are copied as they are."""
        new = _times(runs)
        if not len(new.key):
            return self
        touched = np.sort(new.key)
        touched = touched[np.append(True, touched[1:] != touched[:-1])]
        place, held = np.searchsorted(self.keys, touched), _among(self.keys, touched)
        again = _among(touched, self.repeated.key)
        once = held & ~_among(np.sort(self.repeated.key), touched)
        before = Times(touched[once], self.latency_s[place[once]])
        part = _medians(_joined([new, self.repeated.take(again), before]))
        latency_s = self.latency_s.copy()
        latency_s[place[held]] = part.median.latency_s[held]
        keys = np.insert(self.keys, place[~held], touched[~held])
        latency_s = np.insert(latency_s, place[~held], part.median.latency_s[~held])
        return self._of(
            _Medians(Times(keys, latency_s), _joined([self.repeated.take(~again), part.repeated])), self.known
        )

    @classmethod
    def _of(cls, medians: _Medians, known: int) -> Self:
        keys = medians.median.key
        bits = max(int(np.ceil(np.log2(max(len(keys), 1) / _PER_BUCKET))), 1)
        shift = np.uint64(64 - bits)
        start = np.zeros(2**bits + 1, dtype=np.intp)
        np.cumsum(np.bincount((keys >> shift).astype(np.intp), minlength=2**bits), out=start[1:])
        return cls(keys, medians.median.latency_s, start, shift, known, medians.repeated)

    def __len__(self) -> int:
        return len(self.keys)

    def times(self, ops: OpTable, i: Ints, j: Ints) -> Floats | None:
        """Measured seconds of operator row `i[q]` on GPU row `j[q]`, NaN where there are none; None if none has any."""
        if not len(self.keys) or not ops.kind.size:
            return None
        measured_s = np.empty(len(i))
        stored = (self.keys, self.latency_s, self.start, self.shift)
        return measured_s if _find(digests(ops), i, j, self.known, stored, measured_s) else None

    def evidence(self, ops: OpTable, i: Ints, j: Ints) -> Evidence:
        """The measured rows of the very operators requested, at most one per query."""
        measured_s = self.times(ops, i, j)
        hits = np.empty(0, dtype=np.intp) if measured_s is None else np.flatnonzero(np.isfinite(measured_s))
        times = np.empty(0) if measured_s is None else measured_s[hits]
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


class UploadedStep(NamedTuple):
    """A measured step of a network.

    network   of app.steps
    launched  whether the host launched each operator
    seconds   its time, and the `upload` that brought it
    """

    network: Any
    run: Run
    launched: bool
    seconds: float
    upload: int


class MeasuredModels(NamedTuple):
    """Measured seconds by network key and GPU id, the median of equal rows.

    `uploads`: steps by GPU id, the last ones first; what is imported teaches of nothing else. `fingerprint` identifies
    the stored rows that they come from.
    """

    times: Mapping[Hashable, Mapping[str, float]] = {}
    uploads: Mapping[str, Sequence[UploadedStep]] = {}
    fingerprint: str = ""

    def on(self, gpu: str) -> list[Hashable]:
        """Return the keys of networks that were measured on a GPU."""
        return [key for key, by_gpu in self.times.items() if gpu in by_gpu]


class ServedPoint(NamedTuple):
    """A measured load: means over its requests, seconds.

    workload  the workload of kind `serving` in the API's form
    upload    id of the upload that brought it; None of an import
    """

    workload: Mapping[str, Any]
    ttft_s: float
    tpot_s: float
    e2e_s: float
    upload: int | None = None

    @property
    def means(self) -> tuple[float, float, float]:
        """Return the times: to first token, per output token, end to end."""
        return self.ttft_s, self.tpot_s, self.e2e_s


class ServedPoints(NamedTuple):
    """Measured loads by deployment and GPU id; `fingerprint` identifies the stored rows that they come from."""

    by_deployment: Mapping[tuple[Hashable, str], Sequence[ServedPoint]] = {}
    fingerprint: str = ""
