"""Formats of the outputs of ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping

from app.graphs.importers.onnx.call import Call

_BOOLS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf")
_CAST = {1: "fp32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64"}
_CAST |= {16: "bf16", 17: "fp8", 19: "fp8"}
_FIXED: Mapping[str, tuple[str, ...]] = dict.fromkeys(_BOOLS, ("bool",)) | {
    "ArgMax": ("int64",),
    "ArgMin": ("int64",),
    "NonZero": ("int64",),
    "NonMaxSuppression": ("int64",),
    "ConvInteger": ("int32",),
    "MatMulInteger": ("int32",),
    "DynamicQuantizeLinear": ("uint8", "fp32", "uint8"),
}
# Positions of the input that has the output's format, where that is not the first.
_LIKE = {
    "Where": 1,
    "CastLike": 1,
    "OneHot": 2,
    "DequantizeLinear": 1,
    "QuantizeLinear": 2,
    "QLinearConv": 7,
    "QLinearMatMul": 7,
    "QGemm": 8,
    "MatMulIntegerToFloat": 2,
    "QAttention": 3,
}


def result_dtypes(call: Call, first: str) -> list[str]:
    """Return the format of each output; `first` is that of the first input."""
    found = _FIXED.get(call.op) or (_one(call, first),)
    if call.op in ("TopK", "MaxPool", "Unique"):
        found = (*found, "int64")
    return [*found, *found[-1:] * call.outputs][: call.outputs]


def _one(call: Call, first: str) -> str:
    if call.op == "Cast":
        return _CAST.get(call.number("to", 1), first)
    like = _LIKE.get(call.op)
    if like is None:
        return first
    value = call.value(like)
    if value is not None:
        return value.dtype
    if call.op == "QuantizeLinear":
        return _CAST.get(call.number("output_dtype", 2), "uint8")
    return "fp32" if call.op == "QGemm" else first
