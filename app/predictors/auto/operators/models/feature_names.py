"""Names of the features in the order of models.features, for the schema of artefacts."""

from __future__ import annotations

from app.ops import OPS
from app.ops.base import no_products
from app.ops.tiles import CANDIDATES
from app.predictors.auto.operators.models.features import (
    EAGER,
    ROUTER_CLASS,
    SHAPE_FEATURES,
    absent_dims,
    code_dims,
    own_dims,
    size_dims,
)

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
    names += _OF_PRODUCTS if op.products is not no_products else ()
    names += [*ratios[1:], *sizes, *(meant[name] for name in codes)]
    names += ["window > 0"] if "window" in dims else []
    if op.products is no_products:
        names += [f"power of 2 in {name}" for name in ("b", "h") if name in dims]
    names = [*names, *[_NONE] * SHAPE_FEATURES][:EAGER]
    if op.kernel_class is not None:
        names[ROUTER_CLASS] = "kernel class"
    return (*names, "eager")
