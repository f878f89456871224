"""Einsum of ONNX: its output shape, and the matrix product that a contraction of two tensors is."""

from __future__ import annotations

from math import prod

from app.graphs.importers.onnx.call import Call, Shapes
from app.graphs.importers.onnx.values import Shape, ShapeError
from app.graphs.importers.steps import Step


def einsum_shapes(call: Call) -> Shapes | None:
    """Return the output shape; None for equations with an ellipsis."""
    terms = _terms(call)
    if terms is None:
        return None
    sizes = _extents(call, terms[:-1])
    return [tuple(sizes[letter] for letter in terms[-1])]


def einsum_steps(call: Call, shape: Shape) -> list[Step]:
    """Return a matrix product of two tensors that share a summed index; anything else moves its tensors."""
    terms = _terms(call)
    if terms is None or len(terms) != 3:
        return [Step("memory", shape, {}, range(len(call.inputs)))]
    sizes, (a, b, out) = _extents(call, terms[:-1]), (set(term) for term in terms)
    groups = {"b": a & b & out, "m": (a - b) & out, "n": (b - a) & out, "k": (a & b) - out}
    if not groups["k"]:
        return [Step("mul", shape, {}, range(2))]
    fields = {name: prod(sizes[letter] for letter in letters) for name, letters in groups.items()}
    second = call.value(1)
    if second is not None and second.constant and fields["b"] == 1:
        return [Step("linear", shape, {name: fields[name] for name in "mnk"})]
    return [Step("bmm", shape, fields, ())]


def _terms(call: Call) -> list[str] | None:
    equation = str(call.attributes.get("equation", "")).replace(" ", "")
    given, arrow, out = equation.partition("->")
    terms = given.split(",")
    if "." in equation or len(terms) != len(call.inputs):
        return None
    if not arrow:
        out = "".join(sorted(letter for letter in set(given) - {","} if given.count(letter) == 1))
    return [*terms, out]


def _extents(call: Call, terms: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        shape = call.shape(index)
        if len(term) != len(shape):
            raise ShapeError(index, f"shape {list(shape)} does not have the dimensions {term[:50]!r}")
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    return sizes
