"""Memory that large work leaves behind goes back to the system: every worker keeps what its largest one took."""

from __future__ import annotations

import ctypes

import pyarrow as pa

# Bytes of a body from which this is worth its milliseconds.
LARGE_BODY = 1 << 20
# The C library's own allocator keeps what was freed, per thread; other libraries than glibc have no such call.
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


def return_memory() -> None:
    """Give back what is free."""
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)
