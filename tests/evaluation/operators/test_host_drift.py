"""Predictions of times that include host drift."""

import numpy as np
import pytest

from app.tables.predictions import Predictions
from evaluation.operators.host_drift import with_host_drift

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
