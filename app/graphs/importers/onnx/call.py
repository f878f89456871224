"""One ONNX node with its inputs: what the rules for shapes and costs are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from app.graphs.importers.onnx.values import Shape, ShapeError, Value

Attributes = Mapping[str, Any]


class Call(NamedTuple):
    """One node: its inputs (None where one is left out), attributes, number of outputs, and the version of its set."""

    op: str
    inputs: Sequence[Value | None]
    attributes: Attributes
    outputs: int
    opset: int

    def shape(self, index: int = 0) -> Shape:
        """Shape of an input that must be there."""
        value = self.value(index)
        if value is None:
            raise ShapeError(index, f"{self.op} needs this input")
        return value.shape

    def value(self, index: int) -> Value | None:
        """An input, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, name: str) -> list[int] | None:
        """Whole numbers from an input or, in older sets, the attribute of that name; None where nobody says."""
        value = self.value(index)
        if value is not None:
            return value.integers()
        found = self.attributes.get(name)
        return [int(item) for item in found] if isinstance(found, list) else None

    def number(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        found = self.attributes.get(name, default)
        return int(found) if isinstance(found, int | float) else default


Shapes = list[Shape]
Rule = Callable[[Call], Shapes | None]
