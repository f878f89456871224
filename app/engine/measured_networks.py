"""Measured times of whole networks, as the engine holds them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple


class MeasuredModels(NamedTuple):
    """Seconds of networks measured whole, by what they are and by GPU id, the median of equal rows.

    `seen` says which stored rows they are from.
    """

    times: Mapping[Hashable, Mapping[str, float]] = {}
    seen: str = ""

    def on(self, gpu: str) -> list[Hashable]:
        """Keys of those that were measured on a GPU."""
        return [key for key, by_gpu in self.times.items() if gpu in by_gpu]
