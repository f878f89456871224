"""Physics is written once, for one row, and compiled over rows.

A NumPy call costs about a microsecond however short the array, and one prediction needs a hundred of them; the
same arithmetic compiled takes a few microseconds for one row and tens of nanoseconds a row in bulk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])

_APP = Path(__file__).parent.parent
# Where a compiled function, or a constant that it freezes, may come from.
_SOURCES = ("tables", "ops", "predictors")


def _cache_folder() -> Path:
    """Where compiled code is kept: beside the sources, or with the user's temporary files.

    The name carries a digest of all sources, since a function's own file does not tell whether one that it calls
    has changed.
    """
    digest = blake2b(digest_size=8)
    for folder in _SOURCES:
        for source in sorted((_APP / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    beside = Path(__file__).parent / "__pycache__"
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    base = beside if writable else Path(tempfile.gettempdir()) / f"gpucast-{os.getuid()}"
    return base / f"compiled-{digest.hexdigest()}"


FOLDER = _cache_folder()
os.environ["NUMBA_CACHE_DIR"] = str(FOLDER)

from numba import njit  # noqa: E402  numba reads its cache folder on import


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays; division by zero gives infinity, as in NumPy.

    One that is called for every row is put where it is called, and better takes few arrays and returns in one place:
    else each array may be counted in and out of use at every call, which takes longer than the arithmetic.
    """
    return cast(F, njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))
