"""Validity checks of stored operator models, before compiled code reads them."""

from __future__ import annotations

from app.ops.tiles import CANDIDATES
from app.predictors.auto.operators.models.features import FEATURES
from app.predictors.auto.operators.models.smooth import Smooth
from app.predictors.auto.operators.models.trend import Trend
from app.predictors.physics.analytic_model import ANY_TILE
from app.predictors.physics.physics_fit import FACTORS
from app.predictors.shapes import check_below, check_shape
from app.predictors.trees.boosted import Trees
from app.predictors.trees.sums import DEPTH, LEAVES


def check_model_parts(factors: object, trees: Trees, smooth: Smooth, trend: Trend, tile: int) -> None:
    """Raise ValueError if a part of a model has a wrong shape, or refers to an unknown feature or tile."""
    check_shape("factors", factors, FACTORS)
    check_shape("features of trees", trees.feature, None, DEPTH)
    check_shape("thresholds of trees", trees.threshold, len(trees.feature), DEPTH)
    check_shape("leaves of trees", trees.value, len(trees.feature), LEAVES)
    check_below("features of trees", trees.feature, FEATURES)
    check_shape("columns of a smooth part", smooth.column, None)
    check_shape("scales of a smooth part", smooth.scale, len(smooth.column))
    check_shape("points of a smooth part", smooth.point, None, len(smooth.column))
    check_shape("weights of a smooth part", smooth.weight, len(smooth.point))
    check_below("columns of a smooth part", smooth.column, FEATURES)
    check_trend(trend)
    check_below("tiles", tile, len(CANDIDATES), ANY_TILE)


def check_trend(trend: Trend) -> None:
    """Raise ValueError if a part of a trend has a wrong shape, or refers to an unknown feature."""
    parts, keys, classes = len(trend.part), len(trend.key), len(trend.member)
    check_below("told parts of a trend", trend.told, keys + 1)
    check_below("parts of a trend", trend.part, FEATURES)
    check_below("keys of a trend", trend.key, FEATURES)
    check_shape("classes of a trend", trend.member, classes, keys)
    if parts:
        check_shape("weights of a trend", trend.weight, 1 + classes, parts)
