"""ONNX files stripped of their weights, in plain containers: all that shapes and costs depend on.

{"name", "dtype", "opset", "inputs": [{"name", "shape", "dtype"}], "weights": {name: {"shape", "dtype", "values"?}},
"nodes": [{"op", "inputs", "outputs", "attributes", "domain"?, "references"?}], "shapes": {name: shape}, "functions":
{"domain.name": {"inputs", "outputs", "nodes", "defaults"}}}. Only small tensors (shapes, axes, scales) have `values`;
those of 4-bit elements have `bits`. An attribute may be a graph of its own (a branch, a body), with "outputs": [name].
In a function, `references` gives attributes that are the function's own. A dimension without a size has its name;
without a name it is the batch (the first dimension) or named after the input. Field numbers are those of onnx.proto (IR
version 3 to 12).
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any

from app.errors import Malformed, TooLarge
from app.networks.importers.onnx.protobuf import FIXED32, Broken, Field, Reader, signed
from app.networks.importers.onnx.values import MAX_RANK, SMALL
from app.networks.importers.tensors import INDEX_BYTES

MAX_NODES = 100_000
MAX_NUMBERS = 4_096  # per attribute
MAX_DEPTH = 16  # of graphs within graphs
_LARGE = 2**62  # larger values are no sizes: integers stand for "to the end", and are cut to it

# TensorProto.DataType: our dtype, bytes per element, and struct's format character.
_TYPES: dict[int, tuple[str, int, str]] = {
    1: ("fp32", 4, "f"),
    2: ("uint8", 1, "B"),
    3: ("int8", 1, "b"),
    4: ("int16", 2, "H"),
    5: ("int16", 2, "h"),
    6: ("int32", 4, "i"),
    7: ("int64", 8, "q"),
    9: ("bool", 1, "?"),
    10: ("fp16", 2, "e"),
    11: ("fp64", 8, "d"),
    12: ("int32", 4, "I"),
    13: ("int64", 8, "Q"),
    16: ("bf16", 2, ""),
    17: ("fp8", 1, ""),
    19: ("fp8", 1, ""),
}
_FOUR_BITS = (21, 22, 23)  # UINT4, INT4, FLOAT4E2M1
_UNNAMED = ("", "?", "-1", "None")  # what exporters call a dimension that they know nothing of
_FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8")

Message = dict[str, Any]


def stripped(data: bytes) -> Message:
    """Return the stripped file; raises Malformed, with the place in the file, or TooLarge, with the limit."""
    reader = Reader(data)
    try:
        graph, opset, functions = None, 1, list[Field]()
        for field in reader.fields(0, len(data)):
            if field.number == 7:
                graph = field
            elif field.number == 8:
                opset = max(opset, _opset(reader, field))
            elif field.number == 25:
                functions.append(field)
        if graph is None:
            raise Malformed("The file is not an ONNX model: it has no graph.")
        count = [0]
        plain = _Graph(reader, graph, count).plain()
        del plain["outputs"]
        known = dict(_function(reader, field, count) for field in functions)
        return plain | {"opset": opset} | ({"functions": known} if known else {})
    except Broken as error:
        raise Malformed(f"The file is not an ONNX model, or is truncated: {error}.") from None


def _opset(reader: Reader, field: Field) -> int:
    domain, version = "", 1
    for inner in reader.fields(field.start, field.end):
        if inner.number == 1:
            domain = reader.text(inner)
        elif inner.number == 2:
            version = inner.value
    return min(version, 1_000) if domain in ("", "ai.onnx") else 1


def _function(reader: Reader, field: Field, count: list[int]) -> tuple[str, Message]:
    """Return a function's full name and its message."""
    name, domain, body = "", "", _Graph(reader, None, count, depth=1)
    message: Message = {"inputs": [], "outputs": [], "defaults": {}}
    for inner in reader.fields(field.start, field.end):
        if inner.number == 1:
            name = reader.text(inner)
        elif inner.number in (4, 5):
            message["inputs" if inner.number == 4 else "outputs"].append(reader.text(inner))
        elif inner.number == 7:
            body.add_node(inner)
        elif inner.number == 10:
            domain = reader.text(inner)
        elif inner.number == 11:
            key, value, _ = body.attribute(inner)
            message["defaults"][key] = value
    return f"{domain}.{name}", message | {"nodes": body.nodes}


def lie(place: tuple[str | int, ...], message: str) -> Malformed:
    """Return a Malformed for an inconsistency at `place`."""
    return Malformed.at(place, message)


class _Graph:
    """The messages of one GraphProto (None: none yet); `count` is the number of nodes of the whole file so far."""

    def __init__(self, reader: Reader, field: Field | None, count: list[int], depth: int = 0) -> None:
        if field is not None and depth > MAX_DEPTH:
            raise Broken(f"more than {MAX_DEPTH} graphs within one another", field.start)
        self._reader, self._count, self._depth = reader, count, depth
        self._outputs: list[str] = []
        self.nodes: list[Message] = []
        self._weights: dict[str, Message] = {}
        self._inputs: list[Message] = []
        self._shapes: dict[str, list[int | str]] = {}
        self._name = ""
        for inner in reader.fields(field.start, field.end) if field is not None else ():
            self._take(inner)

    def add_node(self, field: Field) -> None:
        """Read a node; raises TooLarge if the file has more than MAX_NODES."""
        self._count[0] += 1
        if self._count[0] > MAX_NODES:
            raise TooLarge(f"At most {MAX_NODES:,} nodes are taken; the file has more.")
        self.nodes.append(self._node(field))

    def _take(self, field: Field) -> None:
        if field.number == 1:
            self.add_node(field)
        elif field.number == 2:
            self._name = self._reader.text(field)[:200]
        elif field.number == 5:
            place = ("graph", "initializer", len(self._weights))
            name, tensor = self._tensor(field, place)
            if name in self._weights:
                raise lie(place, f"{name[:200]!r} is defined twice")
            self._weights[name] = tensor
        elif field.number == 11:
            self._inputs.append(self._value(field, outside=self._depth == 0))
        elif field.number in (12, 13):
            value = self._value(field, outside=False)
            if field.number == 12:
                self._outputs.append(value["name"])
            if value["known"] and all(value["shape"]):
                self._shapes[value["name"]] = value["shape"]

    def plain(self) -> Message:
        """Return the graph, without the weights that old files list among the inputs."""
        inputs = [
            {name: value[name] for name in ("name", "shape", "dtype")}
            for value in self._inputs
            if value["name"] not in self._weights
        ]
        dtypes = Counter(tensor["dtype"] for tensor in (*inputs, *self._weights.values()) if tensor["dtype"] in _FLOATS)
        return {
            "name": self._name or "onnx",
            "dtype": dtypes.most_common(1)[0][0] if dtypes else "fp32",
            "inputs": inputs,
            "weights": self._weights,
            "nodes": self.nodes,
            "shapes": self._shapes,
            "outputs": self._outputs,
        }

    def _node(self, field: Field) -> Message:
        node: Message = {"op": "", "inputs": [], "outputs": [], "attributes": {}}
        for inner in self._reader.fields(field.start, field.end):
            if inner.number == 1:
                node["inputs"].append(self._reader.text(inner))
            elif inner.number == 2:
                node["outputs"].append(self._reader.text(inner))
            elif inner.number == 4:
                node["op"] = self._reader.text(inner)[:200]
            elif inner.number == 5:
                name, value, reference = self.attribute(inner)
                if reference:
                    node.setdefault("references", {})[name] = reference
                elif value is not None:
                    node["attributes"][name] = value
            elif inner.number == 7 and (domain := self._reader.text(inner)):
                node["domain"] = domain
        place = ("graph", "node", len(self.nodes))
        if not node["op"] or not any(node["outputs"]):
            raise lie(place, "has no op_type, or no output")
        if len(node["inputs"]) > 1_000 or len(node["outputs"]) > 1_000:
            raise lie(place, "has more than 1,000 inputs or outputs")
        return node

    def attribute(self, field: Field) -> tuple[str, Any, str]:
        """Return an attribute's name, its value, and the name of the function's attribute that it refers to, else "".

        The value is a number, string, list of either, small tensor or graph; else None.
        """
        name, value, reference = "", None, ""
        for inner in self._reader.fields(field.start, field.end):
            if inner.number == 1:
                name = self._reader.text(inner)
            elif inner.number == 2 and inner.kind == FIXED32:
                value = struct.unpack("<f", inner.value.to_bytes(4, "little"))[0]
            elif inner.number == 3:
                value = signed(inner.value)
            elif inner.number == 4 and inner.end - inner.start <= 500:
                value = self._reader.text(inner)
            elif inner.number == 5:
                value = self._tensor(inner, ("graph", "node", len(self.nodes), "attribute"))[1]
            elif inner.number == 6:
                value = _Graph(self._reader, inner, self._count, self._depth + 1).plain()
            elif inner.number in (7, 8):
                read = self._reader.reals if inner.number == 7 else self._reader.integers
                value = [*(value or ()), *read(inner, MAX_NUMBERS)]
                if len(value) > MAX_NUMBERS:
                    raise Broken(f"an attribute of more than {MAX_NUMBERS:,} numbers", inner.start)
            elif inner.number == 21:
                reference = self._reader.text(inner)
        finite = not isinstance(value, float) or math.isfinite(value)
        return name, value if finite else None, reference

    def _tensor(self, field: Field, place: tuple[str | int, ...]) -> tuple[str, Message]:
        """Return a tensor's name, shape and dtype, and its values if it is small."""
        name, kind, raw, elsewhere = "", 1, None, False
        dims: list[int] = []
        listed: list[float] = []
        for inner in self._reader.fields(field.start, field.end):
            if inner.number == 1:
                dims += self._reader.integers(inner, MAX_RANK)
            elif inner.number == 2:
                kind = inner.value
            elif inner.number == 8:
                name = self._reader.text(inner)
            elif inner.number == 9:
                raw = inner
            elif inner.number == 14:
                elsewhere = inner.value == 1
            elif inner.number in (5, 7) and inner.end - inner.start <= 10 * SMALL:
                listed += self._reader.integers(inner, SMALL)
            elif inner.number == 4 and inner.end - inner.start <= 4 * SMALL:
                listed += self._reader.reals(inner, SMALL)
        if len(dims) > MAX_RANK or any(not 0 <= size <= 2**40 for size in dims):
            raise lie((*place, "dims"), f"{name[:200]!r} has invalid dimensions: {dims[:MAX_RANK]}")
        dtype, size, letter = _TYPES.get(kind, ("uint8", 0, ""))
        elements = math.prod(dims)
        tensor: Message = {"shape": dims, "dtype": dtype} | ({"bits": 4} if kind in _FOUR_BITS else {})
        if raw is not None and size and not elsewhere and raw.end - raw.start != elements * size:
            held = raw.end - raw.start
            raise lie(place, f"{name[:200]!r} of shape {dims} needs {elements * size:,} bytes and holds {held:,}")
        if elements <= SMALL and letter and raw is not None and not elsewhere:
            listed = list(struct.unpack(f"<{elements}{letter}", self._reader.data[raw.start : raw.end]))
        # Of no elements: the shape of a scalar, which is known too.
        if (elements or dims == [0]) and len(listed) == elements and (values := _values(listed, dtype)) is not None:
            tensor["values"] = values
        return name, tensor

    def _value(self, field: Field, *, outside: bool) -> Message:
        """Return name, dtype and shape of a ValueInfoProto; unknown sizes inside the graph are 0.

        `known` is False where the file gives no shape, which then is not that of a scalar.
        """
        name, dtype, dims, known = "", "fp32", list[int | str](), False
        for inner in self._reader.fields(field.start, field.end):
            if inner.number == 1:
                name = self._reader.text(inner)
            elif inner.number == 2:
                for kind in self._reader.fields(inner.start, inner.end):
                    if kind.number == 1:
                        dtype, dims, known = self._tensor_type(kind)
        if len(dims) > MAX_RANK:
            raise lie(("graph", "input", len(self._inputs)), f"{name[:200]!r} has more than {MAX_RANK} dimensions")
        if outside:
            dims = [size or ("batch" if axis == 0 else f"{name[:80]}.{axis}") for axis, size in enumerate(dims)]
        return {"name": name, "shape": dims, "dtype": dtype, "known": known}

    def _tensor_type(self, field: Field) -> tuple[str, list[int | str], bool]:
        dtype, dims, known = "fp32", list[int | str](), False
        for inner in self._reader.fields(field.start, field.end):
            if inner.number == 1:
                dtype = _TYPES.get(inner.value, ("uint8", 0, ""))[0]
            elif inner.number == 2:
                known = True
                for dim in self._reader.fields(inner.start, inner.end):
                    if dim.number == 1:
                        dims.append(self._extent(dim))
        return dtype, dims, known

    def _extent(self, field: Field) -> int | str:
        """Return a size or the name of a dimension; 0 if neither is given."""
        extent: int | str = 0
        for inner in self._reader.fields(field.start, field.end):
            if inner.number == 1:
                extent = max(signed(inner.value), 0)
                if extent > 2**40:
                    raise Broken(f"a dimension of {extent:,}", inner.start)
            elif inner.number == 2:
                extent = self._reader.text(inner)[:100].replace("*", " x ").strip()
        return 0 if extent in _UNNAMED else extent


def _values(listed: list[float], dtype: str) -> list[float] | None:
    """Return a tensor's values: integers cut to +-_LARGE, others only if all are of such a size."""
    if dtype in INDEX_BYTES:
        return [max(min(int(value), _LARGE), -_LARGE) for value in listed]
    if any(not abs(value) < _LARGE for value in listed):
        return None
    return [int(value) if float(value).is_integer() else float(value) for value in listed]
