"""Answers judged by times that hold the drift of the process that measured them."""

import numpy as np
import pytest

from app.evaluation.process_age import aged
from app.tables.predictions import Predictions

NO_DRIFT = np.zeros(10)


def predictions(latency_s: list[float]) -> Predictions:
    latency = np.array(latency_s)
    none = np.zeros(len(latency), dtype=np.intp)
    return Predictions(latency, 0.5 * latency, 2.0 * latency, 0.1 * latency, none, none, none, none == 0)


def test_no_answer_of_another_age_has_less_relative_error() -> None:
    rng = np.random.default_rng(0)
    drift, gpu = rng.gamma(2.0, 1.0, 5000), np.zeros(5000, dtype=np.intp)
    for latency in (0.1, 1.0, 10.0):
        (found,) = aged(predictions([latency]), gpu[:1], drift, gpu).latency_s
        times = latency + drift
        others = [np.abs(guess / times - 1.0).mean() for guess in np.linspace(latency, times.max(), 200)]
        assert np.abs(found / times - 1.0).mean() < 1.01 * min(others)


def test_a_gpu_has_its_own_drift_and_one_without_any_that_of_the_others() -> None:
    drift, of_gpu = np.repeat([1.0, 3.0], 50), np.repeat([0, 1], 50)
    found = aged(predictions([100.0, 100.0, 100.0]), np.array([0, 1, 2]), drift, of_gpu)
    assert found.latency_s[:2] == pytest.approx([101.0, 103.0])
    assert 101.0 <= found.latency_s[2] <= 103.0
    assert (found.low_s <= found.latency_s).all() and (found.latency_s <= found.high_s).all()
    assert found.low_s[0] == pytest.approx(51.0)


def test_without_drift_answers_stay() -> None:
    asked = predictions([1.0, 2.0])
    found = aged(asked, np.array([0, 1]), NO_DRIFT, np.zeros(10, dtype=np.intp))
    assert (found.latency_s == asked.latency_s).all() and (found.high_s == asked.high_s).all()
