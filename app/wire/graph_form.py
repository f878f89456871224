"""The project's JSON graph (docs/reference/graphs.md): types and ranges, checked before anything is lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from app.graphs.importers.tensors import TENSOR_DTYPES
from app.wire.decoding import convert
from app.wire.kernel_workload import Dtype, Name

MAX_NODES = 100_000
MAX_TENSORS = 1_000  # that a node reads or writes
MAX_RANK = 16

_PLAIN = "^[^\\x00-\\x1f\\x7f]*$"  # PostgreSQL stores no NUL
TensorName = Annotated[str, Meta(min_length=1, max_length=512, pattern=_PLAIN)]
_EXTENT = "A dimension's name, or a product: 12*batch"
Extent = (
    Annotated[int, Meta(ge=1, le=2**40)]
    | Annotated[str, Meta(min_length=1, max_length=100, pattern=_PLAIN, description=_EXTENT)]
)
Shape = Annotated[list[Extent], Meta(max_length=MAX_RANK)]
Figure = bool | int | float | str
Attribute = Figure | Annotated[list[Figure], Meta(max_length=64)] | None
TensorDtype = Literal[TENSOR_DTYPES]  # type: ignore[valid-type]


class GraphTensor(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """A tensor that a node writes; without `dtype`, of the graph's."""

    shape: Shape
    dtype: TensorDtype | None = None


class GraphInput(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """A tensor that comes from outside."""

    name: TensorName
    shape: Shape
    dtype: TensorDtype | None = None


class GraphNode(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """One operator.

    `op` is an operator of POST /predict, a view (`reshape`, `transpose`, `slice` ...: costs nothing), or anything else:
    bound by the bytes of its tensors, and reported. `inputs` name inputs of the graph, nodes (their first output) or
    `node:1` (their second). `attributes` are the operator's fields; those that the tensors tell may be left out.
    `parameters` are weights that it holds and that are no tensor of the graph, elements; absent: what the fields say.
    """

    name: TensorName
    op: Name
    inputs: Annotated[list[TensorName], Meta(max_length=MAX_TENSORS)] = []
    outputs: Annotated[list[GraphTensor], Meta(min_length=1, max_length=MAX_TENSORS)]
    attributes: Annotated[dict[str, Attribute], Meta(max_length=100)] = {}
    parameters: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    repeats: Annotated[int, Meta(ge=1, le=2**20, description="How often it runs, one after another")] = 1


class Graph(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True, omit_defaults=True):
    """A network as a graph of operators; `dtype` is that of tensors that name none."""

    name: Name = "graph"
    dtype: Dtype = "fp32"
    inputs: Annotated[list[GraphInput], Meta(max_length=10_000)] = []
    nodes: Annotated[list[GraphNode], Meta(min_length=1, max_length=MAX_NODES)]


GRAPH_EXAMPLE: dict[str, Any] = {
    "name": "two layers",
    "dtype": "fp32",
    "inputs": [{"name": "x", "shape": ["batch", 784]}],
    "nodes": [
        {"name": "hidden", "op": "linear", "inputs": ["x"], "outputs": [{"shape": ["batch", 512]}]},
        {"name": "act", "op": "relu", "inputs": ["hidden"], "outputs": [{"shape": ["batch", 512]}]},
        {
            "name": "logits",
            "op": "linear",
            "inputs": ["act"],
            "outputs": [{"shape": ["batch", 10]}],
            "parameters": 5130,
        },
        {"name": "p", "op": "softmax", "inputs": ["logits"], "outputs": [{"shape": ["batch", 10]}]},
    ],
}


def checked(raw: object, loc: tuple[str | int, ...] = ("workload", "graph")) -> Mapping[str, Any]:
    """A graph in plain containers whose types and ranges are right; BadInput that names every wrong field under `loc`.

    Its own containers, unchanged: what is left out stays so.
    """
    convert(raw, Graph, example=GRAPH_EXAMPLE, loc=loc)
    assert isinstance(raw, dict)
    return raw


def canonical(graph: Mapping[str, Any]) -> bytes:
    """The same bytes for graphs that say the same."""
    return msgspec.json.encode(msgspec.convert(graph, Graph), order="sorted")
