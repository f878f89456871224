"""Quantised and fused operators of ONNX files run in the formats of the operators that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.networks.importers.json_graph import lower
from app.networks.importers.onnx.walk import read
from app.networks.run import Run
from app.ops import OPS
from app.tables.ops import DTYPES
from app.tables.workload import Workload
from app.wire.graph_form import check_graph
from tests.onnx_bytes import INT4, INT8, UINT8, integers, model, node, of_domain, tensor

MICROSOFT = "com.microsoft"
X = {"x": [2, 8, 16, 16]}
ROWS = {"x": [4, 10, 64]}
SCALES = [tensor("s", [1]), tensor("z", [1], kind=UINT8)]
IMAGE = tensor("w", [12, 8, 3, 3], kind=INT8)
MATRIX = tensor("w", [64, 32], kind=INT8)


def lowered(nodes: Sequence[bytes], inputs: Mapping[str, Any], weights: Sequence[bytes], **run: Any) -> Workload:
    workload = lower(check_graph(read(model(nodes, inputs, weights), {})), Run(**run))
    assert not workload.unknown
    return workload


def formats(workload: Workload) -> list[tuple[str, str]]:
    """Operator and format of each row."""
    codes = zip(workload.ops.kind, workload.ops.dtype, strict=True)
    return [(OPS[op].name, DTYPES[dtype]) for op, dtype in codes]


def quantised(name: str) -> bytes:
    return node("QuantizeLinear", [name, "s", "z"], [f"{name}.q"])


def dequantised(name: str) -> bytes:
    return node("DequantizeLinear", [name, "s", "z"], [f"{name}.f"])


@pytest.mark.parametrize(
    ("op", "operands", "inputs", "weight", "expected"),
    [
        ("ConvInteger", ["x", "w", "z"], X, IMAGE, {"conv2d": {"b": 2, "out_channels": 12}}),
        ("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], X, IMAGE, {"conv2d": {"b": 2, "in_channels": 8}}),
        ("MatMulInteger", ["x", "w", "z"], ROWS, MATRIX, {"linear": {"m": 40, "n": 32, "k": 64}}),
        ("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ROWS, MATRIX, {"linear": {"m": 40, "n": 32}}),
        ("DynamicQuantizeMatMul", ["x", "w", "s"], ROWS, MATRIX, {"linear": {"m": 40, "n": 32, "k": 64}}),
        ("MatMulIntegerToFloat", ["x", "w", "s", "s"], ROWS, MATRIX, {"linear": {"m": 40, "n": 32, "k": 64}}),
        ("QGemm", ["x", "s", "z", "w", "s", "z"], {"x": [4, 64]}, MATRIX, {"linear": {"m": 4, "n": 32, "k": 64}}),
    ],
)  # fmt: skip
def test_quantised_products_run_in_int8(
    op: str, operands: list[str], inputs: Any, weight: bytes, expected: dict[str, dict[str, float]]
) -> None:
    workload = lowered([of_domain(MICROSOFT, node(op, operands, ["y"]))], inputs, [weight, *SCALES])
    ((name, fields),) = expected.items()
    assert formats(workload) == [(name, "int8")]
    assert {key: workload.ops.column(key)[0] for key in fields} == fields
    assert workload.parameters.sum() == pytest.approx(12 * 72 if name == "conv2d" else 64 * 32)
    assert workload.weight_bytes.sum() == workload.parameters.sum()


def test_products_of_dequantised_tensors_run_in_int8() -> None:
    """What quantisers write around each product, and runtimes fuse into it."""
    nodes = [
        quantised("x"),
        dequantised("x.q"),
        dequantised("w"),
        node("Transpose", ["w.f"], ["t"], perm=[1, 0]),
        node("MatMul", ["x.q.f", "t"], ["y"]),
        quantised("y"),
    ]
    workload = lowered(nodes, ROWS, [tensor("w", [32, 64], kind=INT8), *SCALES])
    assert formats(workload) == [("memory", "fp32"), ("linear", "int8"), ("memory", "fp32")]
    assert workload.parameters.tolist() == [0, 64 * 32, 0]


def test_weights_alone_in_four_bits() -> None:
    nodes = [dequantised("w"), node("MatMul", ["x", "w.f"], ["y"])]
    four = lowered(nodes, ROWS, [tensor("w", [64, 32], b"", INT4), *SCALES], dtype="fp16")
    assert formats(four) == [("linear", "int4_wo")]
    assert formats(lowered(nodes, ROWS, [MATRIX, *SCALES], dtype="fp16")) == [("linear", "fp16")]
    blocks = of_domain(MICROSOFT, node("MatMulNBits", ["x", "w", "s"], ["y"], K=64, N=32, bits=4, block_size=32))
    packed = lowered([blocks], ROWS, [tensor("w", [32, 2, 16], kind=UINT8), *SCALES])
    assert formats(packed) == [("linear", "int4_wo")]
    assert (packed.ops.column("n")[0], packed.ops.column("k")[0]) == (32, 64)
    assert packed.parameters.sum() == 64 * 32


def test_dynamic_quantisation_and_recurrent_layers() -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("MatMulInteger", ["q", "w", "zero"], ["i"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    workload = lowered(nodes, ROWS, [MATRIX])
    assert [name for name, _ in formats(workload)] == ["memory", "linear", "relu", "mul_scalar"]
    assert workload.ops.column("bytes")[0] == 4 * 10 * 64 * (4 + 1) + 4 + 1  # read in FP32, written in 8 bits
    weights = [tensor("w", [1, 24, 128], kind=INT8), tensor("r", [1, 32, 128], kind=INT8)]
    lstm = of_domain(MICROSOFT, node("DynamicQuantizeLSTM", ["x", "w", "r"], ["y"]))
    layer = lowered([lstm], {"x": [7, 3, 24]}, weights)
    assert formats(layer) == [("recurrent", "int8")]
    assert [layer.ops.column(name)[0] for name in ("steps", "batch", "input", "hidden")] == [7, 3, 24, 32]


def test_operators_on_quantised_elements_move_bytes() -> None:
    operands = ["x", "s", "z", "x", "s", "z", "s", "z"]
    nodes = [
        of_domain(MICROSOFT, node("QLinearAdd", operands, ["a"])),
        of_domain(MICROSOFT, node("QLinearConcat", ["s", "z", "a", "s", "z", "x", "s", "z"], ["c"], axis=1)),
        of_domain(MICROSOFT, node("QLinearGlobalAveragePool", ["c", "s", "z", "s", "z"], ["p"])),
    ]
    workload = lowered(nodes, X, SCALES)
    assert [name for name, _ in formats(workload)] == ["add", "memory", "avg_pool2d"]
    assert workload.ops.column("channels")[2] == 16


def attention(op: str, inputs: Mapping[str, Any], weights: Sequence[bytes] = (), **attributes: Any) -> Workload:
    written = of_domain(MICROSOFT, node(op, list(inputs) + ["w"] * len(weights[:1]), ["y"], **attributes))
    return lowered([written], inputs, weights)


def fields_of(workload: Workload, row: int) -> dict[str, float]:
    names = ("batch", "heads", "kv_heads", "head_dim", "query_length")
    return {name: workload.ops.column(name)[row] for name in names}


def test_attention_of_runtimes() -> None:
    heads = {"batch": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "query_length": 10}
    weight = tensor("w", [64, 192])
    packed = attention("Attention", {"x": [2, 10, 64]}, [weight], num_heads=4)
    assert [name for name, _ in formats(packed)] == ["linear", "attention_prefill"]
    assert fields_of(packed, 1) == heads and packed.parameters.tolist() == [64 * 192, 0]
    given = {name: [2, 10, 64] for name in ("q", "k", "v")}
    assert fields_of(attention("MultiHeadAttention", given, num_heads=4), 0) == heads
    nodes = [
        of_domain(
            MICROSOFT,
            node("GroupQueryAttention", ["q", "k", "v", "pk", "pv"], ["y", "nk", "nv"], num_heads=4, kv_num_heads=2),
        ),
        node("Identity", ["nk"], ["kept"]),
    ]
    inputs = {"q": [2, 1, 64], "k": [2, 1, 32], "v": [2, 1, 32], "pk": [2, 2, 33, 16], "pv": [2, 2, 33, 16]}
    grouped = lowered(nodes, inputs, [])
    assert fields_of(grouped, 0) == heads | {"kv_heads": 2, "query_length": 1}
    assert grouped.ops.column("context_length")[0] == 34
    shapes = [item["outputs"] for item in read(model(nodes, inputs, []), {})["nodes"]]
    assert shapes[-1] == [{"shape": [2, 2, 34, 16]}]


def test_fused_operators() -> None:
    nodes = [
        of_domain(MICROSOFT, node("SkipLayerNormalization", ["x", "x", "g"], ["n"])),
        of_domain(MICROSOFT, node("FusedMatMul", ["n", "w"], ["y"], transB=1)),
        node("Einsum", ["y", "y"], ["e"], equation="bmk,bnk->bmn"),
        node("TopK", ["e", "three"], ["top", "at"]),
        node("GatherElements", ["e", "at"], ["z"]),
    ]
    workload = lowered(nodes, ROWS, [tensor("g", [64]), tensor("w", [32, 64]), integers("three", 3)])
    assert [name for name, _ in formats(workload)] == ["add_norm", "linear", "bmm", "memory", "memory"]
    assert [workload.ops.column(name)[2] for name in "bmnk"] == [4, 10, 10, 32]
    assert workload.output_bytes[-1] == 4 * 10 * 3 * 4.0
