"""Shape inference of ONNX operators (onnx.ai/onnx/operators) for known input sizes, and formats of their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from app.networks.importers.onnx.calls import Call, Rule, Shapes, attention_shapes, einsum_shapes, packed_shapes
from app.networks.importers.onnx.layouts import LAYOUTS
from app.networks.importers.onnx.values import MAX_RANK, Shape, ShapeError, axis_of, broadcast
from app.networks.importers.tensors import table


def result_shapes(call: Call) -> Shapes | None:
    """Return the shapes of all outputs; None if the operator or a value it depends on is unknown. Raises ShapeError."""
    rule = _RULES.get(call.op)
    shapes = None if rule is None else rule(call)
    if shapes is None:
        return None
    if any(len(shape) > MAX_RANK for shape in shapes):
        raise ShapeError(0, f"{call.op} would give more than {MAX_RANK} dimensions")
    if any(size < 0 or size > 2**40 for shape in shapes for size in shape):
        raise ShapeError(0, f"{call.op} would give the shape {[list(shape) for shape in shapes][:3]}")
    return shapes + [shapes[-1]] * (call.outputs - len(shapes))


def windows(call: Call, spatial: Sequence[int], kernel: Sequence[int]) -> Shape:
    """Return the number of window positions along each side."""
    n = len(spatial)
    strides, dilations = _sides(call, "strides", n, 1), _sides(call, "dilations", n, 1)
    auto = call.attributes.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return tuple(-(-size // step) for size, step in zip(spatial, strides, strict=True))
    pads = [0] * (2 * n) if auto == "VALID" else _sides(call, "pads", 2 * n, 0)
    positions = []
    for side, size in enumerate(spatial):
        room = size + pads[side] + pads[n + side] - dilations[side] * (kernel[side] - 1) - 1
        if room < 0:
            raise ShapeError(0, f"a window of {list(kernel)} does not fit into {list(spatial)}, padded by {pads}")
        steps = room / strides[side]
        last = ceil(steps) if call.number("ceil_mode", 0) else int(steps)
        positions.append(last + (last * strides[side] < size + pads[side]))  # none starts in the end padding
    return tuple(positions)


def _sides(call: Call, name: str, n: int, default: int) -> list[int]:
    shapes = call.attributes.get(name)
    least = 0 if name == "pads" else 1
    if isinstance(shapes, list) and len(shapes) == n and all(isinstance(v, int) and least <= v < 2**31 for v in shapes):
        return shapes
    if shapes:
        raise ShapeError(0, f"{name} of {call.op} must be {n} whole numbers from {least}")
    return [default] * n


def strides_and_dilations(call: Call, n: int) -> tuple[list[int], list[int]]:
    """Return strides and dilations of a window of `n` sides."""
    return _sides(call, "strides", n, 1), _sides(call, "dilations", n, 1)


def window(call: Call) -> list[int]:
    """Return the window sizes of a convolution (from its weights) or pooling."""
    if call.op.endswith(("Conv", "ConvTranspose")):
        return list(call.shape(1)[2:])
    return _sides(call, "kernel_shape", len(call.shape()) - 2, 1)


def _images(call: Call) -> Shape:
    shape = call.shape()
    if len(shape) < 3:
        raise ShapeError(0, f"{call.op} needs a tensor of images, [batch, channels, ...]; its shape is {list(shape)}")
    return shape


def _conv(call: Call) -> Shapes:
    shape, weight = _images(call), call.shape(1)
    if len(weight) != len(shape) or shape[1] != weight[1] * call.number("group", 1):
        words = f"weights {list(weight)} in {call.number('group', 1)} groups do not fit an input of {list(shape)}"
        raise ShapeError(1, words)
    return [(shape[0], weight[0], *windows(call, shape[2:], weight[2:]))]


def _conv_transpose(call: Call) -> Shapes:
    shape, weight, n = _images(call), call.shape(1), len(call.shape()) - 2
    if len(weight) != len(shape) or shape[1] != weight[0]:
        raise ShapeError(1, f"weights {list(weight)} do not fit an input of {list(shape)}")
    strides, dilations = strides_and_dilations(call, n)
    if isinstance(call.attributes.get("output_shape"), list):
        return [(shape[0], weight[1] * call.number("group", 1), *call.attributes["output_shape"][-n:])]
    if str(call.attributes.get("auto_pad", "")).startswith("SAME"):
        grown = (size * step for size, step in zip(shape[2:], strides, strict=True))
        return [(shape[0], weight[1] * call.number("group", 1), *grown)]
    pads, more = _sides(call, "pads", 2 * n, 0), call.attributes.get("output_padding") or [0] * n
    sides = [
        (size - 1) * strides[k] + int(more[k]) + dilations[k] * (weight[2 + k] - 1) + 1 - pads[k] - pads[n + k]
        for k, size in enumerate(shape[2:])
    ]
    return [(shape[0], weight[1] * call.number("group", 1), *sides)]


def _pool(call: Call) -> Shapes:
    shape = _images(call)
    return [(*shape[:2], *windows(call, shape[2:], window(call)))]


def _global_pool(call: Call) -> Shapes:
    shape = _images(call)
    return [(*shape[:2], *[1] * (len(shape) - 2))]


def _gemm(call: Call) -> Shapes:
    a, b = call.shape(0), call.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(0 if len(a) != 2 else 1, "Gemm takes matrices")
    a, b = a[:: -1 if call.number("transA", 0) else 1], b[:: -1 if call.number("transB", 0) else 1]
    if a[1] != b[0]:
        raise ShapeError(1, f"the first has {a[1]} columns, this one {b[0]} rows")
    return [(a[0], b[1])]


def _matmul(call: Call) -> Shapes:
    a, b = call.shape(0), call.shape(1)
    if not a or not b:
        raise ShapeError(0 if not a else 1, "MatMul takes no scalars")
    left, right = (1, *a)[-2:], (*b, 1)[:2] if len(b) == 1 else b[-2:]
    if left[1] != right[0]:
        raise ShapeError(
            1, f"shape {list(b)} has {right[0]} rows where the first input, {list(a)}, has {left[1]} columns"
        )
    ends = ([left[0]] if len(a) > 1 else []) + ([right[1]] if len(b) > 1 else [])
    return [(*broadcast([a[:-2], b[:-2]]), *ends)]


def _blocks(call: Call) -> Shapes:
    b, c, h, w = (*_images(call), 1)[:4]
    size = max(call.number("blocksize", 1), 1)
    if call.op == "DepthToSpace":
        return [(b, c // size**2, h * size, w * size)]
    return [(b, c * size**2, h // size, w // size)]


def _recurrent(call: Call) -> Shapes:
    steps, batch = call.shape()[:2]
    hidden, directions = call.shape(2)[-1], call.shape(1)[0]
    state = (directions, batch, hidden)
    return [(steps, directions, batch, hidden), state, state]


def _same(call: Call) -> Shapes:
    return [call.shape()]


def _normalised(call: Call) -> Shapes:
    """Return the shapes of the result and of its statistics, per channel or per row."""
    shape = call.shape()
    if call.op == "BatchNormalization":
        return [shape, shape[1:2]]
    axis = axis_of(call.number("axis", -1), len(shape))
    return [shape, (*shape[:axis], *[1] * (len(shape) - axis))]


def _elementwise(call: Call) -> Shapes:
    return [broadcast([value.shape for value in call.inputs if value is not None])] if any(call.inputs) else [()]


def _stft(call: Call) -> Shapes | None:
    """Return [batch, frames, bins, real and imaginary] of a signal [batch, samples(, 1 or 2)]."""
    shape, step, window = call.shape(), call.integers(1, ""), call.value(2)
    length = [window.elements] if window is not None else call.integers(3, "")
    if not step or not length or len(shape) < 2 or step[0] < 1 or length[0] < 1:
        return None
    if shape[1] < length[0]:
        raise ShapeError(0, f"a window of {length[0]} does not fit into {list(shape)}")
    bins = length[0] // 2 + 1 if call.number("onesided", 1) else length[0]
    return [(shape[0], (shape[1] - length[0]) // step[0] + 1, bins, 2)]


def _dft(call: Call) -> Shapes | None:
    """Return the shape of a transform along one axis; the last dimension is real and imaginary."""
    shape, axis = list(call.shape()), call.number("axis", 1 if call.opset < 20 else -2)
    given, length = call.integers(2, ""), call.integers(1, "")
    if call.value(1) is not None and not length:
        return None
    at = axis_of(given[0] if given else axis, len(shape))
    size = length[0] if length else shape[at]
    shape[at] = size // 2 + 1 if call.number("onesided", 0) else size
    return [(*shape[:-1], 2)]


def _dynamically_quantised(call: Call) -> Shapes:
    """Return the shapes of the values, of their scale and of their zero point."""
    return [call.shape(), (), ()]


def _blockwise(call: Call) -> Shapes:
    """Return the shape of a product with weights in blocks of a few bits, whose sizes are attributes."""
    shape, k, n = call.shape(), call.number("K", 0), call.number("N", 0)
    if not shape or shape[-1] != k or n < 1:
        raise ShapeError(0, f"shape {list(shape)} does not have K = {k} columns")
    return [(*shape[:-1], n)]


def _fused_matmul(call: Call) -> Shapes:
    """Return the shape of a product of matrices that may be transposed."""
    inputs = [
        value._replace(shape=(*value.shape[:-2], value.shape[-1], value.shape[-2]))
        if value is not None and call.number(name, 0) and len(value.shape) > 1
        else value
        for value, name in zip(call.inputs[:2], ("transA", "transB"), strict=True)
    ]
    return _matmul(call._replace(inputs=inputs))


def _sampled(call: Call) -> Shapes:
    """Return the shape of images sampled at a grid [batch, positions ..., coordinates]."""
    return [(*call.shape()[:2], *call.shape(1)[1:-1])]


def _regions(call: Call) -> Shapes:
    """Return the shape of windows cut out of images, one per row of the second input."""
    sides = [call.number(name, 1) for name in ("output_height", "output_width")]
    return [(call.shape(1)[0], call.shape()[1], *sides)]


_RULES: Mapping[str, Rule] = (
    dict(LAYOUTS)
    | dict.fromkeys(table("onnx_like_all_inputs"), _elementwise)
    | dict.fromkeys(table("onnx_like_the_first"), _same)
    | dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent)
    | dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool)
    | dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool)
    | dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention"), attention_shapes)
    | dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks)
    | {"Conv": _conv, "DeformConv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul}
    | {"FusedMatMul": _fused_matmul, "MatMulNBits": _blockwise, "Einsum": einsum_shapes}
    | {"PackedAttention": packed_shapes, "DynamicQuantizeLinear": _dynamically_quantised}
    | {"GridSample": _sampled, "RoiAlign": _regions}
    | {"LayerNormalization": _normalised, "BatchNormalization": _normalised, "STFT": _stft, "DFT": _dft}
)


_CAST = {1: "fp32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64"}
_CAST |= {16: "bf16", 17: "fp8", 19: "fp8"}
_FIXED: Mapping[str, list[str]] = table("onnx_results")
_LIKE: Mapping[str, int] = table("onnx_result_as_input")


def result_dtypes(call: Call, first: str) -> list[str]:
    """Return the format of each output; `first` is that of the first input."""
    dtypes = _FIXED.get(call.op) or [_one(call, first)]
    if call.op in ("TopK", "MaxPool", "Unique"):
        dtypes = [*dtypes, "int64"]
    return [*dtypes, *dtypes[-1:] * call.outputs][: call.outputs]


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
