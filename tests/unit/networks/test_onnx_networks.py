"""What exports of torchvision, timm and Transformers have beside the usual, each in the fewest nodes."""

from __future__ import annotations

import struct

from app.networks.importers.onnx.walk import read
from tests.onnx_bytes import INT64, integers, model, node, tensor
from tests.unit.networks.test_onnx import flops, lowered, ops, single


def floats(name: str, *values: float) -> bytes:
    return tensor(name, [len(values)], struct.pack(f"<{len(values)}f", *values))


def test_a_shape_of_no_elements_is_that_of_a_scalar() -> None:
    """Transformers' masks: `new_ones(())` broadcast against [batch, 1, tokens, tokens]."""
    nodes = [
        node("ConstantOfShape", ["none"], ["one"]),
        node("Unsqueeze", ["x", "axes"], ["mask"]),
        node("Add", ["mask", "one"], ["y"]),
    ]
    graph = read(model(nodes, {"x": [2, 12]}, [tensor("none", [0], kind=INT64), integers("axes", 1, 2)]), {})
    assert graph["nodes"][-1]["outputs"] == [{"shape": [2, 1, 1, 12]}]


def test_weights_from_the_left_are_a_linear_layer() -> None:
    """Mamba's `weight @ x.transpose(1, 2)`."""
    workload = lowered(model([node("MatMul", ["w", "x"], ["y"])], {"x": [2, 4, 12]}, [tensor("w", [128, 4])]))
    assert ops(workload) == ["linear"] and flops(workload) == 2 * 2 * 128 * 4 * 12
    assert workload.parameters.tolist() == [128 * 4]


def test_a_norm_of_weights_is_a_constant() -> None:
    """DeBERTa's table of relative positions."""
    nodes = [node("LayerNormalization", ["table", "scale"], ["normed"]), node("Gather", ["normed", "x"], ["y"])]
    workload = lowered(model(nodes, {"x": [4]}, [tensor("table", [16, 8]), tensor("scale", [8])]))
    assert ops(workload) == ["embedding"] and workload.parameters.tolist() == [16 * 8 + 8]


def test_images_are_resized_by_a_computed_scale() -> None:
    """torchvision's detectors: 800 over the shorter side, at most twice."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "two"], ["side"]),
        node("Cast", ["side"], ["length"], to=1),
        node("Reciprocal", ["length"], ["inverse"]),
        node("Mul", ["inverse", "target"], ["scale"]),
        node("Clip", ["scale", "least", "most"], ["scaled"]),
        node("Concat", ["one", "one", "scaled", "scaled"], ["scales"], axis=0),
        node("Resize", ["x", "", "scales"], ["y"]),
    ]
    weights = [integers("two", 2), floats("target", 800), floats("one", 1), floats("least", 1), floats("most", 2)]
    assert read(model(nodes, {"x": [1, 3, 500, 640]}, weights), {})["nodes"][-1]["outputs"] == [
        {"shape": [1, 3, 800, 1024]}
    ]
    assert read(model(nodes, {"x": [1, 3, 320, 320]}, weights), {})["nodes"][-1]["outputs"] == [
        {"shape": [1, 3, 640, 640]}
    ]


def test_repeats_that_are_chosen_by_a_one_hot_vector_are_known() -> None:
    """timm's GCViT: a tile of windows along one axis."""
    nodes = [
        node("OneHot", ["axis", "rank", "values"], ["hot"]),
        node("Reshape", ["hot", "all"], ["repeats"]),
        node("Tile", ["x", "repeats"], ["y"]),
    ]
    weights = [integers("axis", 1), tensor("rank", [], struct.pack("<q", 3), INT64)]
    weights += [integers("values", 1, 64), integers("all", -1)]
    graph = read(model(nodes, {"x": [2, 1, 7]}, weights), {})
    assert graph["nodes"][-1]["outputs"] == [{"shape": [2, 64, 7]}]


def test_a_window_wider_than_the_image_keeps_its_products() -> None:
    """DeepLab's pyramid: a dilation of 12 on 8 x 8 pixels."""
    workload = single(
        "Conv", [2, 16, 8, 8], weights=[tensor("w0", [4, 16, 3, 3])], dilations=[12, 12], pads=[12, 12, 12, 12]
    )
    assert ops(workload) == ["conv2d"] and flops(workload) == 2 * 2 * 64 * 4 * 16 * 9


def test_shapes_that_follow_from_a_guess_refuse_nothing() -> None:
    """Detectors: sizes that NonZero decides reach shapes, views and convolutions."""
    nodes = [
        node("NonZero", ["x"], ["found"]),
        node("Shape", ["found"], ["shape"]),
        node("Gather", ["shape", "one"], ["count"]),
        node("Concat", ["count", "four"], ["sizes"], axis=0),
        node("Expand", ["box", "sizes"], ["boxes"]),
        node("Mul", ["boxes", "wide"], ["scaled"]),
        node("Squeeze", ["scaled", "one"], ["y"]),
    ]
    weights = [integers("one", 1), integers("four", 4), tensor("box", [1, 4]), tensor("wide", [7, 3, 5])]
    workload = lowered(model(nodes, {"x": [4, 8]}, weights))
    assert dict(workload.unknown)["non_zero"] == 1


def test_folded_patches_have_the_shape_of_their_image() -> None:
    """timm's VOLO."""
    weights = [integers("w0", 14, 14), integers("w1", 3, 3)]
    workload = single("Col2Im", [2, 32 * 9, 49], weights=weights, opset=18, strides=[2, 2], pads=[1, 1, 1, 1])
    assert ops(workload) == ["memory"] and not workload.unknown
    file = model([node("Col2Im", ["x", "w0", "w1"], ["y"])], {"x": [2, 32 * 9, 49]}, weights, 18)
    assert read(file, {})["nodes"][-1]["outputs"] == [{"shape": [2, 32, 14, 14]}]
