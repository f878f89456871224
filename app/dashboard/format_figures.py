"""Format figures for human readers; pages have the exact value beside each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, isfinite, log10
from typing import Any

from app.services.compare.units import duration

_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

# Milliseconds of a unit, the longest first.
TIME_UNITS = {"s": 1e3, "ms": 1.0, "µs": 1e-3}

_NAMED = ("kind", "op", "name", "size", "measured")


def decimals(values: Iterable[Any]) -> int:
    """Return the decimals of an aligned column: three digits for all values above a thousandth of the largest."""
    sizes = [abs(value) for value in values if isinstance(value, int | float) and isfinite(value) and value]
    least = min((size for size in sizes if size >= max(sizes) / 1000), default=1.0)
    return min(max(0, 2 - floor(log10(least))), 6)


def number(value: float | None, places: int = 0) -> str:
    """Return a number with thousands separators, or a dash."""
    return "–" if value is None else f"{value:,.{places}f}"  # noqa: RUF001 - a dash is meant


def short(value: float | None, unit: str = "") -> str:
    """Return three digits with a decimal prefix: 1.53 TFLOP/s."""
    if value is None or not isfinite(value):
        return "–"  # noqa: RUF001 - a dash is meant
    size, prefix = next(((size, prefix) for size, prefix in _SI if abs(value) >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}{unit}".strip()


def percent(share: float | None) -> str:
    """Return a fraction in percent."""
    return "–" if share is None else f"{share:.1%}".replace("%", " %")  # noqa: RUF001 - a dash is meant


def spread(value: float, low: float, high: float) -> str:
    """Return how far an interval reaches around a value, in percent of it: one number if both ends are as far."""
    if value <= 0.0:
        return ""
    below, above = (round(100 * end) for end in (1.0 - low / value, high / value - 1.0))
    return f"±{above} %" if abs(above - below) <= 1 else f"\N{MINUS SIGN}{below} +{above} %"


def amount(value: float, unit: str) -> str:
    """Return a figure with three digits and its unit; times in a suitable one."""
    if unit in TIME_UNITS:
        return duration(value * TIME_UNITS[unit])
    if unit == "USD":
        return f"{value:,.{2 if value >= 0.01 else decimals([value])}f} USD"
    return short(value, unit) if unit == "J" else f"{value:,.{decimals([value])}f} {unit}"


def workload_line(workload: Mapping[str, Any]) -> str:
    """Return a workload of the API in one line."""
    named = workload.get("op") or workload.get("name") or workload.get("kind")
    sizes = {**workload, **(workload.get("size") or {})}
    parts = [
        f"{name} {value:.15g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in sizes.items()
        if name not in _NAMED and isinstance(value, str | int | float)
    ]
    return ", ".join([str(named), *parts])
