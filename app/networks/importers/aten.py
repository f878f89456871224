"""Importer of ATen calls (written by torch.export) to the project's JSON graph, without PyTorch.

Each node of the exported program is a Record (names, plain arguments, shapes), made from PyTorch's own graph in
`gpucast trace` and from an archive's JSON in POST /graphs. Nodes are those that PyTorch runs in eager mode: a view
costs nothing; a `reshape` of a non-contiguous tensor copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.networks.importers.aten_rules import Call, Value, steps
from app.networks.importers.tensors import INDEX_BYTES, TENSOR_DTYPES, Shape, Step, by_name, table

INPUT, PARAMETER, BUFFER, GETITEM = "input", "parameter", "buffer", "getitem"

# PyTorch's dtype names that differ from ours.
_DTYPES = {
    "float32": "fp32",
    "float64": "fp64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
_OUT_OF_ORDER = frozenset(table("aten_strided_views"))
_VIEWS = _OUT_OF_ORDER | frozenset(table("aten_views"))
# The nodes of a call that have its weights.
_PRODUCTS = ("bmm", "linear", "conv2d")
_COPYING_VIEWS = ("reshape", "flatten", "_reshape_copy")
_NAMES = by_name("aten")


class Ref(NamedTuple):
    """An argument: the first tensor that another record writes."""

    name: str


class Record(NamedTuple):
    """One node of an exported program.

    target   an overload's name (`aten.linear.default`), GETITEM, or INPUT, PARAMETER or BUFFER for graph inputs
    args     numbers, strings, Refs, None and lists of these; `kwargs` likewise
    outputs  shapes and dtypes (`float32`); an empty tensor, which PyTorch writes for unused outputs, counts as a scalar
    """

    name: str
    target: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    outputs: Sequence[tuple[Sequence[int], str]]


def graph(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return the JSON graph of a program; raises ValueError that names an invalid record."""
    walk = _Walk()
    for record in records:
        try:
            walk.take(record)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{record.name} ({record.target}): {error}") from error
    floats = (given["dtype"] for given in walk.inputs if given["dtype"] not in INDEX_BYTES)
    return {"name": name[:200], "dtype": walk.dtype or next(floats, "fp32"), "inputs": walk.inputs, "nodes": walk.nodes}


class _Walk:
    """State of a walk over a program: the values of each record so far, and the nodes written."""

    def __init__(self) -> None:
        self.dtype = ""
        self.inputs: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self._values: dict[str, list[Value]] = {}
        self._counted: set[str] = set()

    def take(self, record: Record) -> None:
        """Register a record's outputs, and write its nodes."""
        outputs = [(tuple(int(size) or 1 for size in shape), _dtype(dtype)) for shape, dtype in record.outputs]
        if record.target == GETITEM:
            source, index = record.args[0].name, int(record.args[1])
            self._values[record.name] = [self._values[source][index]]
        elif record.target == INPUT:
            self._values[record.name] = [self._input(record.name, *output) for output in outputs]
        elif record.target in (PARAMETER, BUFFER):
            self._values[record.name] = [self._held(record, *output) for output in outputs]
        elif outputs:
            self._call(record.name, Call(_base(record.target), self._resolved(record.args), {
                key: self._resolved(value) for key, value in record.kwargs.items()
            }, outputs))  # fmt: skip

    def _input(self, name: str, shape: Shape, dtype: str) -> Value:
        self.inputs.append({"name": name, "shape": list(shape), "dtype": dtype})
        return Value(shape, dtype, name)

    def _held(self, record: Record, shape: Shape, dtype: str) -> Value:
        """Return the value of a parameter or buffer; only parameters count as weights."""
        learned = record.target == PARAMETER
        if learned and not self.dtype and dtype not in INDEX_BYTES:
            self.dtype = dtype
        return Value(shape, dtype, None, {record.name: prod(shape)} if learned else {})

    def _resolved(self, argument: Any) -> Any:
        """Return an argument with Values in place of Refs."""
        if isinstance(argument, Ref):
            return self._values[argument.name][0] if argument.name in self._values else None
        if isinstance(argument, list | tuple):
            return [self._resolved(item) for item in argument]
        return argument

    def _call(self, name: str, call: Call) -> None:
        given = _tensors([*call.args, *call.kwargs.values()])
        if not given and prod(call.out) == 1:  # a scalar, or nothing
            self._values[name] = [Value(shape, dtype, None) for shape, dtype in call.outputs]
            return
        if call.op in _VIEWS and given and not (call.op in _COPYING_VIEWS and given[0].strided):
            self._values[name] = self._view(name, call, given[0])
            return
        if given and all(value.ref is None for value in given) and not any(value.weights for value in given):
            # Computed from buffers only, such as the batches that a batch norm counts: a launch all the same.
            self._write(name, call, [Step(_NAMES.get(call.op, call.op), call.out, {}, ())], [])
            self._values[name] = [Value(shape, dtype, None) for shape, dtype in call.outputs]
            return
        if not self.dtype:
            self.dtype = next((dtype for _, dtype in call.outputs if dtype not in INDEX_BYTES), "")
        parts = steps(call) if call.op not in _COPYING_VIEWS else [Step("copy", call.out)]
        places: Sequence[Value | None] = given  # tensors in a list, as of einsum
        if parts and any(isinstance(value, Value) for value in call.args):
            places = [value if isinstance(value, Value) else None for value in call.args]
        parts = parts or [Step(_NAMES.get(call.op, call.op), call.out, {}, range(len(given)))]
        self._write(name, call, parts, places)
        refs = (f"{name}:{k}" if k else name for k in range(len(call.outputs)))
        self._values[name] = [Value(*output, ref) for output, ref in zip(call.outputs, refs, strict=False)]
        weighty = next((node for node in self.nodes[-len(parts) :] if node["op"] in _PRODUCTS), self.nodes[-1])
        weighty["parameters"] = self._parameters(given)

    def _view(self, name: str, call: Call, given: Value) -> list[Value]:
        """Return the values of a view: of weights they are weights, of tensors they come from nodes without cost."""
        strided = call.op in _OUT_OF_ORDER or given.strided
        if given.ref is None:
            return [Value(shape, dtype, None, given.weights, strided) for shape, dtype in call.outputs]
        self.nodes.append(self._form(name, "slice", [given.ref], call.outputs, {}, 1))
        refs = (f"{name}:{k}" if k else name for k in range(len(call.outputs)))
        return [Value(*output, ref, {}, strided) for output, ref in zip(call.outputs, refs, strict=False)]

    def _write(self, name: str, call: Call, parts: Sequence[Step], places: Sequence[Value | None]) -> None:
        before = name
        for j, step in enumerate(parts):
            last = j == len(parts) - 1
            read = [places[k] for k in step.inputs if k is not None and k < len(places)]
            inputs = [value.ref for value in read if value is not None and value.ref is not None]
            outputs = call.outputs if last else [(step.shape, call.outputs[0][1])]
            title = name if last else f"{name} ({j + 1})"
            names = [before] if None in step.inputs else inputs
            self.nodes.append(self._form(title, step.op, names, outputs, step.attributes, step.repeats))
            before = title

    def _form(
        self, name: str, op: str, inputs: Sequence[str], outputs: Any, attributes: Mapping[str, Any], repeats: int
    ) -> dict[str, Any]:
        tensors = [{"shape": list(shape), "dtype": dtype} for shape, dtype in outputs]
        form = {"name": name, "op": op, "inputs": list(inputs), "outputs": tensors, "attributes": dict(attributes)}
        return form | {"repeats": repeats, "parameters": 0}

    def _parameters(self, given: Sequence[Value]) -> int:
        """Return the elements of weights that no earlier call has read."""
        fresh = {name: size for value in given for name, size in value.weights.items() if name not in self._counted}
        self._counted |= fresh.keys()
        return sum(fresh.values())


def _tensors(arguments: Sequence[Any]) -> list[Value]:
    """Return all tensors among arguments, including nested lists."""
    tensors: list[Value] = []
    for item in arguments:
        if isinstance(item, Value):
            tensors.append(item)
        elif isinstance(item, list):
            tensors += _tensors(item)
    return tensors


def _base(target: str) -> str:
    """Return an operator's name without namespace, overload and the in-place suffix."""
    parts = target.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _dtype(name: str) -> str:
    known = _DTYPES.get(name, name)
    return known if known in TENSOR_DTYPES else "uint8" if "8" in name else "fp32"
