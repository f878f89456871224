"""The JSON graph: its rows, and errors that name the node and input."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import numpy as np
import pytest

from app.config import CHECKOUT
from app.errors import BadInput
from app.networks.importers.json_graph import lower
from app.networks.run import Parallelism, Run
from app.ops import OPS, kinds_of, work_of
from app.tables.ops import DTYPES
from app.tables.workload import Workload
from app.wire.graph_form import GRAPH_EXAMPLE, canonical_json, check_graph

Graph = dict[str, Any]


def node(name: str, op: str, inputs: list[str], *shapes: list[Any], **more: Any) -> Graph:
    outputs = [{"shape": shape} for shape in shapes]
    return {"name": name, "op": op, "inputs": inputs, "outputs": outputs, **more}


def graph(*nodes: Graph, **inputs: list[Any]) -> Graph:
    named = [{"name": name, "shape": shape} for name, shape in inputs.items()]
    return {"inputs": named, "nodes": list(nodes)}


def lowered(given: Graph, **dims: int) -> Workload:
    return lower(check_graph(given), Run(batch=4), dims)


def ops(workload: Workload) -> list[str]:
    return [OPS[code].name for code in workload.ops.kind]


def flops(workload: Workload) -> float:
    return float(work_of(workload.ops, kinds_of(workload.ops)).flops.sum())


def refused(given: Any, **dims: int) -> tuple[str, str]:
    with pytest.raises(BadInput) as caught:
        lowered(given, **dims)
    error = caught.value.errors[0]
    assert error.loc[:2] == ("workload", "graph")
    return ".".join(map(str, error.loc[2:])), error.msg


def test_the_example_of_the_document() -> None:
    workload = lowered(GRAPH_EXAMPLE)
    assert ops(workload) == ["linear", "relu", "linear", "softmax"]
    assert workload.names == ("hidden", "act", "logits", "p")
    assert workload.parameters.tolist() == [784 * 512, 0, 5130, 0]
    assert workload.edges.tolist() == [[0, 1, 2], [1, 2, 3]]
    assert workload.ops.column("m").tolist()[0] == 4
    assert workload.output_bytes.tolist() == [4 * 512 * 4, 4 * 512 * 4, 4 * 10 * 4, 4 * 10 * 4]
    assert not workload.unknown
    assert flops(workload) == 2 * 4 * (784 * 512 + 512 * 10) + 4 * 512 + 6 * 4 * 10


def test_the_example_of_the_page() -> None:
    page = (CHECKOUT / "docs" / "reference" / "graphs.md").read_text("utf-8")
    workload = lowered(json.loads(page.split("```json")[1].split("```")[0]))
    assert ops(workload) == ["linear", "relu", "conv2d"]
    assert workload.parameters.tolist() == [784 * 512, 0, 9472]


def test_fields_given_as_attributes_are_used() -> None:
    given = node("a", "attention_decode", [], ["batch", 4096], attributes={
        "batch": "batch", "heads": 32, "kv_heads": 8, "head_dim": 128, "context_length": "2*past", "kv_dtype": "fp8",
        "dtype": "bf16",
    })  # fmt: skip
    workload = lowered(graph(given), past=512)
    assert ops(workload) == ["attention_decode"]
    assert DTYPES[workload.ops.dtype[0]] == "bf16"
    row = {name: workload.ops.column(name)[0] for name in ("batch", "kv_heads", "context_length", "query_length")}
    assert row == {"batch": 4, "kv_heads": 8, "context_length": 1024, "query_length": 1}


def test_convolution_with_dilation_and_uneven_padding_has_the_flops_of_its_output() -> None:
    conv = node("c", "conv2d", ["x"], ["N", 64, 111, 55], attributes={
        "kernel_size": [3, 3], "stride": [2, 4], "dilation": [2, 1], "padding": [0, 0, 1, 1],
    })  # fmt: skip
    workload = lowered(graph(conv, x=["N", 16, 224, 220]), N=2)
    assert flops(workload) == 2 * 2 * 111 * 55 * 64 * 16 * 9
    assert workload.parameters.tolist() == [64 * 16 * 9]


def test_views_cost_nothing_and_keep_their_producer() -> None:
    given = graph(
        node("a", "relu", ["x"], [8, 6]),
        node("r", "reshape", ["a"], [2, 24]),
        node("s", "split", ["r"], [2, 12], [2, 12]),
        node("b", "tanh", ["s:1"], [2, 12]),
        x=[8, 6],
    )
    workload = lowered(given)
    assert ops(workload) == ["relu", "tanh"]
    assert workload.edges.tolist() == [[0], [1]]


def test_unknown_operators_are_memory_bound_and_counted() -> None:
    given = graph(
        node("a", "fancy_scan", ["x"], [8, 6], attributes={"anything": "goes"}, parameters=10),
        node("b", "fancy_scan", ["a"], [8, 6], repeats=3),
        x=[8, 12],
    )
    workload = lowered(given)
    assert ops(workload) == ["memory", "memory"]
    assert dict(workload.unknown) == {"fancy_scan": 2}
    assert workload.ops.column("bytes").tolist() == [(96 + 48 + 10) * 4, 96 * 4]
    assert workload.ops.column("count").tolist() == [1, 3]


def test_adding_a_small_operand_counts_as_add_scalar() -> None:
    given = graph(node("a", "add", ["x", "bias"], [8, 6]), node("b", "add", ["a", "x"], [8, 6]), x=[8, 6], bias=[6])
    assert ops(lowered(given)) == ["add_scalar", "add"]


def test_nodes_are_sorted_topologically() -> None:
    given = copy.deepcopy(GRAPH_EXAMPLE)
    given["nodes"].reverse()
    assert lowered(given).names == ("hidden", "act", "logits", "p")


def test_the_request_s_dtype_replaces_the_graph_s_own() -> None:
    given = graph(node("a", "relu", ["x"], [8]), node("b", "relu", ["a"], [8]), x=[8])
    given["nodes"][1]["outputs"][0]["dtype"] = "fp64"
    workload = lower(check_graph(given), Run(dtype="bf16"))
    assert [DTYPES[code] for code in workload.ops.dtype] == ["bf16", "fp64"]


def test_batch_of_a_device() -> None:
    workload = lower(GRAPH_EXAMPLE, Run(batch=64, parallelism=Parallelism(data=4)))
    assert workload.ops.column("m")[0] == 16


def test_attention_without_a_mask_sees_every_pair() -> None:
    shapes = {"q": [2, 4, 9, 64], "k": [2, 4, 9, 64], "v": [2, 4, 9, 64]}
    given = graph(node("a", "attention", ["q", "k", "v"], [2, 4, 9, 64], attributes={"causal": False}), **shapes)
    assert flops(lowered(given)) == 4 * 2 * 4 * 64 * 9 * 9


CYCLE = graph(node("a", "add", ["x", "c"], [8]), node("b", "relu", ["a"], [8]), node("c", "relu", ["b"], [8]), x=[8])


@pytest.mark.parametrize(
    ("given", "place", "said"),
    [
        (CYCLE, "nodes.0.inputs", "a -> b -> c -> a"),
        (graph(node("a", "relu", ["a"], [8])), "nodes.0.inputs", "cycle: a -> a"),
        (graph(node("a", "relu", ["y"], [8]), x=[8]), "nodes.0.inputs.0", "'a' reads 'y', which no input"),
        (graph(node("a", "relu", ["hiden"], [8]), hidden=[8]), "nodes.0.inputs.0", "did you mean: hidden"),
        (graph(node("x", "relu", ["x"], [8]), x=[8]), "nodes.0.name", "taken"),
        (graph(node("a", "relu", ["x"], [8]), node("a", "relu", ["x"], [8]), x=[8]), "nodes.1.name", "taken"),
        (graph(node("l", "linear", ["x"], [8, 10], attributes={"k": 768}), x=[8, 1024]), "nodes.0.inputs.0", "k 768"),
        (graph(node("l", "linear", ["x", "w"], [8, 10]), x=[8, 16], w=[10, 15]), "nodes.0.inputs.1", "[10, 15]"),
        (graph(node("l", "linear", ["x"], [9, 10]), x=[8, 16]), "nodes.0.inputs.0", "[8, 16]"),
        (graph(node("l", "linear", ["x"], [8, 10], attributes={"n": 11}), x=[8, 16]), "nodes.0.outputs.0", "n 11"),
        (graph(node("m", "bmm", ["x", "y"], [2, 3, 6]), x=[2, 3, 4], y=[2, 5, 6]), "nodes.0.inputs.1", "4 x 6"),
        (graph(node("a", "add", ["x", "y"], [8, 6]), x=[8, 6], y=[8, 5]), "nodes.0.inputs.1", "broadcast"),
        (graph(node("r", "reshape", ["x"], [7]), x=[8]), "nodes.0.inputs.0", "cannot be [7]"),
        (graph(node("s", "softmax", ["x"], [8, 5]), x=[8, 6]), "nodes.0.inputs.0", "[8, 6]"),
        (graph(node("e", "embedding", ["i"], [8, 5]), i=[7]), "nodes.0.inputs.0", "b 8"),
        (graph(node("c", "conv2d", ["x"], [1, 8, 9, 9], attributes={"kernel_size": 3}), x=[1, 4, 9, 9]),
         "nodes.0.outputs.0", "7 x 7"),
        (graph(node("c", "conv2d", ["x"], [1, 8, 7, 7]), x=[1, 4, 9, 9]), "nodes.0.attributes.kernel_size", "required"),
        (graph(node("c", "conv2d", ["x"], [1, 8, 7, 7], attributes={"kernel_size": 3, "groups": 3}), x=[1, 4, 9, 9]),
         "nodes.0.attributes.groups", "groups must divide"),
        (graph(node("r", "relu", ["x"], [8], attributes={"speed": 3}), x=[8]), "nodes.0.attributes.speed", "b, h"),
        (graph(node("r", "relu", ["x"], [8], attributes={"h": 0}), x=[8]), "nodes.0.attributes.h", "from 1 to"),
        (graph(node("r", "relu", ["x"], [8], attributes={"h": [1, 2]}), x=[8]), "nodes.0.attributes.h", "one number"),
        (graph(node("r", "relu", ["x"], [8], attributes={"h": "width"}), x=[8]), "nodes.0.attributes.h", "'width'"),
        (graph(node("r", "relu", ["x"], [8], attributes={"dtype": "int4_wo"}), x=[8]),
         "nodes.0.attributes.dtype", "valid for relu"),
        (graph(node("r", "relu", ["x"], ["seq2"]), x=["seq2"]), "inputs.0.shape", "'seq2' has no size: give it"),
        (graph(node("r", "relu", ["x"], [2**40, 2**40]), x=[8]), "nodes.0.outputs.0.shape", "elements"),
        (graph(node("r", "fancy", ["x"], [0]), x=[8]), "nodes.0.outputs.0.shape.0", ">= 1"),
        (graph(node("r", "fancy", ["x"], [-3]), x=[8]), "nodes.0.outputs.0.shape.0", ">= 1"),
        (graph(node("r", "fancy", ["x"], [2**41]), x=[8]), "nodes.0.outputs.0.shape.0", "<= "),
        (graph(node("r", "fancy", ["x"], [1.5]), x=[8]), "nodes.0.outputs.0.shape.0", "a whole number"),
        (graph(node("r", "fancy", ["x"], [8], attributes={"a": {"b": 1}}), x=[8]), "nodes.0.attributes.a", "expected"),
        (graph(node("r", "fancy", ["x"], [8], parameters=-1), x=[8]), "nodes.0.parameters", ">= 0"),
        (graph(node("r", "fancy", ["x"], [8], parameters=float("nan")), x=[8]), "nodes.0.parameters", "finite"),
        (graph(node("r", "relu", ["x"], [8], attributes={"h": float("nan")}), x=[8]), "nodes.0.attributes.h", "number"),
        (graph(node("r", "relu", ["x"], [8], attributes={"h": 10**400}), x=[8]), "nodes.0.attributes.h", "number"),
        (graph(node("r", "fancy", ["x"], [10**30]), x=[8]), "nodes.0.outputs.0.shape.0", ""),
        (graph(node("r", "fancy", ["x"], [8], speed=1), x=[8]), "nodes.0.speed", "unknown field"),
        (graph(node("r", "reshape", ["x"], [8]), x=[8]), "nodes", "nothing but views"),
        (graph(), "nodes", "length >= 1"),
        ({"inputs": []}, "nodes", "required"),
        ([1], "", "expected"),
    ],
)  # fmt: skip
def test_invalid_nodes_are_named(given: Any, place: str, said: str) -> None:
    where, words = refused(given)
    assert where == place
    assert said in words


def test_too_many_nodes() -> None:
    nodes = [node(f"n{k}", "relu", [], [8]) for k in range(100_001)]
    assert "100000" in refused(graph(*nodes))[1]


def test_a_long_reversed_chain_is_sorted_in_bounded_time() -> None:
    nodes = [node(f"n{k}", "relu", [f"n{k - 1}" if k else "x"], [8]) for k in range(20_000)]
    assert len(lowered(graph(*reversed(nodes), x=[8]))) == 20_000


def test_a_node_with_many_unknown_inputs_is_rejected_in_bounded_time() -> None:
    nodes = [node(f"n{k}", "relu", ["x"], [8]) for k in range(1500)]
    wrong = [node(f"w{k}", "concat", [f"nn{j}" for j in range(1000)], [8]) for k in range(20)]
    began = time.process_time()
    assert refused(graph(*nodes, *wrong, x=[8]))[0] == "nodes.1500.inputs.0"
    assert time.process_time() - began < 10


def test_a_shape_name_does_not_multiply_strings() -> None:
    assert "elements" in refused(graph(node("r", "relu", ["x"], ["*".join(["batch"] * 15)]), x=[8]), batch=2**20)[1]


def test_tensor_parallelism_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        lower(GRAPH_EXAMPLE, Run(parallelism=Parallelism(tensor=2)))
    assert caught.value.errors[0].loc == ("workload", "parallelism", "tensor")


def test_the_same_graph_has_the_same_bytes() -> None:
    other = copy.deepcopy(GRAPH_EXAMPLE) | {"dtype": "fp32"}
    other["nodes"][0]["repeats"] = 1
    assert canonical_json(other) == canonical_json(GRAPH_EXAMPLE)
    assert canonical_json(other | {"dtype": "bf16"}) != canonical_json(GRAPH_EXAMPLE)


def test_rows_have_no_host_time() -> None:
    assert np.all(lowered(GRAPH_EXAMPLE).ops.column("eager") == -1)
