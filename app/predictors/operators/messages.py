"""Messages of collectives beyond the sizes that were learned from.

What the physics misses of the largest message it misses alike of larger ones, as both wait for the same link, and of
the smallest alike of smaller ones, as both wait for the same launches. So beyond its cell's range a row is corrected as
the nearest message within, and not less the further it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.predictors.compiled import compiled
from app.predictors.operators.answering import cells_of
from app.predictors.operators.features import MESSAGE
from app.predictors.operators.packed import Packed, Recipes
from app.predictors.operators.priors import IS_COLLECTIVE
from app.tables.ops import OpTable

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

# How far a message may be out of the range, as features are rounded.
_ROUNDED = 1e-3


@compiled
def nearest_held(
    shape: Singles, codes: tuple[Ints, Ints], asked: tuple[Ints, Ints], packed: Packed, recipes: Recipes
) -> Floats:
    """Bytes of the nearest message that the cell of a query was taught, NaN where that is its own or none is, [n].

    Arguments as of `cells_of`.
    """
    cells, (i, _), (kind, _) = cells_of(shape, codes, asked, packed, recipes), asked, codes
    held = np.full(len(i), np.nan)
    for q in range(len(i)):
        if IS_COLLECTIVE[kind[i[q]]] and cells[q] >= 0:
            message = shape[MESSAGE, i[q]]
            nearest = min(max(message, packed.low[cells[q], MESSAGE]), packed.high[cells[q], MESSAGE])
            if abs(nearest - message) > _ROUNDED:
                held[q] = np.exp(nearest)
    return held


def with_messages(ops: OpTable, i: Ints, message_bytes: Floats) -> OpTable:
    """Rows `i` [n] with messages of so many bytes [n]."""
    rows = ops.take(i)
    rows.dims[rows.fields["message_bytes"]] = message_bytes
    return rows
