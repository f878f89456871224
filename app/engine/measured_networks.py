"""Measured times of whole networks, as the engine keeps them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple


class MeasuredModels(NamedTuple):
    """Measured seconds by network key and GPU id, the median of equal rows.

    `fingerprint` identifies the stored rows that they come from.
    """

    times: Mapping[Hashable, Mapping[str, float]] = {}
    fingerprint: str = ""

    def on(self, gpu: str) -> list[Hashable]:
        """Return the keys of networks that were measured on a GPU."""
        return [key for key, by_gpu in self.times.items() if gpu in by_gpu]
