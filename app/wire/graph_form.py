"""JSON structs of the project's graph format (docs/reference/graphs.md): types and ranges, checked before lowering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from app.errors import MAX_ERRORS, BadInput, FieldError
from app.networks.importers.tensors import TENSOR_DTYPES
from app.runtime.cancellation import check_cancelled
from app.runtime.release import release
from app.wire.decoding import field_errors
from app.wire.examples import EXAMPLES
from app.wire.field_facts import WHOLE, about
from app.wire.kernel_workload import Dtype, Name
from app.wire.network_form import ModelRequest, ModelWorkload, RunOptions, SequenceLength
from app.wire.prediction_form import BaseRequest

MAX_NODES = 100_000
MAX_TENSORS = 1_000  # that a node reads or writes
MAX_ALL_TENSORS = 2**19  # that all nodes read and write: some 500 bytes each
MAX_RANK = 16
_PART_NODES = 20  # converted at a time: usually 40 µs, and 10 ms with as many tensors as are allowed

Loc = tuple[str | int, ...]

_PLAIN = "^[^\\x00-\\x1f\\x7f]*$"  # PostgreSQL stores no NUL
TensorName = Annotated[str, Meta(min_length=1, max_length=512, pattern=_PLAIN)]
_EXTENT = "A dimension's name, or a product: 12*batch"
Extent = (
    Annotated[int, Meta(ge=1, le=2**40)] | Annotated[str, about(_EXTENT, min_length=1, max_length=100, pattern=_PLAIN)]
)
DimName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100)]
DimSize: TypeAlias = Annotated[float, Meta(ge=1, le=2**31, **WHOLE)]
Shape = Annotated[list[Extent], Meta(max_length=MAX_RANK)]
Figure = bool | int | float | str
Attribute = Figure | Annotated[list[Figure], Meta(max_length=64)] | None
TensorDtype = Literal[TENSOR_DTYPES]  # type: ignore[valid-type]


class GraphTensor(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """A tensor that a node writes. Its `dtype` defaults to the graph's."""

    shape: Annotated[Shape, about("Dimensions: numbers, names, or products such as 12*batch")]
    dtype: Annotated[TensorDtype | None, about("Number format of its elements; absent: the graph's")] = None


class GraphInput(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """An input tensor of the graph."""

    name: Annotated[TensorName, about("Name by which nodes read it")]
    shape: Annotated[Shape, about("Dimensions: numbers, names, or products such as 12*batch")]
    dtype: Annotated[TensorDtype | None, about("Number format of its elements; absent: the graph's")] = None


class GraphNode(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One operator.

    `op` is an operator of POST /predict, a view (`reshape`, `transpose`, `slice` ...: no cost), or anything else, which
    is costed by the bytes of its tensors and reported. `inputs` name inputs of the graph, nodes (their first output) or
    `node:1` (their second). `attributes` are the operator's fields; those implied by the tensors may be omitted.
    `parameters` is the number of weights that the node holds beyond the graph's tensors; if absent, the fields imply
    it.
    """

    name: Annotated[TensorName, about("Unique name by which other nodes read its first output")]
    op: Annotated[Name, about("An operator of POST /predict, a view, or anything else: bound by its bytes")]
    inputs: Annotated[list[TensorName], about("Names of the tensors that it reads", max_length=MAX_TENSORS)] = []
    outputs: Annotated[list[GraphTensor], about("Tensors that it writes", min_length=1, max_length=MAX_TENSORS)]
    attributes: Annotated[
        dict[str, Attribute],
        about("Fields of the operator; those implied by the tensors may be omitted", max_length=100),
    ] = {}
    parameters: Annotated[
        Annotated[float, Meta(ge=0, le=1e15)] | None, about("Weights, elements; absent: implied by the fields")
    ] = None
    repeats: Annotated[int, about("How often it runs, one after another", ge=1, le=2**20)] = 1


class Graph(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """A network as a graph of operators. `dtype` applies to tensors without their own."""

    name: Annotated[Name, about("Name of the network")] = "graph"
    dtype: Annotated[Dtype, about("Number format of tensors that name none")] = "fp32"
    inputs: Annotated[list[GraphInput], about("Input tensors", max_length=10_000)] = []
    nodes: Annotated[
        list[GraphNode], about("Operators, in any order that has no cycle", min_length=1, max_length=MAX_NODES)
    ]


class GraphWorkload(RunOptions, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One step of a network given as a graph: `graph` in the project's JSON form, or the `graph_id` of POST /graphs.

    `dims` gives sizes for the graph's named dimensions; the usual names are bound by `batch` and `sequence`. `dtype`
    overrides the graph's own.
    """

    kind: Annotated[Literal["graph"], about("Kind of the workload")]
    graph: Annotated[dict[str, Any] | None, about("The network in the JSON form")] = None
    graph_id: Annotated[Name | None, about("Identifier returned by POST /graphs")] = None
    dims: Annotated[
        dict[DimName, DimSize], about("Sizes of the graph's named dimensions", title="Named dimensions")
    ] = field(default_factory=dict)
    mode: Annotated[
        Literal["inference", "training"],
        about("inference, or training (forward, backward, update)"),
    ] = "inference"
    sequence: SequenceLength = None
    dtype: Annotated[Dtype | None, about("Number format, in place of the graph's own", title="Number format")] = None


class GraphRequest(BaseRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A graph on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: Annotated[GraphWorkload, about("What runs: a kernel, operators, a model or a graph")]


NetworkRequest: TypeAlias = ModelRequest | GraphRequest
NetworkWorkload: TypeAlias = ModelWorkload | GraphWorkload

GRAPH_EXAMPLE: dict[str, Any] = EXAMPLES["graph"]
GRAPH_REQUEST_EXAMPLE: dict[str, Any] = {
    **EXAMPLES["graph_request"],
    "workload": {"graph": GRAPH_EXAMPLE, **EXAMPLES["graph_request"]["workload"]},
}


def check_graph(raw: object, loc: Loc = ("workload", "graph")) -> Mapping[str, Any]:
    """Return a graph in plain containers after checking types and ranges. Raises BadInput that names all wrong fields.

    `loc` is where the graph stands in the request. Returns `raw` itself, unchanged: omitted fields stay omitted.
    """
    errors = list[FieldError]()
    _check_tensors(raw, loc)
    for first, part in _parts(raw):
        check_cancelled()
        try:
            msgspec.convert(part, Graph)
        except msgspec.ValidationError:
            wrong = field_errors(part, Graph, example=GRAPH_EXAMPLE)
            errors += [FieldError((*loc, *_from_node(first, error.loc)), error.msg) for error in wrong]
        if len(errors) >= MAX_ERRORS:
            break
    if errors:
        raise BadInput.of(errors)
    assert isinstance(raw, dict)
    return raw


def _check_tensors(raw: Any, loc: Loc) -> None:
    """Raise BadInput for a graph of too many tensors, and free its nodes."""
    nodes = raw.get("nodes") if isinstance(raw, dict) else None
    if not isinstance(nodes, list):
        return
    ends = [node.get(end) for node in nodes if isinstance(node, dict) for end in ("inputs", "outputs")]
    every = [tensors for tensors in ends if isinstance(tensors, list)]
    count = sum(map(len, every))
    if count > MAX_ALL_TENSORS:
        for tensors in every:
            release(tensors)
        release(nodes)
        message = f"the nodes read and write {count:,} tensors; at most {MAX_ALL_TENSORS:,} are accepted"
        error = FieldError((*loc, "nodes"), message)
        raise BadInput.of([error])


def canonical_json(graph: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of a graph: equal for graphs with equal content."""
    first = msgspec.convert(next(_parts(graph))[1], Graph)
    nodes = [msgspec.json.encode(msgspec.convert(part, Graph).nodes, order="sorted") for _, part in _parts(graph)]
    return msgspec.json.encode(msgspec.structs.replace(first, nodes=_joined(nodes)), order="sorted")


def graph_json(graph: Mapping[str, Any]) -> bytes:
    """Return the JSON of a graph as it is."""
    nodes = [msgspec.json.encode(part["nodes"]) for _, part in _parts(graph)]
    return msgspec.json.encode({**graph, "nodes": _joined(nodes)})


def _joined(lists: Sequence[bytes]) -> msgspec.Raw:
    """Return one list in JSON of several."""
    return msgspec.Raw(b"[" + b",".join(text[1:-1] for text in lists) + b"]")


def _parts(raw: Any) -> Iterator[tuple[int, Any]]:
    """Yield graphs with consecutive nodes of one graph, and the place of their first node there.

    msgspec lets no other thread run while it converts one of them. What is no graph of as many nodes as are allowed is
    one part, refused before any node is read. Only the first part has the inputs.
    """
    nodes = raw.get("nodes") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(nodes, list) or not 0 < len(nodes) <= MAX_NODES:
        yield 0, raw
        return
    yield 0, raw | {"nodes": nodes[:_PART_NODES]}
    for first in range(_PART_NODES, len(nodes), _PART_NODES):
        yield first, {"nodes": nodes[first : first + _PART_NODES]}


def _from_node(first: int, place: Loc) -> Loc:
    """Return a place in the whole graph, of one in a part that begins with node `first`."""
    match place:
        case ("nodes", int(k), *rest):
            return "nodes", first + k, *rest
    return place
