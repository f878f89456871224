"""Axes, lines and labels of the charts that the server draws."""

from __future__ import annotations

import pytest

from app.dashboard.charts.page_curves import Axis, Dot, apart, line_of, mark, rule


def _dot(x: float, y: float) -> Dot:
    return Dot(x, y, (0.9 * x, 1.1 * x), (0.8 * y, 1.2 * y), f"{x:g}")


def test_ticks_are_round_and_within_the_axis() -> None:
    axis = Axis.over("requests per second", [0.3, 5.5], [5.0, 5.5])
    assert not axis.log and "log" not in axis.title
    assert [text for _, text in axis.ticks] == ["0", "2", "4"]
    assert all(0.0 <= at <= 1.0 for at, _ in axis.ticks)


def test_lines_that_end_far_apart_have_a_logarithmic_axis_that_says_so() -> None:
    axis = Axis.over("tokens/s", [2.0, 900.0], [30.0, 900.0])
    assert axis.log and axis.title.endswith("(log scale)")
    assert [text for _, text in axis.ticks] == ["10", "100"]
    assert axis.at(axis.low) == pytest.approx(0.0) and axis.at(axis.high) == pytest.approx(1.0)


def test_a_band_goes_along_one_end_and_back_along_the_other() -> None:
    x, y = Axis("x", 0.0, 10.0, log=False), Axis("y", 0.0, 100.0, log=False)
    line = line_of(x, y, [_dot(2, 50), _dot(4, 25)], "one")
    assert line.path == "M200.0 500.0 L400.0 750.0"
    assert line.band == "M180.0 600.0 L360.0 800.0 L440.0 700.0 L220.0 400.0 Z"
    assert line.dots[0] == (0.2, 0.5, "2")
    assert line.label.anchor == "start"


def test_labels_keep_apart() -> None:
    axis = Axis("", 0.0, 1.0, log=False)
    lines = [line_of(axis, axis, [_dot(0.5, y)], str(y)) for y in (0.5, 0.51, 0.1)]
    tops = [line.label.y for line in apart(lines)]
    assert tops[1] < tops[0] < tops[2] and tops[0] - tops[1] == pytest.approx(0.06)


def test_limits_off_the_axis_are_not_drawn() -> None:
    axis = Axis("", 0.0, 10.0, log=False)
    assert rule(axis, "y", 20.0, "") == []
    (found,) = rule(axis, "y", 4.0, "")
    assert found.at == pytest.approx(0.6)


@pytest.mark.parametrize(("at", "rising", "anchor", "above"), [
    (0.5, True, "start", False),
    (0.9, True, "end", True),
    (0.5, False, "end", False),
    (0.05, False, "start", True),
])  # fmt: skip
def test_the_text_of_a_ring_stays_on_the_plot(at: float, rising: bool, anchor: str, above: bool) -> None:
    axis = Axis("", 0.0, 1.0, log=False)
    found = mark(axis, axis, (at, 0.5), "1 USD", 0, rising=rising)
    assert (found.anchor, found.above) == (anchor, above)
