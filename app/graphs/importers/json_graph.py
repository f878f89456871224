"""Importer of the project's JSON graph (docs/reference/graphs.md): a Workload of one block, one row per node with work.

app/wire/graph_form.py has checked types and ranges. Here names are resolved, nodes sorted into execution order,
dimensions bound, fields derived from tensors, and all of it checked for consistency. An unknown operator is
memory-bound by its tensors (NeuSight's rule) and counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from app.errors import BadInput, FieldError
from app.graphs.build import DEFAULTS, Builder
from app.graphs.importers.attributes import Fields, Mistake, read_attributes
from app.graphs.importers.node_fields import completed
from app.graphs.importers.node_names import RESHAPES, STANDS_FOR, VIEWS
from app.graphs.importers.node_order import Names, running_order
from app.graphs.importers.range_checks import wrong_figures
from app.graphs.importers.tensors import INDEX_BYTES, Tensor, binding, bound
from app.graphs.run import Run
from app.ops import OP_CODE, OPS
from app.ops.base import MOST_BYTES
from app.runtime.release import release
from app.tables.ops import DTYPE_CODE, WEIGHT_BYTES
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
        raise refusal([FieldError(("workload", "parallelism", "tensor"), message)])
    return _Lowering(graph, run, dims or {}, loc).workload()


def refusal(errors: Sequence[FieldError]) -> BadInput:
    """Return a BadInput of the errors, with the first one's message."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return BadInput(f"{'.'.join(map(str, first.loc))}: {first.msg}{more}", errors=errors)


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
        for found in (self._alike, self._bound, self._tensors):
            release(found)
        self._refuse(wrong_figures(workload.ops, self._node_of_row))
        return workload

    def _refuse(self, more: Sequence[FieldError]) -> None:
        errors = [*self._errors, *more][:MAX_ERRORS]
        if errors:
            raise refusal([FieldError((*self._loc, *error.loc), error.msg) for error in errors])

    def _tensor(self, form: Form, place: Loc) -> Tensor:
        """Return a tensor; equal tensors are one object. For an invalid shape, note the error and return a scalar."""
        dtype = form.get("dtype") or self._own
        key = (dtype, *form["shape"])
        found = self._bound.get(key)
        if found is None:
            try:
                shape = bound(form["shape"], self._sizes)
            except ValueError as error:
                self._errors.append(FieldError((*place, "shape"), str(error)))
                shape = ()
            found = Tensor(shape, prod(shape), self._dtype if dtype == self._own else dtype)
            self._bound[key] = found
        return found

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
            told, first = self._alike.get(key) or (self._new(node, inputs, outputs), -1)
            if not told.op:
                row = read[0][1] if read else -1
            else:
                writers = sorted({writer for _, writer in read if writer >= 0})
                if first >= 0 and not told.unknown:
                    row = self._builder.add_again(first, writers, name)
                else:
                    add = self._builder.add_unknown if told.unknown else self._builder.add
                    row = add(told.op, writers, name=name, **told.fields)
                self._node_of_row.append(k)
            self._alike.setdefault(key, (told, row))
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
        said = attributes.get("dtype") if op in KNOWN else None
        if said is None:
            return next((tensor.dtype for tensor in tensors if tensor.dtype not in INDEX_BYTES), self._dtype)
        valid = OPS[OP_CODE[op]].dtypes
        if said not in valid:
            message = f"invalid value {str(said)[:100]!r}; valid for {op}: {', '.join(valid)}"
            raise Mistake(("attributes", "dtype"), message)
        return str(said)


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
