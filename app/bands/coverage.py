"""The usual coverage, apart from arithmetic: what only describes requests imports no NumPy."""

from __future__ import annotations

from app.coefficients import Coefficients

# The coverage that half-widths are given at, and of intervals where a request gives none.
COVERAGE = Coefficients("bands").number("coverage")
