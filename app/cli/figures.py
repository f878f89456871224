"""Figures and notes of commands, as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.wire.prediction_form import Skipped


def figure(value: float | None) -> str:
    """Return four significant digits, and all digits of a whole number up to a billion; a dash for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def cost_unit(costs: Iterable[float | None]) -> tuple[str, float]:
    """Return the head and the factor by which the least cost is a cent or more: of one run, 1,000 or 1,000,000."""
    least = min((cost for cost in costs if cost), default=1.0)
    return next((unit for unit in _UNITS if least * unit[1] >= 0.01), _UNITS[-1])


_UNITS = (("USD", 1.0), ("USD/1000", 1e3), ("USD/1M", 1e6))


def print_notes(
    of_gpus: Sequence[tuple[str, Sequence[str]]], skipped: Iterable[Skipped] = (), notes: Iterable[str] = ()
) -> None:
    """Print each warning once, after the GPUs that it is about; those that were skipped; and what holds for all."""
    gpus: dict[str, dict[str, None]] = {}  # a set that keeps its order
    for gpu, warnings in of_gpus:
        for warning in warnings:
            gpus.setdefault(warning, {})[gpu] = None
    every = len({gpu for gpu, _ in of_gpus})
    for warning, about in gpus.items():
        print(f"{'all' if 1 < every == len(about) else ', '.join(about)}: {warning}")
    for left_out in skipped:
        print(f"{left_out.gpu} skipped: {left_out.reason}")
    for note in notes:
        print(f"note: {note}")
