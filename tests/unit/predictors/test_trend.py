"""The trend over the parts of attention modules, whose times do not follow the physics."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from app.ops.attention_module import parts
from app.predictors.auto.operators.models.corrections import NO_TREND, Axes, fitted_trend
from app.predictors.auto.operators.models.features import FEATURES, PARTS, STACK
from app.predictors.auto.operators.models.per_operator import check_trend
from app.predictors.auto.predictor import Auto
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.tables.ops import OpTable
from tests.unit.learned import GPUS, SEEN, untrained
from tests.unit.measured import measured, no_evidence

MEASURED, BETWEEN, BEYOND = (2, 4, 8, 32, 64), 16, 128
AXES = Axes((PARTS, PARTS + 1), (PARTS, PARTS + 1, STACK))


def in_blocks_of_64_heads(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    """Projections in proportion to the heads, and a kernel that takes the same time for 64 heads and fewer."""
    part = parts(ops)
    return 30e-6 + 2e-13 * part.projections + 1e-12 * part.scores_64


def modules(heads: tuple[int, ...]) -> OperatorRuns:
    """Prefills of modules of GLM-5's sizes, with these numbers of heads."""
    layer = {"head_dim": 192, "value_dim": 256, "hidden": 6144, "latent_dim": 512, "rope_dim": 64, "query_rank": 2048}
    loads = [
        {"batch": batch, "query_length": new, "context_length": past + new}
        for batch in (1, 2, 4, 8, 16)
        for past in (128, 512, 1024, 4096, 8192)
        for new in (16, 64, 256, 2048)
    ]
    rows = [layer | load | {"heads": count} for count in heads for load in loads]
    return measured("attention_module", rows, GPUS, (SEEN,), in_blocks_of_64_heads, dtype="bf16")


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
def test_layers_between_and_beyond_the_measured_ones_follow_their_parts(heads: int) -> None:
    assert error(trained(), heads) < 0.01  # 0.18 and 0.28 without it


@pytest.mark.slow
def test_a_stored_trend_predicts_equally() -> None:
    again = Auto.from_state(trained().state())
    assert again.operators_.cells["attention_module", "bf16"].own[GPUS.ids[SEEN]].trend.part.size
    assert error(again, BEYOND) == pytest.approx(error(trained(), BEYOND), abs=0.01)


@pytest.mark.slow
def test_operators_that_follow_the_physics_have_no_trend() -> None:
    rows = [{"m": m, "n": n, "k": 512} for m in range(32, 320, 8) for n in range(64, 1024, 64)]

    def law(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return untrained(ops, gpu, gpus)

    auto = Auto().fit_operators([measured("linear", rows, GPUS, (SEEN,), law, dtype="bf16")], GPUS)
    assert auto.operators_.cells["linear", "bf16"].own[GPUS.ids[SEEN]].trend is NO_TREND


def made_up() -> tuple[Any, Any]:
    """Features of rows of two stacks, and times: of one stack a second per kernel and per token, of the other two."""
    draw = np.random.default_rng(0)
    n = 2000
    features = np.zeros((FEATURES, n), dtype=np.float32)
    features[PARTS + 1] = np.log(np.where(draw.random(n) < 0.3, 1e-3, draw.integers(1, 1000, n)))  # some without
    features[STACK] = draw.integers(0, 2, n)
    return features, times(features)


def times(features: Any) -> Any:
    tokens = np.exp(features[PARTS + 1])
    return (1.0 + features[STACK]) * (1.0 + np.where(tokens < 1.0, 0.0, tokens))


def test_each_class_has_constants_of_its_own() -> None:
    features, latency_s = made_up()
    trend = fitted_trend(features, latency_s, AXES)
    assert len(trend.member) == 4
    assert np.exp(trend.sum(features)) == pytest.approx(latency_s, rel=0.01)


def test_the_trend_goes_on_in_proportion_beyond_its_rows() -> None:
    trend = fitted_trend(*made_up(), AXES)
    asked = np.zeros((FEATURES, 1), dtype=np.float32)
    asked[PARTS + 1] = np.log(1e6)
    assert np.exp(trend.sum(asked)) == pytest.approx(times(asked), rel=0.01)


def test_rows_of_a_class_that_was_not_measured_have_what_all_have_in_common() -> None:
    features, latency_s = made_up()
    trend = fitted_trend(features, latency_s, AXES)
    other = features.copy()
    other[STACK] = 2.0
    common = trend._replace(member=np.full_like(trend.member, 9.0))
    np.testing.assert_allclose(trend.sum(other), common.sum(features), rtol=1e-5)


def test_a_part_that_no_row_had_adds_nothing() -> None:
    features, latency_s = made_up()
    without = features[:, features[PARTS + 1] < 0.0]
    trend = fitted_trend(without, latency_s[features[PARTS + 1] < 0.0], AXES)
    assert trend.weight[:, 1].tolist() == [0.0, 0.0, 0.0]
    assert np.exp(trend.sum(features)) == pytest.approx(1.0 + features[STACK], rel=0.01)


def test_a_class_of_few_rows_has_none() -> None:
    features, latency_s = made_up()
    features[STACK, 29:] = 0.0
    assert fitted_trend(features, latency_s, AXES).member[:, -1].tolist() == [0.0, 0.0]


def test_throttled_rows_do_not_move_the_constants() -> None:
    features, latency_s = made_up()
    latency_s[::20] *= 10.0
    trend = fitted_trend(features, latency_s, AXES)
    assert np.median(np.abs(np.exp(trend.sum(features)) / latency_s - 1.0)) < 0.01


def test_an_operator_without_parts_has_no_trend() -> None:
    assert fitted_trend(*made_up(), Axes()) is NO_TREND
    assert NO_TREND.sum(made_up()[0]).tolist() == [0.0] * 2000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"part": np.array([PARTS, 1000], np.int16)}, "parts of a trend"),
        ({"key": np.array([PARTS + 1, 1000], np.int16)}, "keys of a trend"),
        ({"told": 3}, "told parts of a trend"),
        ({"weight": np.zeros((1, 2), np.float32)}, "weights of a trend"),
        ({"member": np.zeros((4, 1), np.float32)}, "classes of a trend"),
    ],
)
def test_a_trend_with_inconsistent_parts_is_refused(change: dict[str, Any], says: str) -> None:
    trend = fitted_trend(*made_up(), AXES)
    check_trend(trend)
    with pytest.raises(ValueError, match=says):
        check_trend(trend._replace(**change))
