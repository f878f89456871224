"""Memory that large work leaves behind goes back to the system: every worker keeps what its largest one took."""

from __future__ import annotations

import ctypes

import pyarrow as pa

# Bytes of a body from which this is worth its milliseconds.
LARGE_BODY = 1 << 20
# The C library's own allocator keeps what was freed, per thread; other libraries than glibc have no such call.
_LIBRARY = ctypes.CDLL(None)
_TRIM = getattr(_LIBRARY, "malloc_trim", None)
_OPTION = getattr(_LIBRARY, "mallopt", None)
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share_arena() -> None:
    """Let all threads allocate from one arena: of several, each keeps the largest bodies that its threads have seen.

    To be called before there are threads; the interpreter's lock leaves few that allocate at once.
    """
    if _OPTION is not None:
        _OPTION(_ARENA_MAX, 1)


def return_memory() -> None:
    """Give back what is free."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
