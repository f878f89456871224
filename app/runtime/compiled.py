"""Compile functions that are written for one row, to run over many rows.

A NumPy call costs about a microsecond however short the array, and one prediction needs a hundred of them. The same
arithmetic compiled takes a few microseconds for one row and tens of nanoseconds per row in bulk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from app.runtime.code_cache import CodeCache
from app.runtime.lean_numba import COMPILES, njit

__all__ = ["COMPILES", "compiled", "compiled_per_row"]

_Scalar = int | float | np.generic
F = TypeVar("F", bound=Callable[..., object])
PerRow = TypeVar("PerRow", bound=Callable[..., _Scalar | tuple[_Scalar, ...] | None])


def compiled(function: F) -> F:
    """Return the compiled form of a function of numbers and arrays. Division by zero gives infinity, as in NumPy."""
    return _compiled(function, counts=True)


def compiled_per_row(function: PerRow) -> PerRow:
    """Return the compiled form of a function that is called for every row, without reference counts.

    Numba counts the references of every array that a function is given, which takes longer than the arithmetic of a
    row. Without counts a function may not allocate an array, which the compiler refuses, nor return one or call what
    does.
    """
    return _compiled(function, counts=False)


def _compiled(function: F, *, counts: bool) -> F:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": True, "_nrt": counts}
    dispatcher: Any = njit(**options)(function)
    if dispatcher is not function:  # with NUMBA_DISABLE_JIT the function itself comes back
        dispatcher._cache = CodeCache(function)
    return cast(F, dispatcher)
