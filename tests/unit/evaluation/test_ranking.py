"""Orders of GPUs beside their measured ones, counted by hand."""

from typing import Any

import pytest

from app.evaluation.ranking import Order, calibration, correlation, orders
from app.evaluation.ranking_report import body, lines

# GPU -> measured and predicted milliseconds: of six pairs, only c and d are in the wrong order.
TIMES = {"a": (1.0, 1.1), "b": (2.0, 1.9), "c": (3.0, 4.4), "d": (4.0, 4.2)}


def cells(times: dict[str, tuple[float, float]], **fields: Any) -> list[dict[str, Any]]:
    about = {"model": "m", "mode": "inf", "sequence": 512, "batch": 8, "option": ""} | fields
    return [
        about | {"gpu": gpu, "measured_ms": true, "predicted_ms": told, "low_ms": 0.9 * told, "high_ms": told / 0.9}
        for gpu, (true, told) in times.items()
    ]


@pytest.fixture
def found() -> list[Order]:
    few = {gpu: TIMES[gpu] for gpu in "abc"}
    return orders([*cells(TIMES), *cells(few, batch=1), *cells(TIMES, option="fusion")])


def test_one_pair_of_six_is_swapped(found: list[Order]) -> None:
    (order,) = found
    assert [one.gpu for one in order.answers] == ["a", "b", "c", "d"]
    assert order.tau == pytest.approx((5 - 1) / 6)


def test_the_swapped_pair_was_said_to_be_unsure(found: list[Order]) -> None:
    unsure, *others = calibration(found)
    assert (unsure.pairs, unsure.right) == (1, 0.0) and sum(one.pairs for one in others) == 5
    assert all(one.right == 1.0 for one in others)


def test_errors_that_always_go_together_are_correlated() -> None:
    together = orders(cells({gpu: (true, 1.05 * true) for gpu, (true, _) in TIMES.items()}))
    assert correlation(together) == pytest.approx(1.0)


def test_the_report(found: list[Order]) -> None:
    assert any("mean over 1: 0.667" in line for line in lines(found))
    assert body(found)["models"][0]["gpus"][0]["gpu"] == "a"
