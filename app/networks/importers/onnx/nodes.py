"""JSON graph nodes of ONNX operators, as an ONNX runtime runs them, and operators that run graphs of their own.

Such runtimes copy where PyTorch makes a view (Transpose, Slice, Split); only reshapes are free. An operator without a
rule keeps its name in snake case; the JSON graph may know it, else it is memory-bound.

An If whose condition is not constant runs the branch with more nodes. A Loop whose number of rounds is not constant
counts once. Functions that the file defines are entered likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from app.networks.importers.onnx.calls import Call, attention_steps, einsum_steps, packed_steps
from app.networks.importers.onnx.shapes import strides_and_dilations, window
from app.networks.importers.onnx.values import Shape, ShapeError, Value, axis_of
from app.networks.importers.tensors import (
    ELEMENT_BYTES,
    VIEWS,
    Step,
    Window,
    by_name,
    convolution,
    pooling,
    product,
    transposed_convolution,
)
from app.ops import OP_CODE

# Positions of inputs that are statistics or scales, not trainable weights.
STATISTICS = {"BatchNormalization": (3, 4), "MatMulNBits": (2, 3)}
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_INDEX_BYTES = 8.0


Rule = Callable[[Call, Shape], list[Step]]


def steps(call: Call, shape: Shape) -> list[Step]:
    """Return the nodes of a call whose first output has this shape; the last node has all outputs."""
    rule = _RULES.get(call.op)
    if rule is not None:
        return rule(call, shape)
    return [Step(_name(call.op), shape, {}, range(len(call.inputs)))]


def bound_by_memory(call: Call, shape: Shape) -> Step:
    """Return the node of a call with unknown shapes: an unknown operator, or data-dependent sizes."""
    name = _name(call.op)
    return Step(
        "gather" if name in VIEWS or name in OP_CODE or call.op in _RULES else name, shape, {}, range(len(call.inputs))
    )


def _name(op: str) -> str:
    return _NAMES.get(op, _CAPITAL.sub("_", op).lower())


def _conv(call: Call, shape: Shape) -> list[Step]:
    return convolution(call.shape(0), call.shape(1), shape, _window(call), call.number("group", 1))


def _conv_transpose(call: Call, shape: Shape) -> list[Step]:
    return transposed_convolution(call.shape(0), call.shape(1), shape, _window(call), call.number("group", 1))


def _window(call: Call) -> Window:
    kernel = window(call)
    return Window(kernel, *strides_and_dilations(call, len(kernel)))


def _pool(call: Call, shape: Shape) -> list[Step]:
    x, op = call.shape(0), "max_pool2d" if "Max" in call.op else "avg_pool2d"
    if call.op.startswith("Global"):
        return pooling(op, x, shape, Window(x[2:], x[2:], [1] * (len(x) - 2)))
    return pooling(op, x, shape, _window(call))


def _matmul(call: Call, shape: Shape) -> list[Step]:
    first, second = call.value(0), call.value(1)
    if first is not None and first.constant and len(first.shape) == 2 and len(call.shape(1)) > 1:
        # Weights from the left: each matrix is multiplied from the right by the transposed ones.
        rows, columns = first.shape
        return [Step("linear", shape, {"m": prod(shape) // rows, "n": rows, "k": columns}, (1,))]
    return product(call.shape(0), call.shape(1), shape, weights=second is not None and second.constant)


def _gemm(call: Call, shape: Shape) -> list[Step]:
    a, second = call.shape(0), call.value(1)
    fields = {"m": shape[0], "n": shape[1], "k": a[0] if call.number("transA", 0) else a[1]}
    weights = second is not None and second.constant
    return [Step("linear", shape, fields, (0,) if weights else (0, 1))]


def _softmax(call: Call, shape: Shape) -> list[Step]:
    rank = max(len(shape), 1)
    axis = call.number("axis", -1 if call.opset >= 13 else 1) % rank
    row = prod(shape[axis:]) if call.opset < 13 else (shape or (1,))[axis]
    return [Step("softmax", shape, {"h": row})]


def _layer_norm(call: Call, shape: Shape) -> list[Step]:
    op = "layer_norm" if "Layer" in call.op and "Simplified" not in call.op else "rms_norm"
    axis = call.number("axis", -1) % max(len(shape), 1)
    return [Step(op, shape, {"h": prod(shape[axis:])})]


def _group_norm(call: Call, shape: Shape) -> list[Step]:
    groups = call.number("num_groups", 0) or (shape[1] if len(shape) > 1 else 1)
    rows = shape[0] * groups
    return [Step("layer_norm", shape, {"h": prod(shape) // rows} if prod(shape) % rows == 0 else {})]


def _gather(call: Call, shape: Shape) -> list[Step]:
    table, indices = call.value(0), call.shape(1)
    if table is not None and table.constant and len(table.shape) == 2 and call.number("axis", 0) == 0:
        fields = {"b": prod(indices), "h": table.shape[1], "vocabulary": table.shape[0]}
        return [Step("embedding", shape, fields, (1,))]
    return _moved(call, shape)


def _moved(call: Call, shape: Shape) -> list[Step]:
    """Return a copy of only the selected part of the input."""
    value = call.value(0)
    size = ELEMENT_BYTES[value.dtype] if value is not None else _INDEX_BYTES
    indices = prod(call.shape(1)) * _INDEX_BYTES if call.op == "Gather" else 0.0
    parts = call.outputs if call.op == "Split" else 1
    return [
        Step("memory", shape, {"bytes": max(2.0 * parts * size * prod(shape) + indices, 1.0)}, range(len(call.inputs)))
    ]


def _stft(call: Call, shape: Shape) -> list[Step]:
    """Return what moves the bytes: overlapping windows in, bins out. The transform itself hides behind it."""
    value, window = call.value(0), call.value(2)
    bins = shape[2]
    samples = window.elements if window is not None else 2 * bins
    size = ELEMENT_BYTES[value.dtype] if value is not None else _INDEX_BYTES
    return [Step("memory", shape, {"bytes": size * (prod(shape[:2]) * samples + prod(shape))}, (0,))]


def _dft(call: Call, shape: Shape) -> list[Step]:
    value = call.value(0)
    size = ELEMENT_BYTES[value.dtype] if value is not None else _INDEX_BYTES
    return [Step("memory", shape, {"bytes": size * (prod(call.shape(0)) + prod(shape))}, (0,))]


def _sum(call: Call, shape: Shape) -> list[Step]:
    return [Step("add", shape, {}, range(len(call.inputs)), max(len(call.inputs) - 1, 1))]


def _recurrent(call: Call, shape: Shape) -> list[Step]:
    steps_, batch, inputs = (*call.shape(0), 1, 1)[:3]
    directions, _, hidden = (*call.shape(2), 1, 1)[:3]
    fields = {"batch": batch, "input": inputs, "hidden": hidden, "steps": steps_, "cell": call.op.lower()}
    return [Step("recurrent", shape, fields, (0,), directions)]


def _fused_matmul(call: Call, shape: Shape) -> list[Step]:
    a, second = call.shape(), call.value(1)
    k = a[-2] if call.number("transA", 0) and len(a) > 1 else a[-1]
    m, n = (1, *shape)[-2:]
    if second is not None and second.constant and len(second.shape) == 2:
        return [Step("linear", shape, {"m": max(prod(shape) // n, 1), "n": n, "k": k})]
    return [Step("bmm", shape, {"b": max(prod(shape) // (m * n), 1), "m": m, "n": n, "k": k}, (0, 1))]


def _blockwise(call: Call, shape: Shape) -> list[Step]:
    n, k = call.number("N", 1), call.number("K", 1)
    return [Step("linear", shape, {"m": max(prod(shape) // n, 1), "n": n, "k": k})]


def _added_norm(call: Call, shape: Shape) -> list[Step]:
    return [Step("add_norm", shape, {"h": shape[-1] if shape else 1})]


_NAMES = by_name("onnx")
_RULES: Mapping[str, Rule] = (
    dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _pool)
    | dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent)
    | dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm)
    | dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_norm)
    | dict.fromkeys(("Softmax", "LogSoftmax"), _softmax)
    | dict.fromkeys(("Slice", "Split"), _moved)
    | {"Conv": _conv, "ConvTranspose": _conv_transpose, "MatMul": _matmul, "Gemm": _gemm, "Gather": _gather}
    | {"DeformConv": _conv, "FusedMatMul": _fused_matmul, "MatMulNBits": _blockwise, "Einsum": einsum_steps}
    | {"Sum": _sum, "Mean": _sum, "STFT": _stft, "DFT": _dft, "PackedAttention": packed_steps}
    | dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention"), attention_steps)
    | dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _added_norm)
)


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
