"""The project's JSON graph (docs/graph.md) to a Workload: one row per node that does something, one block.

Types and ranges are checked before (app/services/graph_form.py); here names are resolved, nodes put into the order
they run, dimensions bound, fields derived from tensors, and everything held against everything else. An operator that
nobody knows is bound by the bytes of its tensors (NeuSight's rule) and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from app.errors import BadInput, FieldError
from app.graphs.build import Builder
from app.graphs.importers.attributes import Fields, Mistake, read_attributes
from app.graphs.importers.figures import wrong_figures
from app.graphs.importers.node_fields import completed
from app.graphs.importers.node_names import RESHAPES, STANDS_FOR, VIEWS
from app.graphs.importers.node_order import Names, running_order
from app.graphs.importers.tensors import INDEX_BYTES, Tensor, binding, bound
from app.graphs.run import Run
from app.ops import OP_CODE, OPS
from app.ops.base import MOST_BYTES
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
    """The rows of one device; `dims` binds named dimensions, the run's batch and sequence those of the usual names.

    `run.dtype` takes the place of the graph's own; a tensor of yet another dtype keeps it. BadInput names what is
    wrong under `loc`: names taken twice, cycles, inputs that nobody writes, shapes that do not agree.
    """
    if run.parallelism.tensor > 1:
        message = "a graph is not split within its operators: use data or pipeline"
        raise refusal([FieldError(("workload", "parallelism", "tensor"), message)])
    return _Lowering(graph, run, dims or {}, loc).workload()


def refusal(errors: Sequence[FieldError]) -> BadInput:
    """What is wrong, the first in words."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return BadInput(f"{'.'.join(map(str, first.loc))}: {first.msg}{more}", errors=errors)


class _Lowering:
    """One graph on its way: tensors known so far, rows written, mistakes found."""

    def __init__(self, graph: Form, run: Run, dims: Mapping[str, int], loc: Loc) -> None:
        self._loc = loc
        self._nodes: Sequence[Form] = graph["nodes"]
        self._inputs: Sequence[Form] = graph.get("inputs", ())
        self._own, self._dtype = graph.get("dtype") or DEFAULT_DTYPE, run.dtype
        self._sizes = binding(dims, run.device_batch, run.sequence)
        self._builder = Builder(run.dtype)
        self._tensors: dict[str, Tensor] = {}
        self._node_of_row: list[int] = []
        self._errors: list[FieldError] = []

    def workload(self) -> Workload:
        """Everything, or BadInput."""
        names = Names(self._inputs, self._nodes)
        self._refuse(names.errors)
        order = running_order(self._nodes, names)
        self._refuse(order.errors)
        for k, form in enumerate(self._inputs):
            self._tensors[form["name"]] = self._tensor(form, ("inputs", k))
        for k in order.nodes:
            self._node(k, self._nodes[k])
            if len(self._errors) >= MAX_ERRORS:
                break
        self._refuse([])
        if not self._node_of_row:
            self._refuse([FieldError(("nodes",), "nothing but views: there is nothing to predict")])
        workload = self._builder.build()
        self._refuse(wrong_figures(workload.ops, self._node_of_row))
        return workload

    def _refuse(self, more: Sequence[FieldError]) -> None:
        errors = [*self._errors, *more][:MAX_ERRORS]
        if errors:
            raise refusal([FieldError((*self._loc, *error.loc), error.msg) for error in errors])

    def _tensor(self, form: Form, place: Loc) -> Tensor:
        """One tensor, written by nobody yet; of a shape that cannot be, a single number (and a mistake noted)."""
        dtype = form.get("dtype") or self._own
        try:
            shape = bound(form["shape"], self._sizes)
        except ValueError as error:
            self._errors.append(FieldError((*place, "shape"), str(error)))
            shape = ()
        return Tensor(shape, prod(shape), self._dtype if dtype == self._own else dtype, -1)

    def _node(self, k: int, node: Form) -> None:
        """Write the row of a node, if it does anything, and note its outputs."""
        inputs = [self._tensors[name] for name in node.get("inputs", ())]
        outputs = [self._tensor(form, ("nodes", k, "outputs", j)) for j, form in enumerate(node["outputs"])]
        op, row = STANDS_FOR.get(node["op"], node["op"]), -1
        try:
            if op in VIEWS:
                _check_view(op, inputs, outputs)
                row = inputs[0].row if inputs else -1
            else:
                row = self._add(k, node, op, inputs, outputs)
        except Mistake as mistake:
            words = f"node {node['name'][:200]!r}, {node['op'][:100]}: {mistake.message}"
            self._errors.append(FieldError(("nodes", k, *mistake.place), words))
        for j, output in enumerate(outputs):
            self._tensors[f"{node['name']}:{j}" if j else node["name"]] = output._replace(row=row)

    def _add(self, k: int, node: Form, op: str, inputs: Tensors, outputs: Tensors) -> int:
        """The row of a node; Mistake says what about it cannot be."""
        known, attributes = op in KNOWN, node.get("attributes") or {}
        fields: Fields = read_attributes(op, attributes, self._sizes) if known else {}
        dtype = self._dtype_of(op, attributes, (*outputs, *inputs))
        held = node.get("parameters")
        if known:
            op, weights = completed(op, fields, inputs, outputs)
            held = weights if held is None else held
        held = float(held or 0.0)
        fields["count"] = fields.get("count", 1.0) * node.get("repeats", 1)
        row: dict[str, Any] = {
            "inputs": sorted({tensor.row for tensor in inputs if tensor.row >= 0}),
            "outputs": float(sum(tensor.elements for tensor in outputs)),
            "name": node["name"],
            "dtype": dtype,
            "parameters": held,
        }
        if known and op != "memory":
            number = self._known(op, fields, row)
        else:
            moved = fields.pop("bytes", 0.0) or _moved(held, dtype, inputs, outputs)
            number = self._bound_by_memory(node["op"], known, moved, fields | row)
        self._node_of_row.append(k)
        return number

    def _known(self, op: str, fields: Fields, row: dict[str, Any]) -> int:
        try:
            return self._builder.add(op, **(fields | row))
        except ValueError:
            dims = [
                dim for dim in OPS[OP_CODE[op]].dims if dim.default is None and not fields.keys() & set(dim.columns)
            ]
            message = f"required for {op}, and its tensors do not tell: {dims[0].help}"
            raise Mistake(("attributes", dims[0].name), message) from None

    def _bound_by_memory(self, op: str, known: bool, moved: float, row: dict[str, Any]) -> int:
        if moved > MOST_BYTES:
            raise Mistake(("outputs",), f"moves {moved:.3g} bytes; at most {MOST_BYTES:.0e}")
        if known:
            return self._builder.add("memory", bytes=moved, **row)
        return self._builder.add_unknown(op, moved_bytes=moved, **row)

    def _dtype_of(self, op: str, attributes: Form, tensors: Tensors) -> str:
        """Format that a node computes in: the one said, else of its first tensor that is no index."""
        said = attributes.get("dtype") if op in KNOWN else None
        if said is None:
            return next((tensor.dtype for tensor in tensors if tensor.dtype not in INDEX_BYTES), self._dtype)
        valid = OPS[OP_CODE[op]].dtypes
        if said not in valid:
            message = f"invalid value {str(said)[:100]!r}; valid for {op}: {', '.join(valid)}"
            raise Mistake(("attributes", "dtype"), message)
        return str(said)


def _check_view(op: str, inputs: Tensors, outputs: Tensors) -> None:
    if op in RESHAPES and inputs and inputs[0].elements != outputs[0].elements:
        message = f"{inputs[0].elements:,} elements of shape {list(inputs[0].shape)} cannot be {list(outputs[0].shape)}"
        raise Mistake(("inputs", 0), message)


def _moved(held: float, dtype: str, inputs: Tensors, outputs: Tensors) -> float:
    """Bytes of all tensors and weights, each once."""
    weights = held * WEIGHT_BYTES[DTYPE_CODE[dtype]] if held else 0.0
    return float(weights + sum(tensor.bytes for tensor in (*inputs, *outputs))) or 1.0
