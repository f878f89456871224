"""An ONNX node with its inputs, the argument of the rules for shapes and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from app.graphs.importers.onnx.values import Shape, ShapeError, Value

Attributes = Mapping[str, Any]


class Call(NamedTuple):
    """One node: operator, inputs (None: omitted), attributes, number of outputs, and operator set version."""

    op: str
    inputs: Sequence[Value | None]
    attributes: Attributes
    outputs: int
    opset: int

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of a required input."""
        value = self.value(index)
        if value is None:
            raise ShapeError(index, f"{self.op} needs this input")
        return value.shape

    def value(self, index: int) -> Value | None:
        """Return an input; None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, name: str) -> list[int] | None:
        """Return integers from an input or, in older operator sets, an attribute; None if unknown."""
        value = self.value(index)
        if value is not None:
            return value.integers()
        attribute = self.attributes.get(name)
        return [int(item) for item in attribute] if isinstance(attribute, list) else None

    def number(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        return int(value) if isinstance(value, int | float) else default


Shapes = list[Shape]
Rule = Callable[[Call], Shapes | None]
