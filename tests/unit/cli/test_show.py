"""Figures and notes as commands print them."""

from __future__ import annotations

import pytest

from app.cli.show import cost_unit, figure, print_notes


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0123456, "0.01235"), (9999.4, "9999"), (16_704.2, "16704"), (2.5e8, "250000000"), (3e12, "3e+12")],
)
def test_counts_have_no_exponent(value: float | None, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("costs", "unit"),
    [([2.0, 0.5], "USD"), ([3.46e-05, 2.0], "USD/1000"), ([4e-7], "USD/1M"), ([None], "USD"), ([0.0], "USD")],
)
def test_the_least_cost_is_a_cent_or_more(costs: list[float | None], unit: str) -> None:
    assert cost_unit(costs)[0] == unit


def test_a_warning_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes(
        [("a", ["one", "two"]), ("b", ["two"]), ("c", ["two", "three"]), ("d", ["two", "three"])], notes=["four"]
    )
    assert capsys.readouterr().out.splitlines() == ["a: one", "all: two", "c, d: three", "note: four"]
    print_notes([("a", ["one"])])
    assert capsys.readouterr().out == "a: one\n"
