"""What the arrays of an `auto` hold, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan
from typing import Any

from app.ops import OP_CODE, OPS
from app.ops.gemm import CANDIDATES
from app.predictors.auto.kernels.bottlenecks import BOTTLENECKS
from app.predictors.auto.operators.models.features import (
    EAGER,
    ROUTER_CLASS,
    SHAPE_FEATURES,
    absent_dims,
    code_dims,
    own_dims,
    size_dims,
)
from app.predictors.physics.physics_fit import FACTOR_NAMES
from app.predictors.schema import Layout, features_of
from app.stacks.libraries import LIBRARIES
from app.stacks.registry import trained_stacks
from app.tables.ops import ACTIVATION_DTYPES, DTYPES

# To be raised when a feature is computed otherwise under the same name: what was learned of it before is void.
REVISION = 4

_OF_PRODUCTS = (
    *(f"log({sizes})" for sizes in ("batch", "m", "n", "k", "batch*m*n", "batch*n*k", "batch*m*k", "n/m")),
    *(f"power of 2 in {size}" for size in ("m", "n", "k")),
)
_NONE = "none"
TILES = tuple(f"{rows:.0f}x{columns:.0f}" for rows, columns in CANDIDATES)
RELATIVE = (
    "log(compute/memory)",
    "log(work/launch)",
    "log(time)",
    "log(limit/time)",
    "log(link/memory) or log(turns)",
    "log(distinct/L2)",
    "log(moved/L2)",
    "log(waves of tasks)",
    "fullness of waves of tasks",
    "splits of k or turns over even turns",
    *(f"{figure} of {tile}" for tile in TILES for figure in ("log(waves)", "fullness")),
)


def shape_feature_names(kind: int) -> tuple[str, ...]:
    """Return the names of an operator's shape features, by its code; "none" where it has fewer."""
    op, dims, codes, absent = OPS[kind], own_dims(kind), code_dims(kind), absent_dims(kind)
    ratios = [f"log({'/'.join(['*'.join(over), *under])})" for over, under in op.ratios]
    meant = {name: f"{name} or {absent[name]}" if name in absent else name for name in dims}
    sizes = [f"log({meant[name]})" for name in size_dims(kind)]
    names = [(ratios or sizes)[0]]
    names += _OF_PRODUCTS if op.products is not None else ()
    names += [*ratios[1:], *sizes, *(meant[name] for name in codes)]
    names += ["window > 0"] if "window" in dims else []
    if op.products is None:
        names += [f"power of 2 in {name}" for name in ("b", "h") if name in dims]
    names = [*names, *[_NONE] * SHAPE_FEATURES][:EAGER]
    if op.kernel_class is not None:
        names[ROUTER_CLASS] = "kernel class"
    return (*names, "eager")


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
