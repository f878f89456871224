"""Importer of ONNX files, without a library: files are untrusted, and only shapes are needed.

A walk over the stripped file (stripped_file.py) writes the JSON graph. Constants are folded, nodes that depend only on
constants are dropped, and weights become parameters of the first node that reads them. Branches and bodies are entered
(control_flow.py); their names may be those of another one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from app.errors import BadInput, FieldError, TooLarge
from app.networks.importers.onnx.calls import Call, Shapes, in_format, packed_elements, plain, quantised_format
from app.networks.importers.onnx.nodes import MOST_ROUNDS, STATISTICS, body_of, bound_by_memory, entered, steps
from app.networks.importers.onnx.shapes import result_dtypes, result_shapes
from app.networks.importers.onnx.stripped_file import MAX_DEPTH, MAX_NODES, lie, stripped
from app.networks.importers.onnx.values import Shape, ShapeError, Value, constant, folded
from app.networks.importers.tensors import INDEX_BYTES, VIEWS, Step, bound, free_dims

Message = Mapping[str, Any]
Place = tuple[str | int, ...]

_FEW = 64  # largest number of weights listed per constant
_INDICES = INDEX_BYTES.keys() - {"uint8"}  # formats that weights do not have
# Operators that leave the values of a constant as they are.
_MOVES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")


def read(data: bytes, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON graph of a file; `dims` gives the sizes of its named dimensions.

    Raises Malformed for an invalid file, and BadInput for inconsistent shapes and dimensions without a size, each with
    the place in the file.
    """
    return graph(stripped(data), dims)


def graph(file: Message, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON graph of a stripped file."""
    return Walk(file, dims).graph()


class Walk:
    """State of a walk over one file: tensors so far, and nodes written."""

    def __init__(self, file: Message, dims: Mapping[str, int]) -> None:
        self._file = file
        self._dims = dims
        self._values: ChainMap[str, Value] = ChainMap()  # innermost graph first
        self._shapes: ChainMap[str, Any] = ChainMap(file["shapes"])
        self._repeats = 1
        self._walked = self._depth = 0  # nodes so far, and functions within one another
        self._names: set[str] = set()
        self._sizes: dict[str, int] = {}  # elements of each weight
        self._counted: set[str] = set()
        self._inputs: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []

    def graph(self) -> dict[str, Any]:
        """Return the JSON graph; raises Malformed or BadInput."""
        self._ask_for_sizes()
        for k, tensor in enumerate(self._file["inputs"]):
            self._input(k, tensor)
        self._run(self._file, ("graph",))
        form = {"name": self._file["name"], "dtype": self._file["dtype"]}
        return form | {"inputs": self._inputs, "nodes": self._nodes}

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the tensors of the graph itself, once it is walked."""
        return {name: value.shape for name, value in self._values.items()}

    def enter(self, graph: Message, given: Sequence[Value], place: Place, repeats: int) -> list[Value]:
        """Write the nodes of a graph within this one, each `repeats` times as often, and return its outputs.

        `given` are its inputs. Raises Malformed for fewer than it has, and for an output that nothing writes.
        """
        inputs = graph["inputs"]
        if len(given) < len(inputs):
            raise lie(place, f"gives {len(given)} inputs to a graph of {len(inputs)}")
        if self._repeats * repeats > MOST_ROUNDS:
            raise BadInput.at(place, f"runs more than {MOST_ROUNDS:,} times")
        outer = self._values, self._shapes, self._repeats
        self._values, self._shapes = self._values.new_child(), self._shapes.new_child(graph["shapes"])
        self._repeats *= repeats
        for tensor, value in zip(inputs, given, strict=False):
            self._values[tensor["name"]] = value
        self._run(graph, place)
        outputs = [self._read(name, (*place, "output", k)) for k, name in enumerate(graph["outputs"])]
        self._values, self._shapes, self._repeats = outer
        return [value for value in outputs if value is not None]

    def _called(self, call: Call, node: Message, place: Place) -> list[Value] | None:
        """Write the nodes of a function of the file, and return its outputs; None for any other operator.

        Raises Malformed for functions that call one another without an end.
        """
        function = self._file.get("functions", {}).get(f"{node.get('domain', '')}.{call.op}")
        if function is None:
            return None
        if self._depth >= MAX_DEPTH:
            raise lie(place, f"calls functions more than {MAX_DEPTH} deep")
        outer = self._values, self._shapes
        given = zip(function["inputs"], call.inputs, strict=False)
        # An input that is left out is known in there, as omitted.
        self._values = ChainMap({name: value for name, value in given if value is not None})
        self._shapes = ChainMap({})
        self._depth += 1
        self._run(body_of(function, call), place)
        outputs = [self._read(name, (*place, "output", k)) for k, name in enumerate(function["outputs"])]
        self._depth -= 1
        self._values, self._shapes = outer
        return [value for value in outputs if value is not None]

    def _run(self, graph: Message, place: Place) -> None:
        for name, tensor in graph["weights"].items():
            if name in self._values.maps[0]:
                raise lie((*place, "initializer"), f"the name {name!r} is defined twice")
            self._values[name] = self._weight(name, tensor)
        for k, node in enumerate(graph["nodes"]):
            self._node((*place, "node", k), node)

    def _ask_for_sizes(self) -> None:
        """Raise BadInput that names every dimension of the inputs without a size, at all inputs that have one."""
        shapes = [tensor["shape"] for tensor in self._file["inputs"]]
        missing = [name for name in free_dims(shapes) if name not in self._dims]
        if missing:
            names = ", ".join(repr(name[:100]) for name in missing)
            words = f"dimension{'s' * (len(missing) > 1)} {names} ha{'ve' if len(missing) > 1 else 's'} no size: give"
            lacking = [k for k, shape in enumerate(shapes) if set(free_dims([shape])) & set(missing)]
            message = f"{words} {'them' if len(missing) > 1 else 'it'} in dims"
            errors = [FieldError(("graph", "input", k, "type"), message) for k in lacking]
            raise BadInput(f"graph.input.{lacking[0]}.type: {message}", errors=errors)

    def _weight(self, name: str, tensor: Message) -> Value:
        shape, held = tuple(tensor["shape"]), tensor.get("values")
        whole = tensor["dtype"] in INDEX_BYTES
        data = None if held is None else np.array(held, dtype=np.int64 if whole else np.float64).reshape(shape)
        value = Value(shape, tensor["dtype"], None, data, quantised="int4_wo" if tensor.get("bits") == 4 else "")
        if prod(shape) <= 1 or tensor["dtype"] in _INDICES:
            return value
        name = name if name not in self._sizes else f"{name} ({len(self._sizes)})"
        self._sizes[name] = prod(shape)
        return value._replace(weights=(name,))

    def _input(self, k: int, tensor: Message) -> None:
        place = ("graph", "input", k)
        if not tensor["name"] or tensor["name"] in self._values:
            raise lie(place, f"the name {tensor['name']!r} is empty or defined twice")
        try:
            shape = bound(tensor["shape"], self._dims)
        except ValueError as error:
            raise BadInput.at((*place, "type"), f"{tensor['name']!r}: {error}") from None
        self._values[tensor["name"]] = Value(shape, tensor["dtype"], tensor["name"])
        self._inputs.append({"name": tensor["name"], "shape": list(shape), "dtype": tensor["dtype"]})

    def _node(self, place: Place, node: Message) -> None:
        """Register a node's outputs, and write its JSON graph nodes."""
        inputs = [self._read(name, (*place, "input", j)) for j, name in enumerate(node["inputs"])]
        for name in node["outputs"]:
            if name in self._values.maps[0]:
                raise lie((*place, "output"), f"{name!r} is written twice")
        call = Call(node["op"], inputs, node["attributes"], len(node["outputs"]), self._file["opset"])
        self._walked += 1
        if self._walked > MAX_NODES:
            raise TooLarge(f"At most {MAX_NODES:,} nodes are taken; with its functions the file has more.")
        try:
            results = self._called(call, node, place) or entered(self, call, place) or self._constants(call, node)
            results = results or self._results(call, node)
        except ShapeError as error:
            raise BadInput.at((*place, "input", error.index), f"{call.op} {_title(node)}: {error}") from None
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError):
            raise BadInput.at(place, f"{call.op} {_title(node)}: its attributes or shapes are invalid") from None
        self._values.update(zip((name for name in node["outputs"] if name), results, strict=False))

    def _read(self, name: str, place: Place) -> Value | None:
        if name and name not in self._values:
            raise lie(place, f"reads {name!r}, which nothing before it writes: nodes must be sorted, without cycles")
        return self._values[name] if name else None

    def _constants(self, call: Call, node: Message) -> list[Value] | None:
        """Return constant outputs; None if the outputs are not constant."""
        known = all(value.sure for value in call.inputs if value is not None)
        if call.op in ("Shape", "Size") and call.inputs:
            return [_measured(call, known=known)]
        if call.op == "Constant":
            return [self._constant(node)]
        given = [value for value in call.inputs if value is not None]
        if not given or not all(value.constant for value in given) or call.op.startswith("Random"):
            return None
        known_shapes = _known_shapes(call)
        shapes, sure = known_shapes or [given[0].shape] * call.outputs, known and known_shapes is not None
        weights = self._together(node, [name for value in given for name in value.weights])
        dtypes = result_dtypes(call, given[0].dtype)
        quantised = given[0].quantised if call.op in _MOVES else ""
        if call.op == "DequantizeLinear":
            quantised = quantised_format(given[0])
        if call.op == "ConstantOfShape":
            filled = call.attributes.get("value") or {"dtype": "fp32", "values": [0]}
            tensor = {"shape": list(shapes[0]), "dtype": filled["dtype"]}
            if prod(shapes[0]) <= 64 and filled.get("values"):
                tensor["values"] = filled["values"] * prod(shapes[0])
            return [self._weight(_name(node), tensor)]
        data = folded(call.op, call.inputs, call.attributes, shapes[0])
        return [
            Value(shape, dtype, None, None if j else data, weights, sure, quantised)
            for j, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
        ]

    def _together(self, node: Message, names: list[str]) -> tuple[str, ...]:
        """Return the weights that a constant is computed from; many are merged into one."""
        weights = tuple(dict.fromkeys(names))
        if len(weights) <= _FEW:
            return weights
        fresh = set(weights) - self._counted
        self._counted |= fresh
        name = f"{_name(node)} (weights)"
        self._sizes[name] = sum(self._sizes[weight] for weight in fresh)
        return (name,)

    def _constant(self, node: Message) -> Value:
        attributes = node["attributes"]
        name = _name(node)
        if isinstance(attributes.get("value"), dict):
            return self._weight(name, attributes["value"])
        keys = (key for key in ("value_int", "value_ints", "value_float", "value_floats") if key in attributes)
        number = attributes.get(next(keys, ""), 0)
        data = np.array(number)
        return constant(data, "int64" if np.issubdtype(data.dtype, np.integer) else self._file["dtype"])

    def _results(self, call: Call, node: Message) -> list[Value]:
        """Write the nodes of a call, and return its outputs."""
        first = next((value for value in call.inputs if value is not None), None)
        formats = result_dtypes(call, first.dtype if first is not None else self._file["dtype"])
        quantised = quantised_format(first) if call.op == "DequantizeLinear" and first is not None else ""
        parameters = self._parameters(call)
        call, product = plain(call, node.get("domain", ""))
        known_shapes = _known_shapes(call)
        every, sure = (known_shapes, _follows(call)) if known_shapes is not None else self._guessed(call, node)
        named = zip(node["outputs"], every, formats, strict=False)
        outputs = [(shape, dtype) for name, shape, dtype in named if name]
        if not any(prod(shape) for shape, _ in outputs):  # empty: nothing runs
            return [Value(shape, dtype, sure=sure) for shape, dtype in outputs]
        shape = outputs[0][0]
        parts = in_format(steps(call, shape), product) if known_shapes is not None else []
        if not parts or (not sure and parts[-1].op in VIEWS):
            parts = [bound_by_memory(call, shape)]
        name = self._unique(_name(node))
        self._write_all(name, parts, call, outputs)
        costly = next((n for n in self._nodes[-len(parts) :] if n["op"] in ("bmm", "linear")), self._nodes[-1])
        costly["parameters"] = parameters
        refs = [f"{name}:{j}" if j else name for j in range(len(outputs))]
        return [
            Value(shape, dtype, ref, sure=sure, quantised=quantised)
            for (shape, dtype), ref in zip(outputs, refs, strict=True)
        ]

    def _write_all(self, name: str, parts: Sequence[Step], call: Call, outputs: Sequence[tuple[Shape, str]]) -> None:
        """Write the steps of a call; the last one has its name and outputs."""
        before = name
        for j, step in enumerate(parts, 1):
            own = name if j == len(parts) else self._unique(f"{name} ({j})")
            self._write(own, step, call, before, outputs if j == len(parts) else [(step.shape, outputs[0][1])])
            before = own

    def _unique(self, name: str) -> str:
        """Return a name that no node has yet."""
        unique = name if name not in self._names else f"{name} <{len(self._names)}>"
        self._names.add(unique)
        return unique

    def _write(self, name: str, step: Step, call: Call, before: str, outputs: Sequence[tuple[Shape, str]]) -> None:
        values = [call.value(index) for index in step.inputs if index is not None]
        inputs = [value.ref for value in values if value is not None and value.ref is not None]
        own = self._file["dtype"]
        self._nodes.append(
            {
                "name": name,
                "op": step.op,
                "inputs": [before] if None in step.inputs else inputs,
                "outputs": [{"shape": list(s)} | ({} if t == own else {"dtype": t}) for s, t in outputs],
                "attributes": dict(step.attributes),
                "repeats": step.repeats * self._repeats,
            }
        )

    def _guessed(self, call: Call, node: Message) -> tuple[Shapes, bool]:
        """Return unknown output shapes from the file, else the first input's; and True if the file has all of them."""
        first = next((value.shape for value in call.inputs if value is not None), ())
        shapes = [self._shape_in_file(name) for name in node["outputs"]]
        return [first if shape is None else shape for shape in shapes], None not in shapes

    def _shape_in_file(self, name: str) -> tuple[int, ...] | None:
        try:
            return bound(self._shapes[name], self._dims)
        except (KeyError, ValueError):
            return None

    def _parameters(self, call: Call) -> float:
        """Return the elements of weights that no earlier node has read."""
        skipped = STATISTICS.get(call.op, ())
        read = {
            name
            for index, value in enumerate(call.inputs)
            if value is not None and value.constant and index not in skipped
            for name in value.weights
        }
        fresh = read - self._counted
        self._counted |= fresh
        return sum(self._sizes[name] for name in fresh) * packed_elements(call)


def _known_shapes(call: Call) -> Shapes | None:
    """Return the output shapes; None if they are unknown or inconsistent with guessed inputs. Raises ShapeError."""
    try:
        return result_shapes(call)
    except ShapeError:
        if all(value.sure for value in call.inputs if value is not None):
            raise
        return None


def _measured(call: Call, *, known: bool) -> Value:
    """Return the constant that Shape or Size gives, without values where the shape is a guess."""
    shape = call.shape()
    if call.op == "Shape":
        shape = shape[call.number("start", 0) : call.attributes.get("end")]
    if not known:
        return Value((len(shape),) if call.op == "Shape" else (), "int64", sure=False)
    return constant(np.array(shape if call.op == "Shape" else prod(shape), dtype=np.int64))


def _follows(call: Call) -> bool:
    """Return whether shapes that follow from the inputs' are known: of a Reshape to given sizes always."""
    inputs = [value for value in call.inputs if value is not None]
    if call.op == "Reshape" and len(inputs) > 1 and (sizes := inputs[1].integers()) and min(sizes) > 0:
        return True
    return all(value.sure for value in inputs)


def _name(node: Message) -> str:
    return str(next(name for name in node["outputs"] if name))


def _title(node: Message) -> str:
    return repr(_name(node))[:200]
