"""The trend over the layers of attention modules, whose times do not follow the physics."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from app.predictors.auto.operators.learning.trend_fit import fitted_trend
from app.predictors.auto.operators.models.trend import NO_TREND, Axes
from app.predictors.auto.operators.models.validity import check_trend
from app.predictors.auto.predictor import Auto
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable
from tests.unit.learned import GPUS, SEEN, untrained
from tests.unit.measured import measured, no_evidence

MEASURED, BETWEEN, BEYOND = (2, 4, 8, 32, 64), 16, 128
LAYER, HEADS, LOAD, PHASE, CODE = range(5)
AXES = Axes((HEADS,), (LOAD,), (PHASE, CODE), 1)


def slow_with_few_heads(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    """A kernel that gathers keys once for all heads: what the physics expects of 64 heads, of any number of them."""
    return untrained(ops, gpu, gpus) * (64.0 / ops.column("heads")) ** 0.7


def modules(heads: tuple[int, ...]) -> OperatorRuns:
    """Modules of GLM-5's sizes, prefills and decodes, with these numbers of heads."""
    layer = {"head_dim": 192, "value_dim": 256, "hidden": 6144, "latent_dim": 512, "rope_dim": 64, "query_rank": 2048}
    loads = [
        {"batch": batch, "query_length": new, "context_length": past + new}
        for batch in (1, 2, 4, 8, 16)
        for past in (128, 512, 1024, 4096, 8192)
        for new in (1, 16, 256, 2048)
    ]
    rows = [layer | load | {"heads": count} for count in heads for load in loads]
    return measured("attention_module", rows, GPUS, (SEEN,), slow_with_few_heads, dtype="bf16")


@cache
def trained() -> Auto:
    return Auto().fit_operators([modules(MEASURED)], GPUS)


def error(auto: Auto, heads: int) -> float:
    """Mean relative error of modules with this many heads."""
    rows = modules((heads,)).rows
    answer = auto.predict(rows.ops, GPUS, np.arange(len(rows)), rows.gpu, evidence=no_evidence(rows.ops))
    return float(np.abs(answer.latency_s / rows.latency_s - 1.0).mean())


@pytest.mark.slow
@pytest.mark.parametrize("heads", [BETWEEN, BEYOND])
def test_layers_between_and_beyond_the_measured_ones_follow_the_trend(heads: int) -> None:
    assert error(trained(), heads) < (0.04 if heads == BETWEEN else 0.2)  # 0.21 and 0.35 without it


@pytest.mark.slow
def test_a_stored_trend_predicts_equally() -> None:
    again = Auto.from_state(trained().state())
    assert again.operators_.cells["attention_module", "bf16"].own[GPUS.ids[SEEN]].trend.layers
    assert error(again, BEYOND) == pytest.approx(error(trained(), BEYOND), abs=0.01)


@pytest.mark.slow
def test_operators_that_follow_the_physics_have_no_trend() -> None:
    rows = [{"m": m, "n": n, "k": 512} for m in range(32, 320, 8) for n in range(64, 1024, 64)]

    def law(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return untrained(ops, gpu, gpus)

    auto = Auto().fit_operators([measured("linear", rows, GPUS, (SEEN,), law, dtype="bf16")], GPUS)
    assert auto.operators_.cells["linear", "bf16"].own[GPUS.ids[SEEN]].trend is NO_TREND


def made_up() -> tuple[Any, Any]:
    """Features of rows in two phases and two classes, and residuals whose slope over heads depends on both."""
    draw = np.random.default_rng(0)
    n = 2000
    features = np.zeros((5, n), dtype=np.float32)
    features[HEADS], features[LOAD] = np.log(2.0) * draw.integers(1, 7, n), draw.uniform(0.0, 8.0, n)
    features[PHASE], features[CODE] = np.log(draw.integers(1, 3, n)), draw.integers(0, 2, n)
    return features, slope(features) * (features[HEADS] - features[HEADS].mean())


def slope(features: Any) -> Any:
    return np.where(features[PHASE] > 0.0, -0.5, 0.25) * (1.0 + features[CODE]) + 0.05 * features[LOAD]


def test_each_class_has_coefficients_of_its_own() -> None:
    features, residual = made_up()
    trend = fitted_trend(features, residual, AXES)
    assert len(trend.member) == 4
    assert np.abs(trend.sum(features) - residual).max() < 0.15


def test_the_trend_ends_at_twice_the_largest_layer_and_near_the_largest_residual() -> None:
    features, residual = made_up()
    trend = fitted_trend(features, residual, AXES)
    asked = np.repeat(features[:, :1], 3, axis=1)
    asked[HEADS] = features[HEADS].max() + np.log([2.0, 4.0, 1000.0])
    assert np.ptp(trend.sum(asked)) == pytest.approx(0.0, abs=1e-6)
    assert trend.sum(asked).max() <= residual.max() + np.log(2.0) + 1e-6


def test_rows_of_a_class_that_was_not_measured_have_what_all_have_in_common() -> None:
    features, residual = made_up()
    trend = fitted_trend(features, residual, AXES)
    other = features.copy()
    other[CODE] = 7.0
    common = trend._replace(member=np.full_like(trend.member, 9.0))
    np.testing.assert_allclose(trend.sum(other), common.sum(features), rtol=1e-5)


def test_one_layer_has_no_trend() -> None:
    features, residual = made_up()
    features[HEADS] = np.log(16.0)
    assert fitted_trend(features, residual, AXES) is NO_TREND
    assert NO_TREND.sum(features).tolist() == [0.0] * len(residual)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"column": np.array([HEADS, 1000], np.int16)}, "columns of a trend"),
        ({"key": np.array([PHASE, 1000], np.int16)}, "keys of a trend"),
        ({"layers": 2}, "weights of a trend"),
        ({"phases": 3}, "phases of a trend"),
        ({"span": np.zeros((1, 2), np.float32)}, "spans of a trend"),
        ({"place": np.zeros((3, 1), np.float32)}, "places of a trend"),
        ({"member": np.zeros((4, 1), np.float32)}, "classes of a trend"),
    ],
)
def test_a_trend_with_inconsistent_parts_is_refused(change: dict[str, Any], says: str) -> None:
    trend = fitted_trend(*made_up(), AXES)
    check_trend(trend)
    with pytest.raises(ValueError, match=says):
        check_trend(trend._replace(**change))
