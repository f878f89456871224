"""Tensors of an ONNX graph during the walk, and constant folding of small ones: shapes, axes, scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.networks.importers.tensors import table

MAX_RANK = 32
SMALL = 1_024  # largest constant that is folded, in elements

Data = NDArray[Any]
Shape = tuple[int, ...]


class ShapeError(Exception):
    """Inconsistent shapes: the input's position, and the reason."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class Value(NamedTuple):
    """A tensor.

    ref      its name in the JSON graph; None for a constant
    data     values of a small constant; None if not folded
    weights  initialisers that a constant is computed from
    sure     False if the shape is a guess
    quantised  format of the quantised tensor that it is, or was dequantised from; "" for any other
    """

    shape: Shape
    dtype: str
    ref: str | None = None
    data: Data | None = None
    weights: tuple[str, ...] = ()
    sure: bool = True
    quantised: str = ""

    @property
    def constant(self) -> bool:
        """True for a constant."""
        return self.ref is None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def integers(self) -> list[int] | None:
        """Return the values as integers; None if unknown."""
        return None if self.data is None else [int(value) for value in self.data.reshape(-1).tolist()]


def constant(data: Data, dtype: str = "int64") -> Value:
    """Return a small constant."""
    return Value(tuple(data.shape), dtype, None, data)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape; raises ShapeError for the first incompatible shape."""
    result = shapes[0]
    for index, shape in enumerate(shapes[1:], 1):
        if shape == result:
            continue
        rank = max(len(shape), len(result))
        left, right = ((1,) * (rank - len(part)) + part for part in (result, shape))
        if any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
            raise ShapeError(index, f"shapes {list(result)} and {list(shape)} do not broadcast")
        result = tuple(b if a == 1 else a for a, b in zip(left, right, strict=True))
    return result


def axis_of(axis: int, rank: int) -> int:
    """Return a non-negative axis; raises ShapeError if it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(0, f"axis {axis} of a tensor of {rank} dimensions")
    return axis % rank


def folded(op: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any], shape: Shape) -> Data | None:
    """Return the values of an operator on constants; None if not folded."""
    given = [_ABSENT if value is None else value.data for value in inputs]
    rule = _FOLDS.get(op)
    if rule is None or prod(shape) > SMALL or any(data is None for data in given):
        return None
    try:
        with np.errstate(all="ignore"):
            data = np.asarray(rule([data for data in given if data is not None], attributes, shape))
    except (ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError):
        return None
    return data if data.shape == shape else None


# An input that is left out before others. It has no elements, so that a rule which needs it has no result.
_ABSENT: Data = np.empty(0)
Fold = Callable[[Sequence[Data], Mapping[str, Any], Shape], Any]
Reduction = Callable[..., Any]


def _optional(data: Sequence[Data], place: int) -> Data | None:
    """Return the input at a place; None if it is left out."""
    return data[place] if len(data) > place and data[place] is not _ABSENT else None


def _reshaped(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    return data[0].reshape(shape)


def _divided(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    whole = all(np.issubdtype(part.dtype, np.integer) for part in data)
    quotient = data[0] / data[1]
    return np.trunc(quotient).astype(np.int64) if whole else quotient


def _gathered(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    return np.take(data[0], data[1].astype(np.int64), axis=int(attributes.get("axis", 0)))


def _sliced(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    starts, ends = (data[k].reshape(-1).tolist() for k in (1, 2))
    axes, steps = (_optional(data, k) for k in (3, 4))
    listed = range(len(starts)) if axes is None else axes.reshape(-1).tolist()
    strides = [1] * len(starts) if steps is None else steps.reshape(-1).tolist()
    result: Data = data[0]
    for start, end, axis, step in zip(starts, ends, listed, strides, strict=True):
        whole = [slice(None)] * result.ndim
        whole[int(axis)] = slice(int(start), int(end) if int(end) >= -(2**31) else None, int(step))
        result = result[tuple(whole)]
    return result


def _dequantised(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    zero = _optional(data, 2)
    return (data[0] - (0 if zero is None else zero)) * data[1]


def _reduced(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape, reduce: Reduction) -> Data:
    given = _optional(data, 1)
    listed = attributes.get("axes") if given is None else given.reshape(-1).tolist()
    axes = tuple(int(axis) for axis in listed) if listed else None
    return np.asarray(reduce(data[0], axis=axes)).reshape(shape)


def _clipped(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    """Return data within bounds, each of which may be left out: inputs, or attributes before opset 11."""
    low, high = _optional(data, 1), _optional(data, 2)
    return np.clip(
        data[0], attributes.get("min") if low is None else low, attributes.get("max") if high is None else high
    )


def _one_hot(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    depth, axis = int(data[1].item()), int(attributes.get("axis", -1))
    held = np.where(np.arange(depth) == (data[0] % depth)[..., None], data[2][1], data[2][0])
    return np.moveaxis(held, -1, axis)


def _cast(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape) -> Data:
    return data[0].astype(np.int64 if attributes.get("to") in (2, 3, 4, 5, 6, 7, 9, 12, 13) else np.float64)


def _elementwise(data: Sequence[Data], attributes: Mapping[str, Any], shape: Shape, function: np.ufunc) -> Data:
    """Return what a function of NumPy gives; truth values are 0 and 1."""
    result: Data = function(*data[: function.nin])
    return result.astype(np.int64) if result.dtype == np.bool_ else result


_FOLDS: Mapping[str, Fold] = {
    **{name: partial(_elementwise, function=getattr(np, of)) for name, of in table("onnx_elementwise").items()},
    **{name: partial(_reduced, reduce=getattr(np, of)) for name, of in table("onnx_reductions").items()},
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshaped),
    "Cast": _cast,
    "Gather": _gathered,
    "Slice": _sliced,
    "Div": _divided,
    "Max": lambda data, attributes, shape: np.maximum.reduce(np.broadcast_arrays(*data)),
    "Min": lambda data, attributes, shape: np.minimum.reduce(np.broadcast_arrays(*data)),
    "Reciprocal": lambda data, attributes, shape: 1.0 / data[0],
    "Clip": _clipped,
    "OneHot": _one_hot,
    "Where": lambda data, attributes, shape: np.where(data[0] != 0, data[1], data[2]),
    "Concat": lambda data, attributes, shape: np.concatenate(data, axis=int(attributes.get("axis", 0))),
    "Expand": lambda data, attributes, shape: np.broadcast_to(data[0], shape),
    "Round": lambda data, attributes, shape: np.round(data[0]),
    "Pow": lambda data, attributes, shape: np.power(data[0].astype(np.float64), data[1]).astype(data[0].dtype),
    "Transpose": lambda data, attributes, shape: np.transpose(data[0], attributes.get("perm")),
    "Tile": lambda data, attributes, shape: np.tile(data[0], data[1].reshape(-1).tolist()),
    "DequantizeLinear": _dequantised,
    "Range": lambda data, attributes, shape: np.arange(data[0].item(), data[1].item(), data[2].item()),
}
