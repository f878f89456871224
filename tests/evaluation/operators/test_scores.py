"""Scores of operators, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.tables.predictions import Predictions
from evaluation.operators.scores import ALL, CellErrors, RowErrors, score, score_rows, with_host_drift


def errors(ratio: list[float], gpu: list[int]) -> RowErrors:
    """Every second answer lies in its interval, a factor of four wide."""
    n = len(ratio)
    inside, width = np.arange(n) % 2 == 0, np.full(n, 4.0)
    return RowErrors(np.array(ratio), inside, width, np.arange(n) > 0, np.array(gpu, dtype=np.intp))


def test_scores_of_four_predictions() -> None:
    assert score(errors([1.1, 0.5, 2.0, 0.8], [0] * 4)) == {
        "n": 4,
        "mape": 45.0,  # of 10, 50, 100 and 20
        "median_ape": 35.0,
        "p95_ape": 92.5,  # 0.85 of the way from 50 to 100
        "median_ratio": 0.95,
        "coverage_80": 50.0,
        "width_80": 4.0,
        "answered": 75.0,
    }


def test_errors_of_predictions() -> None:
    codes = np.zeros(2, dtype=np.intp)
    predicted = Predictions(
        np.array([2.0, 3.0]), np.array([1.0, 2.5]), np.array([4.0, 5.0]), codes * 1.0, codes, codes, codes, codes > -1
    )
    answers = RowErrors.of(predicted, np.array([4.0, 2.0]), codes)
    assert answers.ratio.tolist() == [0.5, 1.5]
    assert answers.inside.tolist() == [True, False]
    assert answers.width.tolist() == [4.0, 2.0]


def test_cells_by_operator_dtype_and_gpu_and_pooled() -> None:
    answers = [
        CellErrors("elementwise", "add", "fp32", errors([1.1, 1.1], [0, 1])),
        CellErrors("elementwise", "mul", "fp32", errors([1.3], [1])),
        CellErrors("linear", "linear", "bf16", errors([1.5], [0])),
        CellErrors("elementwise", "add", "fp32", errors([1.9], [2])),  # of another fold
    ]
    cells = list(score_rows(answers, ["a", "b", "c"], ["b"]))
    scores = {(c["family"], c["op"], c["dtype"], c["gpu"]): (c["n"], c["mape"]) for c in cells}
    assert scores == {
        ("elementwise", "add", "fp32", ALL): (3, pytest.approx(36.67)),
        ("elementwise", "add", "fp32", "a"): (1, 10.0),
        ("elementwise", "add", "fp32", "b"): (1, 10.0),
        ("elementwise", "add", "fp32", "all but b"): (2, 50.0),
        ("elementwise", "add", "fp32", "c"): (1, 90.0),
        ("elementwise", "mul", "fp32", ALL): (1, 30.0),
        ("elementwise", "mul", "fp32", "b"): (1, 30.0),
        ("elementwise", ALL, "fp32", ALL): (4, 35.0),
        ("elementwise", ALL, "fp32", "a"): (1, 10.0),
        ("elementwise", ALL, "fp32", "b"): (2, 20.0),
        ("elementwise", ALL, "fp32", "all but b"): (2, 50.0),
        ("elementwise", ALL, "fp32", "c"): (1, 90.0),
        ("linear", "linear", "bf16", ALL): (1, 50.0),
        ("linear", "linear", "bf16", "a"): (1, 50.0),
    }


NO_DRIFT = np.zeros(10)


def predictions(latency_s: list[float]) -> Predictions:
    latency = np.array(latency_s)
    none = np.zeros(len(latency), dtype=np.intp)
    return Predictions(latency, 0.5 * latency, 2.0 * latency, 0.1 * latency, none, none, none, none == 0)


def test_the_prediction_has_the_least_expected_relative_error() -> None:
    rng = np.random.default_rng(0)
    drift, gpu = rng.gamma(2.0, 1.0, 5000), np.zeros(5000, dtype=np.intp)
    for latency in (0.1, 1.0, 10.0):
        (latency_s,) = with_host_drift(predictions([latency]), gpu[:1], drift, gpu).latency_s
        times = latency + drift
        others = [np.abs(guess / times - 1.0).mean() for guess in np.linspace(latency, times.max(), 200)]
        assert np.abs(latency_s / times - 1.0).mean() < 1.01 * min(others)


def test_a_gpu_without_drift_of_its_own_gets_the_drift_of_the_others() -> None:
    drift, of_gpu = np.repeat([1.0, 3.0], 50), np.repeat([0, 1], 50)
    after = with_host_drift(predictions([100.0, 100.0, 100.0]), np.array([0, 1, 2]), drift, of_gpu)
    assert after.latency_s[:2] == pytest.approx([101.0, 103.0])
    assert 101.0 <= after.latency_s[2] <= 103.0
    assert (after.low_s <= after.latency_s).all() and (after.latency_s <= after.high_s).all()
    assert after.low_s[0] == pytest.approx(51.0)


def test_predictions_do_not_change_without_drift() -> None:
    before = predictions([1.0, 2.0])
    after = with_host_drift(before, np.array([0, 1]), NO_DRIFT, np.zeros(10, dtype=np.intp))
    assert (after.latency_s == before.latency_s).all() and (after.high_s == before.high_s).all()
