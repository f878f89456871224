"""Numba, without what it imports only in case that somebody needs it. Whatever uses Numba imports it from here first.

Without this an import takes a third longer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# coverage.py measures lines that the compiler keeps; YAML has settings.
_OF_DEVELOPERS = ("coverage", "yaml")
_BLAS = "scipy.linalg.cython_blas"


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """While inside, modules that are not imported yet seem not to be installed."""
    modules: dict[str, Any] = sys.modules
    absent = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


with _without(*_OF_DEVELOPERS):
    import numba
    from numba.core import caching

# Numba's array functions would import all of scipy.linalg for its BLAS. What needs that in compiled code, such as
# `np.dot`, still loads it.
with _without(_BLAS):
    import_module("numba.np.arraymath")

__all__ = ["COMPILES", "caching", "njit"]

njit = numba.njit
# False where tests run compiled functions as Python.
COMPILES = not vars(numba.config)["DISABLE_JIT"]
