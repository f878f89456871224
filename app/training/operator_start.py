"""Start of a retraining: the version that ships with the code, or nothing; and the set of rows that it was trained on.

A version is never trained on top of an earlier retrained one: it depends only on the shipped artefact and the database,
and does not remember removed rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import Intervals
from app.predictors import BY_NAME
from app.tables.arrays import Bools
from app.tables.measurements import OperatorRuns

Keys = NDArray[np.uint64]

_BITS_PER_KEY = 8
_PROBES = 4
_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set without false negatives, and with 2.4 % false positives.

    bits  uint8 [bytes]
    """

    bits: NDArray[np.uint8]

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Return the set of these keys, uint64 [n]."""
        bits = np.zeros(max(len(keys) * _BITS_PER_KEY // 8, 8), dtype=np.uint8)
        for place in _places(keys, 8 * len(bits)):
            np.bitwise_or.at(bits, place >> np.uint64(3), np.uint8(1) << (place & np.uint64(7)).astype(np.uint8))
        return cls(bits)

    def holds(self, keys: Keys) -> Bools:
        """Return True for keys in the set, bool [n]."""
        held = np.ones(len(keys), dtype=np.bool_)
        for place in _places(keys, 8 * len(self.bits)):
            held &= (self.bits[place >> np.uint64(3)] >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
        return held


def _places(keys: Keys, bits: int) -> Iterator[Keys]:
    """Yield the bit positions of every key, `first + k second` of one hash (Kirsch and Mitzenmacher 2006)."""
    mixed = (keys ^ (keys >> np.uint64(31))) * _STEP
    first, second = mixed >> np.uint64(32), (mixed & np.uint64(0xFFFFFFFF)) | np.uint64(1)
    for k in range(_PROBES):
        yield (first + np.uint64(k) * second) % np.uint64(bits)


@dataclass(frozen=True, slots=True)
class Start:
    """A predictor and its shipped version.

    learner  its class
    payload  of the shipped artefact; None: nothing ships
    gpus     ids of GPUs whose operators it was trained on
    rows     the rows it was trained on
    """

    learner: type[Any]
    payload: Mapping[str, Any] | None = None
    gpus: frozenset[str] = frozenset()
    rows: tuple[KeySet, ...] = field(default_factory=tuple)

    @classmethod
    def on(cls, name: str, payload: Mapping[str, Any] | None = None) -> Self:
        """Return the start of a predictor by name, on top of an artefact or of nothing."""
        gpus, rows = learned_from(payload)
        return cls(BY_NAME[name], payload, gpus, rows)

    @property
    def name(self) -> str:
        """Name of the predictor."""
        return str(self.learner.name)

    def fresh(self) -> Any:
        """Return the untrained predictor."""
        return self.learner()

    def base(self) -> Any:
        """Return the shipped version, else `fresh`."""
        return self.fresh() if self.payload is None else self.learner.from_state(self.payload["state"])

    def intervals(self) -> Intervals:
        """Return the intervals of the shipped version, else the prior."""
        return Intervals.prior() if self.payload is None else Intervals.from_state(self.payload["intervals"])


def learned_from(payload: Mapping[str, Any] | None) -> tuple[frozenset[str], tuple[KeySet, ...]]:
    """Return the GPUs and the rows whose operators a version was trained on."""
    known = (payload or {}).get("operators") or {"gpus": [], "rows": []}
    return frozenset(known["gpus"]), tuple(KeySet(bits) for bits in known["rows"])


def learned_rows(runs: Sequence[OperatorRuns], cells: Iterable[tuple[str, str]]) -> KeySet:
    """Return the rows that `cells` learned; others may still correct what their operator and dtype borrow."""
    known = set(cells)
    keys = [run.key for run in runs if (run.op, run.dtype) in known]
    return KeySet.of(np.concatenate([np.empty(0, dtype=np.uint64), *keys]))


def any_holds(sets: tuple[KeySet, ...], keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return True for keys in any of the sets, bool [n]."""
    held = np.zeros(len(keys), dtype=np.bool_)
    for one in sets:
        held |= one.holds(keys)
    return held
