"""Attributes of a graph node as columns of its operator.

Attributes are the fields of POST /predict's operators, plus `dilation` and a `padding` of [top, left, bottom, right]
for windows, and `causal` for attention. An integer may also be a named dimension, or a product of such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.graphs.importers.tensors import extent
from app.ops import OP_CODE, OPS
from app.ops.base import Dim

Fields = dict[str, float]

# Fields that graph nodes do not have: a graph is a forward pass on the device.
_NOT_OF_GRAPHS = ("backward", "burst", "eager")
_DILATION = Dim("dilation", "steps between elements of the window", default=1.0, pair=True)
_CAUSAL = Dim("causal", "whether a query sees only keys up to its own", least=0.0, most=1.0, default=1.0)


class Mistake(Exception):
    """An error in a node: its place in the node, and the reason."""

    def __init__(self, place: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.place, self.message = place, message


def _dims(op: str) -> dict[str, Dim]:
    own = {dim.name: dim for dim in OPS[OP_CODE[op]].dims if dim.name not in _NOT_OF_GRAPHS}
    more = [_DILATION] * ("kernel_size" in own) + [_CAUSAL] * (op == "attention_prefill")
    return own | {dim.name: dim for dim in more}


_DIMS: Mapping[str, Mapping[str, Dim]] = {op.name: _dims(op.name) for op in OPS[1:]}


def read_attributes(op: str, attributes: Mapping[str, Any], sizes: Mapping[str, int]) -> Fields:
    """Return the columns of a node's attributes, without `dtype`; raises Mistake for an unknown or invalid one."""
    fields: Fields = {}
    for name, value in attributes.items():
        if name == "dtype" or value is None:
            continue
        dim = _DIMS[op].get(name)
        if dim is None:
            known = ", ".join((*_DIMS[op], "dtype"))
            raise Mistake(("attributes", name), f"is not an attribute of {op}; its attributes are {known}")
        try:
            fields.update(_columns(dim, value, sizes))
        except ValueError as error:
            raise Mistake(("attributes", name), str(error)) from None
    return fields


def _columns(dim: Dim, value: Any, sizes: Mapping[str, int]) -> Fields:
    if isinstance(value, list):
        figures = [_figure(dim, item, sizes) for item in value]
        if dim.name == "padding" and len(figures) == 4:
            return _uneven(figures)
        if not dim.pair or len(figures) != 2:
            raise ValueError(f"must be one number{' or a pair' * dim.pair}, got {len(figures)} numbers")
        return dict(zip(dim.columns, figures, strict=True))
    return dict.fromkeys(dim.columns, _figure(dim, value, sizes))


def _uneven(padding: list[float]) -> Fields:
    """Return the columns of a padding [top, left, bottom, right]; an odd remainder enlarges the input."""
    sums = {"height": padding[0] + padding[2], "width": padding[1] + padding[3]}
    halves = {f"padding_{side}": total // 2.0 for side, total in sums.items()}
    return halves | {f"uneven_{side}": total % 2.0 for side, total in sums.items() if total % 2.0}


def _figure(dim: Dim, value: Any, sizes: Mapping[str, int]) -> float:
    """Return one number in the field's range, from a number, a named choice, or the name of a dimension."""
    if isinstance(value, str) and (dim.choices or dim.read is not None):
        return _choice(dim, value)
    if isinstance(value, str):
        figure = float(extent(value, sizes))
    elif isinstance(value, int | float) and abs(value) < 1e300:  # True and False are 1 and 0
        figure = float(value)
    else:
        raise ValueError("must be a number")
    if not dim.least <= figure <= dim.most or (dim.whole and figure != figure // 1.0):
        wanted = f"a {'whole ' * dim.whole}number from {dim.least:.15g} to {dim.most:.15g}"
        raise ValueError(f"must be {wanted}, got {figure:.17g}")
    return figure


def _choice(dim: Dim, value: str) -> float:
    if dim.read is not None:
        return dim.read(value)
    if value not in dim.choices:
        raise ValueError(f"invalid value {value[:100]!r}; valid: {', '.join(dim.choices)}")
    return float(dim.choices.index(value))
