"""Checks of a workload's rows against the ranges and rules of their operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.errors import FieldError
from app.ops.base import Dim
from app.ops.kinds import kinds_of
from app.tables.arrays import Floats
from app.tables.ops import OpTable


def wrong_figures(ops: OpTable, node_of_row: Sequence[int]) -> list[FieldError]:
    """Return an error for every field that is missing, out of range or breaks a rule between fields, by node."""
    nodes = np.array(node_of_row, dtype=np.intp)
    errors: list[FieldError] = []
    for op, rows, table in kinds_of(ops):
        own = nodes[rows]
        wrong = [
            FieldError(("nodes", int(k), "attributes", dim.name), _message(op.name, dim, value))
            for dim in op.dims
            for column in dim.columns
            for k, value in _out_of_range(dim, table.column(column), own)
        ]
        if not wrong:
            wrong = [
                FieldError(("nodes", int(k), "attributes", broken.field), broken.message)
                for broken in op.check(table)
                for k in own[broken.rows]
            ]
        errors += wrong
    return sorted(errors, key=lambda error: error.loc[1])


def _out_of_range(
    dim: Dim, values: Floats, nodes: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> list[tuple[int, float]]:
    good = (values >= dim.least) & (values <= dim.most) | bool(dim.choices or dim.read)  # codes of words
    if dim.whole:
        good &= values == np.floor(values)
    if dim.default is not None and np.isnan(dim.default):
        good |= np.isnan(values)
    bad = ~good
    return list(zip(nodes[bad].tolist(), values[bad].tolist(), strict=True)) if bad.any() else []


def _message(op: str, dim: Dim, value: float) -> str:
    if np.isnan(value):
        return f"required for {op}, and not determined by its tensors: {dim.help}"
    return f"must be a {'whole ' * dim.whole}number from {dim.least:.15g} to {dim.most:.15g}, got {value:.17g}"
