"""A cache with a limit on the size of what it keeps."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from app.errors import NotFound, Unavailable

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

    def drop(self, key: Hashable) -> None:
        """Drop the item of `key`, if there is one."""
        with self._lock:
            self._sum -= self._held.pop(key, (None, 0))[1]

    def clear(self) -> None:
        """Drop all items."""
        with self._lock:
            self._held.clear()
            self._sum = 0


CHECK_S = 10.0


class StoredCache(Generic[T]):
    """Cache of what the database has and others may delete there: at the latest CHECK_S seconds later it is gone here.

    While the database is away, what is held stays.
    """

    def __init__(self, most: int) -> None:
        self._cache: SizedCache[tuple[T, list[float]]] = SizedCache(most)
        self.drop = self._cache.drop

    def get(self, key: Hashable, read: Callable[[], tuple[T, int]], check: Callable[[], object]) -> T:
        """Return the item of `key`; `read` returns it with its size, `check` raises NotFound if it is deleted."""
        held = self._cache.get(key)
        if held is None:
            item, size = read()
            self._cache.put(key, (item, [time.monotonic()]), size)
            return item
        item, checked = held
        now = time.monotonic()
        if now - checked[0] > CHECK_S:
            checked[0] = now  # others need not wait for this check, which takes seconds if the database hangs
            try:
                check()
            except NotFound:
                self.drop(key)
                raise
            except Unavailable:
                pass
        return item
