"""Figures in words for the pages."""

from __future__ import annotations

import pytest

from app.dashboard.format_figures import amount, spread
from app.engine.power import BOARD, ESTIMATED, power_notes


@pytest.mark.parametrize(("value", "unit", "text"), [
    (0.0, "USD", "0.00 USD"),
    (1234.5, "USD", "1,234.50 USD"),
    (0.05, "USD", "0.05 USD"),
    (3.46e-5, "USD", "0.000035 USD"),
    (22.6, "ms", "22.6 ms"),
    (1.5, "s", "1.5 s"),
    (250.0, "µs", "250 µs"),
    (90787.4, "tokens/s", "90,787 tokens/s"),
    (2.345, "images/s", "2.35 images/s"),
    (1500.0, "J", "1.5 kJ"),
])  # fmt: skip
def test_amounts_have_units_and_no_exponents(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(("low", "high", "text"), [
    (92.0, 108.0, "±8 %"),
    (92.0, 109.0, "±9 %"),
    (84.0, 179.0, "\N{MINUS SIGN}16 +79 %"),
])  # fmt: skip
def test_spreads_are_shares_of_the_value(low: float, high: float, text: str) -> None:
    assert spread(100.0, low, high) == text


def test_notes_of_power_have_no_names_of_fields() -> None:
    notes = power_notes([ESTIMATED, BOARD], "Energy from power")
    assert len(notes) == 2 and not any("_" in note for note in notes)
