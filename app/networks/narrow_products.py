"""Products of training in 8 and 4 bits, whose operands are quantised by kernels of their own.

Serving stacks' products in these formats were measured with the quantisation of their rows of activations, at a cost
per row (7 ns on H100 and B200). Training quantises its operands once for all products that read them, at the speed of
memory (`RowWriter.linear` adds those rows). So a product is asked for with the fewer of its rows and columns as rows,
which is the same product of transposed operands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.networks.batched import same_in_all
from app.ops import OP_CODE
from app.tables.ops import DTYPE_CODE, OpTable

_NARROW = [DTYPE_CODE[name] for name in ("fp8", "fp8_block", "nvfp4")]


def with_quantised_operands(ops: OpTable) -> OpTable:
    """Return the rows with `m` at most `n` in every product in 8 or 4 bits."""
    narrow = (ops.kind == OP_CODE["linear"]) & np.isin(ops.dtype, _NARROW)
    if not narrow.any():
        return ops
    turned = narrow & same_in_all(~narrow | (ops.column("m") > ops.column("n")))
    columns = [ops.fields["m"], ops.fields["n"]]
    if ops.place is None:
        dims = ops.dims.copy()
        dims[columns] = np.where(turned, dims[columns[::-1]], dims[columns])
        return replace(ops, dims=dims)
    place = ops.place.copy()
    place[columns] = np.where(turned, place[columns[::-1]], place[columns])
    return replace(ops, place=place)
