"""Importer of the project's JSON graph (docs/reference/graphs.md): a Workload of one block, one row per node with work.

app/wire/graph_form.py has checked types and ranges. Here names are resolved, nodes sorted into execution order,
dimensions bound, fields derived from tensors, and all of it checked for consistency. An unknown operator is
memory-bound by its tensors (NeuSight's rule) and counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Any, NamedTuple

import numpy as np

from app.errors import BadInput, FieldError
from app.networks.batched import in_steps
from app.networks.build import DEFAULTS, Builder
from app.networks.importers.node_fields import Fields, Mistake, completed, read_attributes
from app.networks.importers.tensors import INDEX_BYTES, RESHAPES, STANDS_FOR, VIEWS, Tensor, binding, bound
from app.networks.run import Run
from app.ops import OP_CODE, OPS, kinds_of
from app.ops.base import MOST_BYTES, Dim
from app.runtime.release import release
from app.tables.arrays import Floats
from app.tables.ops import DTYPE_CODE, WEIGHT_BYTES, OpTable
from app.tables.workload import Workload

Loc = tuple[str | int, ...]
Form = Mapping[str, Any]
Tensors = Sequence[Tensor]

KNOWN = frozenset(op.name for op in OPS[1:])
GRAPH_LOC: Loc = ("workload", "graph")
MAX_ERRORS = 20
DEFAULT_DTYPE = "fp32"


def lower(graph: Form, run: Run, dims: Mapping[str, int] | None = None, loc: Loc = GRAPH_LOC) -> Workload:
    """Return the rows of one device.

    `dims` binds named dimensions; the run's batch and sequence bind those of the usual names. `run.dtype` replaces the
    graph's dtype; tensors of other dtypes keep theirs. Raises BadInput, with places under `loc`, for duplicate names,
    cycles, undefined inputs and inconsistent shapes.
    """
    if run.parallelism.tensor > 1:
        message = "a graph is not split within its operators: use data or pipeline"
        raise BadInput.at(("workload", "parallelism", "tensor"), message)
    return _Lowering(graph, run, dims or {}, loc).workload()


class _Row(NamedTuple):
    """Arguments of Builder.add for a node, besides name and inputs; a view has no `op`."""

    op: str
    fields: dict[str, Any]
    unknown: bool = False


class _Lowering:
    """State of the lowering of one graph: tensors so far, rows written, errors found."""

    def __init__(self, graph: Form, run: Run, dims: Mapping[str, int], loc: Loc) -> None:
        self._loc = loc
        self._nodes: Sequence[Form] = graph["nodes"]
        self._inputs: Sequence[Form] = graph.get("inputs", ())
        self._own, self._dtype = graph.get("dtype") or DEFAULT_DTYPE, run.dtype
        self._sizes = binding(dims, run.device_batch, run.sequence)
        self._builder = Builder(run.dtype)
        self._tensors: dict[str, tuple[Tensor, int]] = {}  # with the row that writes each, -1 for inputs
        self._bound: dict[Hashable, Tensor] = {}
        # Networks repeat their layers: equal nodes are lowered once. Kept with the row of the first of them.
        self._alike: dict[Hashable, tuple[_Row, int]] = {}
        self._node_of_row: list[int] = []
        self._errors: list[FieldError] = []

    def workload(self) -> Workload:
        """Return the workload; raises BadInput."""
        names = Names(self._inputs, self._nodes)
        self._refuse(names.errors)
        order = running_order(self._nodes, names)
        self._refuse(order.errors)
        for k, form in enumerate(self._inputs):
            self._tensors[form["name"]] = self._tensor(form, ("inputs", k)), -1
        for k in order.nodes:
            self._node(k, self._nodes[k])
            if len(self._errors) >= MAX_ERRORS:
                break
        self._refuse([])
        if not self._node_of_row:
            self._refuse([FieldError(("nodes",), "nothing but views: there is nothing to predict")])
        workload = self._builder.build()
        for held in (self._alike, self._bound, self._tensors):
            release(held)
        self._refuse(wrong_figures(workload.ops, self._node_of_row))
        return workload

    def _refuse(self, more: Sequence[FieldError]) -> None:
        errors = [*self._errors, *more][:MAX_ERRORS]
        if errors:
            raise BadInput.of([FieldError((*self._loc, *error.loc), error.msg) for error in errors])

    def _tensor(self, form: Form, place: Loc) -> Tensor:
        """Return a tensor; equal tensors are one object. For an invalid shape, note the error and return a scalar."""
        dtype = form.get("dtype") or self._own
        key = (dtype, *form["shape"])
        tensor = self._bound.get(key)
        if tensor is None:
            try:
                shape = bound(form["shape"], self._sizes)
            except ValueError as error:
                self._errors.append(FieldError((*place, "shape"), str(error)))
                shape = ()
            tensor = Tensor(shape, prod(shape), self._dtype if dtype == self._own else dtype)
            self._bound[key] = tensor
        return tensor

    def _node(self, k: int, node: Form) -> None:
        """Write the row of a node, if it has work, and register its outputs."""
        name, op, attributes = node["name"], node["op"], node.get("attributes")
        read = [self._tensors[given] for given in node.get("inputs", ())]
        inputs = [tensor for tensor, _ in read]
        outputs = [self._tensor(form, ("nodes", k, "outputs", j)) for j, form in enumerate(node["outputs"])]
        tensors = (*map(id, inputs), 0, *map(id, outputs))  # equal ones are one object
        key = (op, tensors, node.get("parameters"), node.get("repeats"), str(attributes) if attributes else "")
        row = -1
        try:
            kind, first = self._alike.get(key) or (self._new(node, inputs, outputs), -1)
            if not kind.op:
                row = read[0][1] if read else -1
            else:
                writers = sorted({writer for _, writer in read if writer >= 0})
                if first >= 0 and not kind.unknown:
                    row = self._builder.add_again(first, writers, name)
                else:
                    add = self._builder.add_unknown if kind.unknown else self._builder.add
                    row = add(kind.op, writers, name=name, **kind.fields)
                self._node_of_row.append(k)
            self._alike.setdefault(key, (kind, row))
        except Mistake as mistake:
            words = f"node {name[:200]!r}, {op[:100]}: {mistake.message}"
            self._errors.append(FieldError(("nodes", k, *mistake.place), words))
        self._tensors[name] = outputs[0], row
        for j in range(1, len(outputs)):
            self._tensors[f"{name}:{j}"] = outputs[j], row

    def _new(self, node: Form, inputs: Tensors, outputs: Tensors) -> _Row:
        """Return the row of a new kind of node; raises Mistake."""
        op, attributes = STANDS_FOR.get(node["op"], node["op"]), node.get("attributes") or {}
        if op in VIEWS:
            _check_view(op, inputs, outputs)
            return _Row("", {})
        known = op in KNOWN
        fields: Fields = read_attributes(op, attributes, self._sizes) if known else {}
        dtype = self._dtype_of(op, attributes, (*outputs, *inputs))
        held = node.get("parameters")
        if known:
            op, weights = completed(op, fields, inputs, outputs)
            held = weights if held is None else held
        held = float(held or 0.0)
        fields["count"] = fields.get("count", 1.0) * node.get("repeats", 1)
        own = {"outputs": float(sum(tensor.elements for tensor in outputs)), "parameters": held, "dtype": dtype}
        if known and op != "memory":
            _require(op, fields)
            return _Row(op, fields | own)
        moved = fields.pop("bytes", 0.0) or _moved(held, dtype, inputs, outputs)
        if moved > MOST_BYTES:
            raise Mistake(("outputs",), f"moves {moved:.3g} bytes; at most {MOST_BYTES:.0e}")
        if known:
            return _Row("memory", fields | own | {"bytes": moved})
        return _Row(node["op"], fields | own | {"moved_bytes": moved}, unknown=True)

    def _dtype_of(self, op: str, attributes: Form, tensors: Tensors) -> str:
        """Return the number format of a node: its attribute, else its first non-index tensor's."""
        dtype = attributes.get("dtype") if op in KNOWN else None
        if dtype is None or (dtype == "tf32" and self._dtype != "fp32"):  # TF32 is what FP32 may be rounded to
            return next((tensor.dtype for tensor in tensors if tensor.dtype not in INDEX_BYTES), self._dtype)
        valid = OPS[OP_CODE[op]].dtypes
        if dtype not in valid:
            message = f"invalid value {str(dtype)[:100]!r}; valid for {op}: {', '.join(valid)}"
            raise Mistake(("attributes", "dtype"), message)
        return str(dtype)


def _require(op: str, fields: Fields) -> None:
    """Raise Mistake for a missing field."""
    for column, default in DEFAULTS[op].items():
        if default is None and column not in fields:
            dim = next(dim for dim in OPS[OP_CODE[op]].dims if column in dim.columns)
            raise Mistake(("attributes", dim.name), f"required for {op}, and not determined by its tensors: {dim.help}")


def _check_view(op: str, inputs: Tensors, outputs: Tensors) -> None:
    if op in RESHAPES and inputs and inputs[0].elements != outputs[0].elements:
        message = f"{inputs[0].elements:,} elements of shape {list(inputs[0].shape)} cannot be {list(outputs[0].shape)}"
        raise Mistake(("inputs", 0), message)


def _moved(held: float, dtype: str, inputs: Tensors, outputs: Tensors) -> float:
    """Return the bytes of all tensors and weights, each counted once."""
    weights = held * WEIGHT_BYTES[DTYPE_CODE[dtype]] if held else 0.0
    return float(weights + sum(tensor.bytes for tensor in (*inputs, *outputs))) or 1.0


Node = Mapping[str, Any]

_INPUT = -1
_SHOWN = 10  # nodes of a cycle in a message
_MANY = 2_000  # largest number of names searched for similar ones


class Order(NamedTuple):
    """Node numbers with writers before readers, or the errors."""

    nodes: Sequence[int]
    errors: list[FieldError]


class Names:
    """The writer of every tensor: a node's number, or -1 for an input of the graph."""

    def __init__(self, inputs: Sequence[Node], nodes: Sequence[Node]) -> None:
        self.writer: dict[str, int] = {}
        self.errors: list[FieldError] = []
        for k, tensor in enumerate(inputs):
            self._take(tensor["name"], _INPUT, ("inputs", k, "name"))
        for k, node in enumerate(nodes):
            name, outputs = node["name"], len(node["outputs"])
            self._take(name, k, ("nodes", k, "name"))
            for j in range(1, outputs):
                self._take(f"{name}:{j}", k, ("nodes", k, "name"))

    def _take(self, name: str, writer: int, place: tuple[str | int, ...]) -> None:
        if name in self.writer:
            self.errors.append(FieldError(place, f"{name[:200]!r} is taken by another input or node"))
        self.writer[name] = writer

    def dangling(self, k: int, node: Node) -> list[FieldError]:
        """Return errors for the first few undefined inputs of node `k`, with similar names for the first of them."""
        nobody = [(j, name) for j, name in enumerate(node.get("inputs", ())) if name not in self.writer][:_SHOWN]
        near = get_close_matches(nobody[0][1][:200], self.writer, n=3) if len(self.writer) <= _MANY else []
        hints = [f"; did you mean: {', '.join(near)}" if near else ""] + [""] * _SHOWN
        return [
            FieldError(
                ("nodes", k, "inputs", j),
                f"node {node['name'][:200]!r} reads {name[:200]!r}, which no input or node of the graph writes{hint}",
            )
            for (j, name), hint in zip(nobody, hints, strict=False)
        ]


def running_order(nodes: Sequence[Node], names: Names) -> Order:
    """Return the given order if it can run, else a stable topological order (Kahn 1962), or an error with a cycle."""
    writer, late = names.writer, False
    errors: list[FieldError] = []
    for k, node in enumerate(nodes):
        for name in node.get("inputs", ()):
            at = writer.get(name)
            if at is None:
                errors += names.dangling(k, node)
                break
            late = late or at >= k
        if len(errors) >= _SHOWN:
            break
    if errors or not late:
        return Order(range(len(nodes)), errors)
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(nodes)), ()))
    for k, node in enumerate(nodes):
        sorter.add(k, *(at for name in node.get("inputs", ()) if (at := writer[name]) != _INPUT))
    try:
        return Order(list(sorter.static_order()), [])
    except CycleError as error:
        return Order((), [_cycle(nodes, error.args[1][1:])])


def _cycle(nodes: Sequence[Node], cycle: Sequence[int]) -> FieldError:
    """Return the error of a cycle, whose nodes each write what the next one reads."""
    first = cycle.index(min(cycle))
    cycle = [*cycle[first:], *cycle[:first]]
    shown = [str(nodes[k]["name"])[:100] for k in cycle[:_SHOWN]]
    more = f" and {len(cycle) - _SHOWN} more" if len(cycle) > _SHOWN else f" -> {shown[0]}"
    return FieldError(("nodes", cycle[0], "inputs"), f"the nodes are a cycle: {' -> '.join(shown)}{more}")


def wrong_figures(ops: OpTable, node_of_row: Sequence[int]) -> list[FieldError]:
    """Return an error for every field that is missing, out of range or breaks a rule between fields, by node."""
    nodes = in_steps(node_of_row, np.intp)
    errors: list[FieldError] = []
    for op, rows, table in kinds_of(ops):
        own = nodes[rows]
        wrong = [
            FieldError(("nodes", int(k), "attributes", dim.name), _wrong_figure(op.name, dim, value))
            for dim in op.dims
            for column in dim.columns
            for k, value in _out_of_range(dim, table.column(column), own)
        ]
        if not wrong:
            wrong = [
                FieldError(("nodes", int(k), "attributes", broken.field), broken.message)
                for broken in op.broken(table)
                for k in own[broken.rows]
            ]
        errors += wrong
    return sorted(errors, key=lambda error: error.loc[1])


def _out_of_range(
    dim: Dim, values: Floats, nodes: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> list[tuple[int, float]]:
    good = (values >= dim.least) & (values <= dim.most) | bool(dim.choices or dim.read)  # codes of words
    if dim.whole:
        good &= values == np.floor(values)
    if dim.default is not None and np.isnan(dim.default):
        good |= np.isnan(values)
    bad = ~good
    return list(zip(nodes[bad].tolist(), values[bad].tolist(), strict=True)) if bad.any() else []


def _wrong_figure(op: str, dim: Dim, value: float) -> str:
    if np.isnan(value):
        return f"required for {op}, and not determined by its tensors: {dim.help}"
    return f"must be a {'whole ' * dim.whole}number from {dim.least:.15g} to {dim.most:.15g}, got {value:.17g}"
