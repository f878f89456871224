"""Graphs within an ONNX graph: If, Loop and Scan, and functions that the file defines.

An If whose condition is not constant runs the branch with more nodes. A Loop whose number of rounds is not constant
counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from app.networks.importers.onnx.calls import Call
from app.networks.importers.onnx.values import ShapeError, Value, axis_of

Message = Mapping[str, Any]
# More rounds of a Loop are no count of work, but until something holds. Nested ones multiply.
MOST_ROUNDS = 2**20


class Scope(Protocol):
    """Where graphs are entered."""

    def enter(self, graph: Message, given: Sequence[Value], place: tuple[str | int, ...], repeats: int) -> list[Value]:
        """Write the nodes of a graph, and return its outputs."""


def entered(scope: Scope, call: Call, place: tuple[str | int, ...]) -> list[Value] | None:
    """Return the outputs of a node that runs graphs of its own; None for any other, and where the file has none."""
    rule = {"If": _branch, "Loop": _loop, "Scan": _scan}.get(call.op)
    return None if rule is None else rule(scope, call, place)


def _branch(scope: Scope, call: Call, place: tuple[str | int, ...]) -> list[Value] | None:
    otherwise, then = _graph(call, "else_branch"), _graph(call, "then_branch")
    if otherwise is None or then is None:
        return None
    held = call.value(0)
    condition = held.integers() if held is not None else None
    if condition is not None and len(condition) == 1:
        return scope.enter(then if condition[0] else otherwise, [], (*place, "attribute"), 1)
    outputs = scope.enter(max(then, otherwise, key=_nodes), [], (*place, "attribute"), 1)
    return [value._replace(data=None, sure=False) for value in outputs]


def _loop(scope: Scope, call: Call, place: tuple[str | int, ...]) -> list[Value] | None:
    body, most = _graph(call, "body"), call.value(0)
    if body is None:
        return None
    counted = most.integers() if most is not None else None
    known = counted is not None and len(counted) == 1 and counted[0] <= MOST_ROUNDS
    rounds = max(counted[0], 0) if known and counted else 1
    carried = [_changing(value) for value in call.inputs[2:] if value is not None]
    given = [Value((), "int64"), Value((), "bool"), *carried]
    _, *outputs = scope.enter(body, given, (*place, "attribute"), max(rounds, 1))
    return _stacked(outputs, len(carried), rounds, [0] * max(len(outputs) - len(carried), 0), sure=known)


def _scan(scope: Scope, call: Call, place: tuple[str | int, ...]) -> list[Value] | None:
    body, scanned = _graph(call, "body"), call.number("num_scan_inputs", 0)
    values = [value for value in call.inputs if value is not None]
    if body is None or not 0 < scanned <= len(values):
        return None
    states, sequences = [_changing(value) for value in values[:-scanned]], values[-scanned:]
    axes, slices = _axes(call, "scan_input_axes", scanned), []
    for k, (value, axis) in enumerate(zip(sequences, axes, strict=True)):
        if not value.shape:
            raise ShapeError(len(states) + k, "Scan takes slices of a tensor, not of a scalar")
        at = axis_of(axis, len(value.shape))
        slices.append(_changing(value)._replace(shape=(*value.shape[:at], *value.shape[at + 1 :])))
    rounds = sequences[0].shape[axis_of(axes[0], len(sequences[0].shape))]
    outputs = scope.enter(body, [*states, *slices], (*place, "attribute"), max(rounds, 1))
    out = _axes(call, "scan_output_axes", max(len(outputs) - len(states), 0))
    return _stacked(outputs, len(states), rounds, out, sure=True)


def _axes(call: Call, name: str, count: int) -> list[int]:
    given = call.attributes.get(name)
    return given if isinstance(given, list) and len(given) == count else [0] * count


def _stacked(outputs: list[Value], carried: int, rounds: int, axes: Sequence[int], *, sure: bool) -> list[Value]:
    """Return the carried tensors as they are, and of the others one slice per round along their axis."""
    shapes = [value.shape for value in outputs]
    for k, axis in enumerate(axes, carried):
        at = axis_of(axis, len(shapes[k]) + 1)
        shapes[k] = (*shapes[k][:at], rounds, *shapes[k][at:])
    return [
        value._replace(data=None, sure=value.sure and sure, shape=shape)
        for value, shape in zip(outputs, shapes, strict=True)
    ]


def _changing(value: Value) -> Value:
    """Return a tensor whose values differ from round to round."""
    return value._replace(data=None)


def _graph(call: Call, name: str) -> Message | None:
    graph = call.attributes.get(name)
    return graph if isinstance(graph, dict) and "nodes" in graph else None


def _nodes(graph: Message) -> int:
    """Return the nodes of a graph, those of graphs within it included."""
    inner = (value for node in graph["nodes"] for value in node["attributes"].values() if isinstance(value, dict))
    return len(graph["nodes"]) + sum(_nodes(value) for value in inner if "nodes" in value)


def body_of(function: Message, call: Call) -> Message:
    """Return a function's nodes for one call: with the call's attributes, and without the inputs that it leaves out."""
    attributes = {**function["defaults"], **call.attributes}
    given = [value is not None for value in call.inputs]
    omitted = {name for k, name in enumerate(function["inputs"]) if k >= len(given) or not given[k]}
    return {"weights": {}, "nodes": [_bound(node, attributes, omitted) for node in function["nodes"]]}


def _bound(node: Message, attributes: Message, omitted: set[str]) -> Message:
    references = node.get("references", {})
    known = {name: attributes[source] for name, source in references.items() if attributes.get(source) is not None}
    own = {name: _bound_graph(value, attributes, omitted) for name, value in node["attributes"].items()}
    inputs = ["" if name in omitted else name for name in node["inputs"]]
    return {**node, "inputs": inputs, "attributes": own | known}


def _bound_graph(value: Any, attributes: Message, omitted: set[str]) -> Any:
    """Return a graph within a function likewise; any other attribute as it is."""
    if isinstance(value, dict) and "nodes" in value:
        return {**value, "nodes": [_bound(node, attributes, omitted) for node in value["nodes"]]}
    return value
