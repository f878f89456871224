"""Quantised and fused ONNX operators as the plain operators that do the same work, with the format that they run in.

Operators of the domain com.microsoft are those of ONNX Runtime's quantisers and optimisers
(onnxruntime/docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.graphs.importers.onnx.call import Call
from app.graphs.importers.onnx.values import Value
from app.graphs.importers.steps import Step

# JSON graph operators that exist in the formats of quantised products.
_PRODUCTS = ("linear", "bmm", "conv2d", "recurrent", "attention")


class _Plain(NamedTuple):
    """The plain operator, the positions of its inputs, and the format of its products ("": that of its tensors)."""

    op: str
    inputs: Sequence[int]
    dtype: str = ""


_PLAIN: Mapping[str, _Plain] = {
    "ConvInteger": _Plain("Conv", (0, 1), "int8"),
    "QLinearConv": _Plain("Conv", (0, 3), "int8"),
    "MatMulInteger": _Plain("MatMul", (0, 1), "int8"),
    "QLinearMatMul": _Plain("MatMul", (0, 3), "int8"),
    "MatMulIntegerToFloat": _Plain("MatMul", (0, 1), "int8"),
    "DynamicQuantizeMatMul": _Plain("MatMul", (0, 1), "int8"),
    "QGemm": _Plain("Gemm", (0, 3), "int8"),
    "DynamicQuantizeLSTM": _Plain("LSTM", (0, 1, 2), "int8"),
    "QAttention": _Plain("PackedAttention", (0, 1), "int8"),
    "QLinearAdd": _Plain("Add", (0, 3)),
    "QLinearMul": _Plain("Mul", (0, 3)),
    "QLinearSigmoid": _Plain("Sigmoid", (0,)),
    "QLinearLeakyRelu": _Plain("LeakyRelu", (0,)),
    "QLinearSoftmax": _Plain("Softmax", (0,)),
    "QLinearAveragePool": _Plain("AveragePool", (0,)),
    "QLinearGlobalAveragePool": _Plain("GlobalAveragePool", (0,)),
    "FusedConv": _Plain("Conv", (0, 1)),
    "FusedGemm": _Plain("Gemm", (0, 1)),
}
# Operators of com.microsoft whose name ONNX has for another one.
_OWN_NAMES = {"Attention": "PackedAttention"}


def plain(call: Call, domain: str) -> tuple[Call, str]:
    """Return the plain operator of a call, and the format of its products ("": that of its tensors)."""
    if domain == "com.microsoft" and call.op in _OWN_NAMES:
        return call._replace(op=_OWN_NAMES[call.op]), ""
    found = _PLAIN.get(call.op)
    if found is not None:
        inputs = [call.value(index) for index in found.inputs]
        if call.op == "DynamicQuantizeLSTM":  # its weights are [directions, input, gates]
            inputs[1:] = [_turned(value) for value in inputs[1:]]
        return call._replace(op=found.op, inputs=inputs), found.dtype
    if call.op == "QLinearConcat":
        return call._replace(op="Concat", inputs=call.inputs[2::3]), ""
    if call.op in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
        return call, _dequantised(call)
    if call.op == "MatMulNBits":
        return call, "int4_wo" if call.number("bits", 4) == 4 else ""
    return call, ""


def in_format(steps: Sequence[Step], dtype: str) -> list[Step]:
    """Return the steps, with products in a format."""
    if not dtype:
        return list(steps)
    return [
        step._replace(attributes={**step.attributes, "dtype": dtype}) if step.op in _PRODUCTS else step
        for step in steps
    ]


def packed_elements(call: Call) -> float:
    """Return the elements of a weight in each element of its tensor: several where bytes hold a few bits each."""
    return 8.0 / min(max(call.number("bits", 4), 1), 8) if call.op == "MatMulNBits" else 1.0


def quantised_format(value: Value) -> str:
    """Return the format of a quantised tensor; "" for any other."""
    return value.quantised or {"uint8": "int8", "int8": "int8", "fp8": "fp8"}.get(value.dtype, "")


def _dequantised(call: Call) -> str:
    """Return the format in which runtimes run a product of dequantised tensors: that of both, or of 4-bit weights."""
    a, b = call.value(0), call.value(1)
    if a is None or b is None:
        return ""
    if b.quantised == "int4_wo":
        return "" if call.op.startswith("Conv") else "int4_wo"
    return a.quantised if a.quantised == b.quantised else ""


def _turned(value: Value | None) -> Value | None:
    return value and value._replace(shape=(*value.shape[:-2], *value.shape[-2:][::-1]))
