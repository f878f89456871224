"""ONNX files read without a library: shapes, weights and constants, and errors that name the place in hostile files."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from app.errors import BadInput, Malformed, TooLarge
from app.networks.importers.json_graph import lower
from app.networks.importers.onnx.walk import read
from app.networks.run import Run
from app.ops import OPS, kinds_of, work_of
from app.tables.workload import Workload
from app.wire.graph_form import check_graph
from tests.onnx_bytes import (
    FLOAT,
    field,
    function,
    integers,
    model,
    node,
    of_domain,
    perceptron,
    referring,
    subgraph,
    tensor,
    value,
    varint,
)


def lowered(data: bytes, **dims: int) -> Workload:
    graph = read(data, dims)
    return lower(check_graph(graph), Run(), dims)


def ops(workload: Workload) -> list[str]:
    return [OPS[code].name for code in workload.ops.kind]


def flops(workload: Workload) -> float:
    return float(work_of(workload.ops, kinds_of(workload.ops)).flops.sum())


def single(
    op: str, *inputs: Sequence[int], weights: Sequence[bytes] = (), opset: int = 17, **attributes: Any
) -> Workload:
    """One node whose first inputs come from outside and the others are the weights w0, w1 ..."""
    names = [f"x{k}" for k in range(len(inputs))]
    given = dict(zip(names, inputs, strict=True))
    read_ = names + [f"w{k}" for k in range(len(weights))]
    return lowered(model([node(op, read_, ["y"], **attributes)], given, weights, opset))


def test_layers_with_a_dynamic_batch() -> None:
    workload = lowered(perceptron(), batch=32)
    assert ops(workload) == ["linear", "relu", "linear", "softmax"]
    assert workload.parameters.tolist() == [784 * 512 + 512, 0, 5130, 0]
    assert workload.ops.column("m").tolist()[0] == 32
    assert workload.edges.tolist() == [[0, 1, 2], [1, 2, 3]]
    assert not workload.unknown


def test_convolution_block() -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[7, 7], strides=[2, 2], pads=[3, 3, 3, 3]),
        node("BatchNormalization", ["c", "s", "s2", "m", "v"], ["n"]),
        node("MaxPool", ["n"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["p"], ["g"]),
    ]
    weights = [tensor("w", [64, 3, 7, 7]), *(tensor(name, [64]) for name in ("b", "s", "s2", "m", "v"))]
    workload = lowered(model(nodes, {"x": [2, 3, 224, 224]}, weights))
    assert ops(workload) == ["conv2d", "batch_norm", "max_pool2d", "avg_pool2d"]
    assert workload.parameters.tolist() == [64 * 147 + 64, 128, 0, 0]  # running statistics are not learned
    conv, bytes_ = 2 * 2 * 112 * 112 * 64 * 147, 4.0
    assert work_of(workload.ops, kinds_of(workload.ops)).flops[0] == conv
    assert (workload.output_bytes / bytes_).tolist() == [2 * 64 * s for s in (112**2, 112**2, 56**2, 1)]


@pytest.mark.parametrize(
    ("given", "macs"),
    [
        (("Conv", [1, 8, 32], {"weights": [tensor("w0", [16, 8, 3])]}), 30 * 16 * 8 * 3),
        (("Conv", [1, 8, 9, 9], {"weights": [tensor("w0", [8, 1, 3, 3])], "group": 8, "dilations": [2, 2]}),
         25 * 8 * 9),
        (("Conv", [1, 8, 9, 9], {"weights": [tensor("w0", [8, 8, 3, 3])], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
         25 * 64 * 9),
        (("Conv", [1, 8, 9, 9], {"weights": [tensor("w0", [8, 8, 2, 2])], "pads": [0, 1, 1, 0]}), 81 * 64 * 4),
        (("Conv", [1, 4, 6, 7, 8], {"weights": [tensor("w0", [6, 2, 3, 3, 3])], "group": 2}), 4 * 5 * 6 * 6 * 2 * 27),
        (("ConvTranspose", [1, 8, 9, 9], {"weights": [tensor("w0", [8, 4, 3, 3])], "strides": [2, 2]}), 81 * 8 * 36),
        (("MatMul", [3, 5, 7], {"weights": [tensor("w0", [7, 11])]}), 3 * 5 * 7 * 11),
        (("MatMul", [3, 5, 7], {"weights": [tensor("w0", [3, 7, 11])]}), 3 * 5 * 7 * 11),
        (("Gemm", [7, 5], {"weights": [tensor("w0", [11, 7])], "transA": 1, "transB": 1}), 5 * 7 * 11),
        (("LSTM", [9, 2, 16], {"weights": [tensor("w0", [2, 80, 16]), tensor("w1", [2, 80, 20])]}),
         2 * 9 * 2 * 80 * 36),
    ],
)  # fmt: skip
def test_products_have_their_flops(given: Any, macs: float) -> None:
    op, shape, attributes = given
    workload = single(op, shape, **attributes)
    runs = workload.ops.column("count")
    assert (work_of(workload.ops, kinds_of(workload.ops)).flops * runs).sum() == 2 * macs
    assert workload.parameters.sum() > 0 and not workload.unknown


def test_shapes_computed_by_the_graph() -> None:
    """What exporters write for x.view(x.shape[0], -1, heads, 64).transpose(1, 2)."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Concat", ["batch", "minus", "twelve", "sixty"], ["view"], axis=0),
        node("Reshape", ["x", "view"], ["heads"]),
        node("Transpose", ["heads"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["heads"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Softmax", ["scaled"], ["p"], axis=-1),
    ]
    weights = [integers("zero", 0), integers("minus", -1), integers("twelve", 12), integers("sixty", 64)]
    workload = lowered(model(nodes, {"x": ["N", "tokens", 768]}, [*weights, tensor("root", [1])]), N=2, tokens=10)
    assert ops(workload) == ["copy", "copy", "bmm", "div_scalar", "softmax"]
    assert flops(workload) == 2 * 2 * 12 * 10 * 64 * 10 + (2 + 6) * 2 * 12 * 100
    assert not workload.parameters.any()


def test_weights_are_counted_once_at_their_first_reader() -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        node("Transpose", ["table"], ["head"], perm=[1, 0]),
        node("MatMul", ["e", "head"], ["logits"]),
    ]
    data = model(nodes, {"ids": [4, 16]}, [tensor("table", [1000, 64], b"")])
    workload = lowered(data)
    assert ops(workload) == ["embedding", "linear"]
    assert workload.parameters.tolist() == [64000, 0]


def test_unknown_operators_are_counted_and_their_guessed_shapes_cause_no_error() -> None:
    nodes = [
        node("Mystery", ["x", "w"], ["m"]),
        node("Reshape", ["m", "shape"], ["r"]),
        node("NonZero", ["r"], ["z"]),
        node("Relu", ["r"], ["y"]),
    ]
    workload = lowered(model(nodes, {"x": [4, 8]}, [tensor("w", [8, 8]), integers("shape", 7, 7)]))
    assert dict(workload.unknown) == {"mystery": 1, "non_zero": 1}
    assert ops(workload) == ["memory", "memory", "memory", "relu"]
    assert workload.parameters[0] == 64


def test_operators_on_empty_tensors_are_dropped() -> None:
    nodes = [node("Slice", ["x", "a", "a"], ["none"]), node("Concat", ["none", "x"], ["y"], axis=0)]
    workload = lowered(model(nodes, {"x": [4, 8]}, [integers("a", 2)]))
    assert ops(workload) == ["memory"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no graph"),
        (b"\x00\x01", "without a number"),
        (b"\x0b\x04", "wire type"),
        (field(7, b"") + b"\x3a\xff", "truncated"),
        (field(7, varint(1 << 3 | 2) + varint(2**50)), "where 0 are left"),
        (field(7, b"\xff" * 12), "truncated or too long"),
        (model([node("", ["x"], ["y"])], {"x": [1]}), "graph.node.0"),
        (model([node("Relu", ["x"], [])], {"x": [1]}), "graph.node.0"),
        (model([node("Relu", ["y"], ["y"])], {"x": [1]}), "graph.node.0.input.0: reads 'y'"),
        (model([node("Relu", ["z"], ["y"]), node("Relu", ["y"], ["z"])], {"x": [1]}), "without cycles"),
        (model([node("Relu", ["x"], ["y"])] * 2, {"x": [1]}), "graph.node.1.output: 'y' is written twice"),
        (model([node("Add", ["x", "w"], ["y"])], {"x": [3]}, [tensor("w", [4])]), "graph.node.0.input.1: Add 'y'"),
        (model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 5]}, [tensor("w", [4, 4])]), "has 4 rows"),
        (model([node("Reshape", ["x", "w"], ["y"])], {"x": [3]}, [integers("w", 2, -1)]), "cannot be [2, -1]"),
        (model([node("Relu", ["x"], ["y"])], {"x": ["tokens"]}), "graph.input.0.type: dimension 'tokens' has no"),
        (model([node("Relu", ["x"], ["y"])], {"": [3]}), "graph.input.0"),
        (model([node("Relu", ["x"], ["y"])], {"x": [3]}, [tensor("w", [2], b"1234")]), "needs 8 bytes and holds 4"),
        (model([node("Relu", ["x"], ["y"])], {"x": [3]}, [tensor("w", [-1], b"")]), "graph.initializer.0.dims"),
        (model([node("Relu", ["x"], ["y"])], {"x": [3]}, [tensor("w", [2**60], b"")]), "graph.initializer.0.dims"),
        (model([node("Relu", ["x"], ["y"])], {"x": [3]}, [tensor("w", [2])] * 2), "defined twice"),
        (model([node("Relu", ["x"], ["y"])], {"x": [2**60]}), "a dimension of"),
        (model([node("Relu", ["x"], ["y"])], {"x": [2**30] * 4}), "elements"),
        (model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, [tensor("w", [4, 5, 3, 3])]), "input.1: Conv"),
        (model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 2, 2]}, [tensor("w", [4, 3, 3, 3])]), "does not fit"),
        (model([node("Conv", ["x", "w"], ["y"], strides=[0, 1])], {"x": [1, 3, 8, 8]}, [tensor("w", [4, 3, 3, 3])]),
         "strides of Conv"),
        (model([node("Tile", ["x", "w"], ["y"])], {"x": [8]}, [integers("w", 2**61)]), "would give the shape"),
        (model([node("Relu", ["x"], ["y"])] + [node("Unsqueeze", ["y" + "y" * k, "w"], ["yy" + "y" * k])
                for k in range(40)], {"x": [8]}, [integers("w", 0)]), "more than 32 dimensions"),
    ],
)  # fmt: skip
def test_files_that_are_not_onnx_are_rejected(data: bytes, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        lowered(data)
    assert said in caught.value.detail


def survived(data: bytes) -> None:
    """Answered or refused as a caller can see, whatever the bytes."""
    try:
        graph = read(data, {"batch": 2})
        lower(check_graph(graph), Run(), {})
    except (BadInput, TooLarge):
        pass


def test_truncated_files_are_rejected() -> None:
    data = model(
        [node("Gemm", ["x", "w"], ["y"], alpha=1.0), node("Reshape", ["y", "s"], ["z"], note="hm")],
        {"x": ["batch", 6]},
        [tensor("w", [6, 4]), integers("s", 0, 2, -1)],
    )
    version = len(field(8, field(2, 17)))  # a file may also end before it
    for end in {*range(len(data))} - {len(data) - version}:
        with pytest.raises(Malformed):
            read(data[:end], {"batch": 2})


def test_random_bytes_are_rejected() -> None:
    data, chance = bytearray(perceptron(2).replace(bytes(4 * 512), b"")), random.Random(1)
    block = model(
        [node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]), node("Split", ["c"], ["a", "b"], axis=1)],
        {"x": [1, 4, 8, 8]},
        [tensor("w", [6, 4, 3, 3], b"")],
    )
    for source in (data, bytearray(block)):
        for _ in range(1500):
            changed = bytearray(source)
            for _ in range(chance.randint(1, 4)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            survived(bytes(changed))


def test_a_file_with_very_many_fields_is_rejected_in_bounded_time() -> None:
    began = time.process_time()
    with pytest.raises((BadInput, TooLarge)):
        read(field(7, field(1, field(4, "Relu") + field(2, "y")) * 150_000), {})
    with pytest.raises(BadInput):
        read(field(1, 0) * 3_000_000, {})
    assert time.process_time() - began < 30


def test_a_long_chain_of_constants_is_evaluated_in_bounded_time() -> None:
    nodes = [node("Add", ["w0" if k == 0 else f"s{k}", f"w{k + 1}"], [f"s{k + 1}"]) for k in range(3000)]
    weights = [tensor(f"w{k}", [4]) for k in range(3001)]
    workload = lowered(model([*nodes, node("Add", ["x", "s3000"], ["y"])], {"x": [8, 4]}, weights))
    assert len(workload) == 1 and workload.parameters.sum() == 4 * 3001


def test_unprintable_names_are_escaped() -> None:
    data = field(7, field(1, node("Relu", ["x\x00"], ["y\n"])) + field(11, value("x\x00", [2], FLOAT)))
    assert lowered(data).names == ("y?",)


def inner(*parts: str, weight: str = "w") -> bytes:
    """A branch that multiplies x by a weight of its own, once per part."""
    names = ["x", *parts]
    nodes = [node("MatMul", [a, weight], [b]) for a, b in pairwise(names)]
    return subgraph(nodes, [], [parts[-1]], tensor(weight, [64, 64]))


def test_the_branch_of_a_constant_condition_is_entered() -> None:
    for condition, count in ((1, 1), (0, 2)):
        nodes = [
            node("If", ["flag"], ["y"], then_branch=inner("one"), else_branch=inner("one", "two")),
            node("Relu", ["y"], ["z"]),
        ]
        graph = read(model(nodes, {"x": [8, 64]}, [integers("flag", condition)]), {})
        assert [item["op"] for item in graph["nodes"]] == ["linear"] * count + ["relu"]
        assert sum(item.get("parameters", 0) for item in graph["nodes"]) == 64 * 64


def test_of_an_unknown_condition_the_larger_branch_counts() -> None:
    nodes = [
        node("Equal", ["rate", "sixteen"], ["flag"]),
        node("If", ["flag"], ["y"], then_branch=inner("one"), else_branch=inner("one", "two")),
    ]
    graph = read(model(nodes, {"x": [8, 64], "rate": [1]}, [integers("sixteen", 16_000)]), {})
    assert [item["op"] for item in graph["nodes"]] == ["equal", "linear", "linear"]
    assert graph["nodes"][-1]["outputs"] == [{"shape": [8, 64]}]


def test_branches_may_use_the_same_names() -> None:
    branch = inner("one")
    nodes = [
        node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
        node("If", ["flag"], ["z"], then_branch=branch, else_branch=branch),
        node("Add", ["y", "z"], ["sum"]),
    ]
    workload = lowered(model(nodes, {"x": [8, 64]}, [integers("flag", 1)]))
    assert not workload.unknown and workload.parameters.sum() == 2 * 64 * 64


def test_a_loop_of_known_length_repeats_its_body() -> None:
    body = subgraph(
        [node("MatMul", ["h", "w"], ["next"]), node("Identity", ["go"], ["on"]), node("Relu", ["next"], ["out"])],
        ["i", "go", "h"],
        ["on", "next", "out"],
        tensor("w", [64, 64]),
    )
    nodes = [node("Loop", ["ten", "", "x"], ["last", "all"], body=body), node("Relu", ["all"], ["y"])]
    graph = read(model(nodes, {"x": [8, 64]}, [integers("ten", 10)]), {})
    product, relu, last = graph["nodes"]
    assert (product["op"], product["repeats"], relu["repeats"], last["repeats"]) == ("linear", 10, 10, 1)
    assert last["outputs"] == [{"shape": [10, 8, 64]}] and product["parameters"] == 64 * 64
    unknown = read(model(nodes, {"x": [8, 64], "ten": [1]}), {})
    often = node("Loop", ["many", "", "x"], ["last"], body=subgraph([nodes[0]], ["i", "go", "x"], ["go", "last"]))
    with pytest.raises(BadInput, match="runs more than 1,048,576 times"):
        read(model([often], {"x": [8, 64]}, [integers("ten", 10), integers("many", 200_000)]), {})
    assert unknown["nodes"][0]["repeats"] == 1


def test_a_scan_has_one_round_per_slice() -> None:
    steps = [node("Add", ["h", "part"], ["next"]), node("Tanh", ["next"], ["out"])]
    body = subgraph(steps, ["h", "part"], ["next", "out"])
    axes = {"scan_input_axes": [1], "scan_output_axes": [1]}
    scan = node("Scan", ["h0", "x"], ["last", "all"], body=body, num_scan_inputs=1, **axes)
    graph = read(model([scan, node("Relu", ["all"], ["y"])], {"x": [4, 20, 64], "h0": [4, 64]}), {})
    assert [(item["op"], item["repeats"]) for item in graph["nodes"]] == [("add", 20), ("tanh", 20), ("relu", 1)]
    assert graph["nodes"][-1]["outputs"] == [{"shape": [4, 20, 64]}]


def test_slices_to_the_end_are_known() -> None:
    """Exporters write the end of x[:, 3:] as the largest integer."""
    weights = [integers("from", 3), integers("to", 2**63 - 1), integers("axis", 1)]
    graph = read(model([node("Slice", ["x", "from", "to", "axis"], ["y"])], {"x": [2, 10]}, weights), {})
    assert graph["nodes"][0]["outputs"] == [{"shape": [2, 7]}]


@pytest.mark.parametrize(("bounds", "size"), [(["least"], 5), (["", "most"], 2), (["least", "most"], 5)])
def test_sizes_are_bounded_from_below_above_or_both(bounds: list[str], size: int) -> None:
    weights = [integers("three", 3), integers("least", 5), integers("most", 5 if "least" in bounds else 2)]
    nodes = [
        node("Clip", ["three", *bounds], ["size"]),
        node("Expand", ["x", "size"], ["y"]),
        node("Relu", ["y"], ["z"]),
    ]
    graph = read(model(nodes, {"x": [1]}, weights), {})
    assert graph["nodes"][-1]["outputs"] == [{"shape": [size]}]


def test_a_slice_may_leave_out_its_axes_before_its_steps() -> None:
    weights = [integers("sizes", 2, 3, 4, 5), integers("from", 1), integers("to", 4), integers("step", 2)]
    nodes = [node("Slice", ["sizes", "from", "to", "", "step"], ["some"]), node("Expand", ["x", "some"], ["y"])]
    graph = read(model([*nodes, node("Relu", ["y"], ["z"])], {"x": [1, 1]}, weights), {})
    assert graph["nodes"][-1]["outputs"] == [{"shape": [3, 5]}]


def test_a_tensor_without_a_shape_in_the_file_is_no_scalar() -> None:
    """value_info with a type and no shape: the shape of the first input counts."""
    unknown = field(13, field(1, "y") + field(2, field(1, field(1, FLOAT))))
    body = field(1, node("Mystery", ["x"], ["y"])) + field(2, "net") + field(11, value("x", [2, 8])) + unknown
    graph = read(field(1, 8) + field(7, body) + field(8, field(2, 17)), {})
    assert graph["nodes"][0]["outputs"] == [{"shape": [2, 8]}]


def test_short_time_transforms() -> None:
    weights = [integers("step", 160), tensor("window", [400])]
    power = node("ReduceSumSquare", ["y"], ["power"], axes=[-1], keepdims=0)
    nodes = [node("STFT", ["x", "step", "window"], ["y"]), power]
    graph = read(model(nodes, {"x": [2, 16_000]}, weights), {})
    assert [item["outputs"][0]["shape"] for item in graph["nodes"]] == [[2, 98, 201, 2], [2, 98, 201]]
    assert graph["nodes"][0]["op"] == "memory"
    with pytest.raises(BadInput, match="a window of 400 does not fit"):
        read(model(nodes, {"x": [2, 100]}, weights), {})


def test_all_free_dimensions_are_asked_for_at_once() -> None:
    file = model([node("Add", ["x", "y"], ["z"])], {"x": ["batch", "height", "width"], "y": ["batch", 1, "width"]})
    with pytest.raises(BadInput, match="dimensions 'height', 'width' have no size: give them in dims") as caught:
        read(file, {"batch": 1})
    assert [error.loc for error in caught.value.errors] == [("graph", "input", k, "type") for k in (0, 1)]


def test_functions_of_the_file_are_entered() -> None:
    """With the call's attributes, without inputs that it leaves out, and names that are its own."""
    body = [
        node("Transpose", ["a"], ["t"]) + referring("perm", "order"),
        node("MatMul", ["t", "b"], ["y"]),
        node("Clip", ["y", "least"], ["out"]),
    ]
    product = function("Product", ["a", "b", "least"], ["out"], body)
    nodes = [
        of_domain("own", node("Product", ["x", "w"], ["y"], order=[1, 0])),
        of_domain("own", node("Product", ["x", "y"], ["z"], order=[1, 0])),
    ]
    workload = lowered(model(nodes, {"x": [64, 64]}, [tensor("w", [64, 32])], functions=[product]))
    assert ops(workload) == ["copy", "linear", "relu", "copy", "linear", "relu"]
    assert workload.parameters.sum() == 64 * 32 and not workload.unknown


def test_functions_that_call_one_another_are_limited() -> None:
    own = function("Own", ["a"], ["b"], [of_domain("own", node("Own", ["a"], ["b"]))])
    with pytest.raises(Malformed, match="calls functions more than 16 deep"):
        read(model([of_domain("own", node("Own", ["x"], ["y"]))], {"x": [8]}, functions=[own]), {})
    doubling = [
        function(f"F{k}", ["a"], ["b"], [of_domain("own", node(f"F{k + 1}", ["a"], [name])) for name in "cdefghib"])
        for k in range(12)
    ]
    with pytest.raises(TooLarge, match="100,000 nodes"):
        last = function("F12", ["a"], ["b"], [node("Relu", ["a"], ["b"])])
        read(model([of_domain("own", node("F0", ["x"], ["y"]))], {"x": [8]}, functions=[*doubling, last]), {})


def test_padding_computed_by_the_graph() -> None:
    """What exporters write for padding: begins and ends in pairs, turned into one list."""
    nodes = [
        node("Reshape", ["pads", "pairs"], ["rows"]),
        node("Slice", ["rows", "last", "least", "first", "last"], ["turned"]),
        node("Transpose", ["turned"], ["t"], perm=[1, 0]),
        node("Reshape", ["t", "last"], ["flat"]),
        node("Pad", ["x", "flat"], ["y"]),
    ]
    weights = [integers("pads", 2, 3, 0, 0), integers("pairs", 2, 2), integers("last", -1), integers("first", 0)]
    graph = read(model(nodes, {"x": [4, 10]}, [*weights, integers("least", -(2**63))]), {})
    assert graph["nodes"][0]["outputs"] == [{"shape": [4, 15]}]


def test_dimensions_with_a_question_mark_are_named_after_the_input() -> None:
    file = model([node("Relu", ["x"], ["y"])], {"x": ["?", 3, "?", "?"]})
    with pytest.raises(BadInput, match=r"dimensions 'batch', 'x\.2', 'x\.3' have no size"):
        read(file, {})


def test_graphs_within_graphs_are_limited() -> None:
    branch, other = inner("one"), inner("one")
    for k in range(20):
        nested = node("If", ["flag"], [f"o{k}"], then_branch=branch, else_branch=other)
        branch = subgraph([nested], [], [f"o{k}"])
    nodes = [node("If", ["flag"], ["y"], then_branch=branch, else_branch=other)]
    with pytest.raises(BadInput, match="more than 16 graphs within one another"):
        read(model(nodes, {"x": [8, 64]}, [integers("flag", 1)]), {})
    short = subgraph([node("Relu", ["x"], ["y"])], ["a", "b", "c"], ["y"])
    with pytest.raises(BadInput, match="to a graph of 3"):
        read(model([node("Scan", ["x"], ["y"], body=short, num_scan_inputs=1)], {"x": [8, 64]}), {})
