"""Rank correlation and calibration of orders of GPUs, against counts by hand."""

from typing import Any

import pytest

from evaluation.networks.ranking import Order, calibration, correlation, orders, report
from evaluation.render import text_lines

# GPU -> measured and predicted milliseconds: of six pairs, only c and d are in the wrong order.
TIMES = {"a": (1.0, 1.1), "b": (2.0, 1.9), "c": (3.0, 4.4), "d": (4.0, 4.2)}


def cells(times: dict[str, tuple[float, float]], **fields: Any) -> list[dict[str, Any]]:
    about = {"model": "m", "mode": "inf", "sequence": 512, "batch": 8, "option": ""} | fields
    return [
        about
        | {
            "gpu": gpu,
            "measured_ms": true,
            "predicted_ms": predicted,
            "low_ms": 0.9 * predicted,
            "high_ms": predicted / 0.9,
        }
        for gpu, (true, predicted) in times.items()
    ]


@pytest.fixture
def ranked() -> list[Order]:
    few = {gpu: TIMES[gpu] for gpu in "abc"}
    return orders([*cells(TIMES), *cells(few, batch=1), *cells(TIMES, option="fusion")])


def test_tau_of_an_order_with_one_swapped_pair(ranked: list[Order]) -> None:
    (order,) = ranked
    assert [cell["gpu"] for cell in order.gpus] == ["a", "b", "c", "d"]
    assert order.tau == pytest.approx((5 - 1) / 6)


def test_the_swapped_pair_is_in_the_least_probable_bin(ranked: list[Order]) -> None:
    least_probable, *others = calibration(ranked, common=0.0)
    assert (least_probable.pairs, least_probable.right) == (1, 0.0) and sum(bin_.pairs for bin_ in others) == 5
    assert all(bin_.right == 1.0 for bin_ in others)


def test_errors_of_the_same_size_and_sign_are_fully_correlated() -> None:
    every = orders(cells({gpu: (true, 1.05 * true) for gpu, (true, _) in TIMES.items()}))
    assert correlation(every) == pytest.approx(1.0)


def test_the_report_has_mean_tau_and_every_gpu(ranked: list[Order]) -> None:
    done = report(ranked)
    assert any("mean over 1: 0.667" in line for line in text_lines(done.blocks))
    assert done.body["models"][0]["gpus"][0]["gpu"] == "a"
