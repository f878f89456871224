"""Figures in words for the pages."""

from __future__ import annotations

import pytest

from app.services.pages.format_figures import amount


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0.00 USD"),
    (1234.5, "1,234.50 USD"),
    (0.05, "0.05 USD"),
    (3.46e-5, "0.0346 USD per 1,000 runs"),
    (2e-6, "2 USD per 1,000,000 runs"),
])  # fmt: skip
def test_costs_have_no_exponents(value: float, text: str) -> None:
    assert amount(value, "USD") == text
