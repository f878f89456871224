"""Compile functions that are written for one row, to run over many rows.

A NumPy call costs about a microsecond however short the array, and one prediction needs a hundred of them. The same
arithmetic compiled takes a few microseconds for one row and tens of nanoseconds per row in bulk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

from numba import config, njit

from app.runtime.code_cache import CodeCache

F = TypeVar("F", bound=Callable[..., object])
_BLAS = "scipy.linalg.cython_blas"
# False where tests run compiled functions as Python.
COMPILES = not vars(config)["DISABLE_JIT"]


def _load_array_functions() -> None:
    """Import Numba's array functions as if SciPy had no BLAS, for which they would import all of scipy.linalg.

    It takes a tenth of a start. What needs BLAS in compiled code, such as `np.dot`, still loads it.
    """
    modules: dict[str, Any] = sys.modules
    if _BLAS in modules:
        return
    modules[_BLAS] = None
    try:
        import_module("numba.np.arraymath")
    finally:
        del modules[_BLAS]


_load_array_functions()


def compiled(function: F) -> F:
    """Return the compiled form of a function of numbers and arrays. Division by zero gives infinity, as in NumPy.

    A function called for every row is inlined. Give it few arrays and one return: otherwise the reference count of each
    array may change at every call, which takes longer than the arithmetic.
    """
    dispatcher: Any = njit(nogil=True, error_model="numpy", forceinline=True)(function)
    if dispatcher is not function:  # with NUMBA_DISABLE_JIT the function itself comes back
        dispatcher._cache = CodeCache(function)
    return cast(F, dispatcher)
