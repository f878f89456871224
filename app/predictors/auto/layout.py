"""What the arrays of an `auto` hold, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan
from typing import Any

from app.ops import OP_CODE, OPS
from app.predictors.auto.kernels.bottlenecks import BOTTLENECKS
from app.predictors.auto.operators.models.feature_names import RELATIVE, REVISION, TILES, shape_feature_names
from app.predictors.auto.operators.models.features import own_dims
from app.predictors.physics.physics_fit import FACTOR_NAMES
from app.predictors.schema import Layout, features_of
from app.stacks.libraries import LIBRARIES
from app.stacks.registry import trained_stacks
from app.tables.ops import ACTIVATION_DTYPES, DTYPES

# Of what an operator's model is the sum: code that lacks one would answer without it.
PARTS = ("mean", "trees", "smooth", "trend")


def learned_cells(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Operators and dtypes that a state knows."""
    return [(op, dtype) for op, dtype in (key.split(" ") for key in state["operators"])]


def layout(operators: Collection[str]) -> Layout:
    """Of a state that knows these operators."""
    joined = Layout({"bottlenecks of kernels": BOTTLENECKS})
    if operators:
        axes = {
            "revision of features": (str(REVISION),),
            "factors of the physics": FACTOR_NAMES,
            "features relative to a GPU": RELATIVE,
        }
        codes = {"tiles": TILES, "serving stacks": trained_stacks(), "libraries": LIBRARIES, "parts of models": PARTS}
        joined = joined.joined(Layout(axes, codes))
    for name in operators:
        joined = joined.joined(_of_operator(name))
    return joined


def _of_operator(name: str) -> Layout:
    kind = OP_CODE[name]
    op, seen = OPS[kind], own_dims(kind)
    codes = {f"{name}.{dim.name}": dim.choices for dim in op.dims if dim.choices and dim.name in seen}
    if any(dim.feature == "code" and isnan(dim.default or 0.0) for dim in op.dims):  # left out: the row's dtype
        # Formats of weights alone come last, and their order does not matter: no cache of keys and values has them.
        last = max(DTYPES.index(dtype) for dtype in op.dtypes if dtype in ACTIVATION_DTYPES)
        codes[f"{name}.dtype"] = DTYPES[: last + 1]
    return Layout({features_of(name): (*shape_feature_names(kind), *op.part_names)}, codes)
