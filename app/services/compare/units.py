"""Times and sizes with three digits, in the unit that people use for them."""

from __future__ import annotations

from app.wire.prediction_form import Memory

_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def data_size(value: float | None) -> str:
    """Return bytes with a binary prefix: 79.9 GiB."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash is meant
    size, unit = next(((size, unit) for size, unit in _BINARY if abs(value) >= size), (1.0, "B"))
    return f"{value / size:.3g} {unit}"


def duration(ms: float | None) -> str:
    """Return milliseconds with three digits in a suitable unit: 12.3 ms, 1.53 s."""
    if ms is None:
        return "–"  # noqa: RUF001 - a dash is meant
    for size, unit in ((86_400e3, "days"), (3600e3, "h"), (60e3, "min"), (1e3, "s"), (1.0, "ms"), (1e-3, "µs")):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms * 1e6:.3g} ns"


def unfit(memory: Memory) -> str:
    """Return why a workload does not fit a device; empty if it does."""
    needed, has = data_size(memory.required_bytes), data_size(memory.capacity_bytes)
    return "" if memory.fits else f"needs {needed} of memory, has {has}"
