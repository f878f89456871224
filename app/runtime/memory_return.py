"""Memory that large work leaves behind goes back to the system: every worker keeps what its largest one took."""

from __future__ import annotations

import ctypes

import pyarrow as pa

# Bytes of a body from which this is worth its milliseconds.
LARGE_BODY = 1 << 20
# Bytes from which an allocation is the system's own, and goes back as soon as it is freed: bodies and answers of many
# rows are freed after their request, when nobody tidies up any more. And free bytes that may stay at the end.
_LARGE, _SPARE = 2 << 20, 8 << 20
# The C library's own allocator keeps what was freed, per thread; other libraries than glibc have no such call.
_LIBRARY = ctypes.CDLL(None)
_TRIM = getattr(_LIBRARY, "malloc_trim", None)
_OPTION = getattr(_LIBRARY, "mallopt", None)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h


def share_arena() -> None:
    """Let all threads allocate from one arena: of several, each keeps the largest bodies that its threads have seen.

    To be called before there are threads; the interpreter's lock leaves few that allocate at once.
    """
    if _OPTION is not None:
        _OPTION(_ARENA_MAX, 1)
        _OPTION(_MMAP_THRESHOLD, _LARGE)  # else it grows with the largest block that was ever freed
        _OPTION(_TRIM_THRESHOLD, _SPARE)


def return_memory() -> None:
    """Give back what is free."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
