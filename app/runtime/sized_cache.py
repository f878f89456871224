"""A cache with a limit on the size of what it keeps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SizedCache(Generic[T]):
    """Least-recently-used cache with a limit on the sum of item sizes. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._sum = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return the item of `key` and mark it as used; None if absent."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, thing: T, size: int) -> None:
        """Keep an item, unless it alone exceeds the limit."""
        with self._lock:
            if key in self._held or size > self._most:
                return
            self._held[key] = thing, size
            self._sum += size
            while self._sum > self._most:
                self._sum -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop all items."""
        with self._lock:
            self._held.clear()
            self._sum = 0
