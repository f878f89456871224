"""Set of training rows: a Bloom filter (Bloom 1970) over their keys, a byte per row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Bools

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
        found = np.ones(len(keys), dtype=np.bool_)
        for place in _places(keys, 8 * len(self.bits)):
            found &= (self.bits[place >> np.uint64(3)] >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
        return found


def _places(keys: Keys, bits: int) -> Iterator[Keys]:
    """Yield the bit positions of every key, `first + k second` of one hash (Kirsch and Mitzenmacher 2006)."""
    mixed = (keys ^ (keys >> np.uint64(31))) * _STEP
    first, second = mixed >> np.uint64(32), (mixed & np.uint64(0xFFFFFFFF)) | np.uint64(1)
    for k in range(_PROBES):
        yield (first + np.uint64(k) * second) % np.uint64(bits)
