"""Return freed memory to the operating system after large requests. Otherwise a worker keeps its largest footprint."""

from __future__ import annotations

import ctypes

import pyarrow as pa

# Request bodies of this many bytes are worth the milliseconds that a trim takes.
LARGE_BODY = 1 << 20
# _LARGE: allocations of this many bytes are memory-mapped and returned as soon as they are freed, since bodies and
# answers of many rows are freed after the trim. _SPARE: free bytes that may stay at the top of the heap.
_LARGE, _SPARE = 2 << 20, 8 << 20
# glibc's allocator keeps freed memory per thread; other C libraries lack these calls.
_LIBRARY = ctypes.CDLL(None)
_TRIM = getattr(_LIBRARY, "malloc_trim", None)
_OPTION = getattr(_LIBRARY, "mallopt", None)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h


def share_arena() -> None:
    """Make all threads allocate from one arena; with several, each keeps the largest bodies that its threads have seen.

    Call this before there are threads. Under the interpreter's lock few threads allocate at once.
    """
    if _OPTION is not None:
        _OPTION(_ARENA_MAX, 1)
        _OPTION(_MMAP_THRESHOLD, _LARGE)  # else it grows with the largest block that was ever freed
        _OPTION(_TRIM_THRESHOLD, _SPARE)


def trim_allocator() -> None:
    """Return free memory to the operating system."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
