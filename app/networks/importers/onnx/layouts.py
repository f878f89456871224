"""Output shapes of ONNX operators that rearrange, repeat, select or reduce elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from app.networks.importers.onnx.calls import Call, Rule, Shapes
from app.networks.importers.onnx.values import ShapeError, axis_of, broadcast


def _reshape(call: Call) -> Shapes | None:
    target, shape = call.integers(1, "shape"), call.shape()
    if target is None:
        return None
    keep = not call.number("allowzero", 0)
    sizes = [shape[k] if size == 0 and keep and k < len(shape) else size for k, size in enumerate(target)]
    known, elements = prod(size for size in sizes if size != -1), prod(shape)
    if sizes.count(-1) == 1 and known and elements % known == 0:
        sizes[sizes.index(-1)] = elements // known
    if min(sizes, default=0) < 0 or prod(sizes) != elements:
        raise ShapeError(0, f"shape {list(shape)} cannot be {target}")
    return [tuple(sizes)]


def _flatten(call: Call) -> Shapes:
    shape = call.shape()
    axis = call.number("axis", 1)
    axis = axis + len(shape) if axis < 0 else min(axis, len(shape))
    return [(prod(shape[:axis]), prod(shape[axis:]))]


def _squeeze(call: Call) -> Shapes:
    shape, axes = call.shape(), call.integers(1, "axes")
    gone = {axis_of(axis, len(shape)) for axis in axes} if axes is not None else None
    return [tuple(size for k, size in enumerate(shape) if not (size == 1 if gone is None else k in gone))]


def _unsqueeze(call: Call) -> Shapes | None:
    shape, axes = call.shape(), call.integers(1, "axes")
    if axes is None:
        return None
    rank = len(shape) + len(axes)
    new, rest = {axis_of(axis, rank) for axis in axes}, iter(shape)
    if len(new) != len(axes):
        raise ShapeError(1, f"axes {axes} name one twice")
    return [tuple(1 if k in new else next(rest) for k in range(rank))]


def _transpose(call: Call) -> Shapes:
    shape = call.shape()
    order = call.attributes.get("perm") or list(range(len(shape)))[::-1]
    if sorted(order) != list(range(len(shape))):
        raise ShapeError(0, f"perm {order} of a tensor of {len(shape)} dimensions")
    return [tuple(shape[k] for k in order)]


def _concat(call: Call) -> Shapes:
    shape = call.shape()
    axis = axis_of(call.number("axis", 0), len(shape))
    total = 0
    for index in range(len(call.inputs)):
        other = call.shape(index)
        if len(other) != len(shape) or any(
            k != axis and a != b for k, (a, b) in enumerate(zip(shape, other, strict=True))
        ):
            raise ShapeError(index, f"shape {list(other)} cannot be concatenated with {list(shape)} along axis {axis}")
        total += other[axis]
    return [(*shape[:axis], total, *shape[axis + 1 :])]


def _split(call: Call) -> Shapes | None:
    shape = call.shape()
    axis = axis_of(call.number("axis", 0), len(shape))
    parts = call.integers(1, "split")
    if parts is None:
        each = -(-shape[axis] // call.outputs)
        parts = [min(each, shape[axis] - k * each) for k in range(call.outputs)]
    if sum(parts) != shape[axis] or len(parts) != call.outputs:
        raise ShapeError(0, f"{shape[axis]} along axis {axis} cannot be split into {parts[:20]}")
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _slice(call: Call) -> Shapes | None:
    shape = list(call.shape())
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    if starts is None or ends is None or len(starts) != len(ends):
        return None
    axes = call.integers(3, "axes") or list(range(len(starts)))
    steps = call.integers(4, "steps") or [1] * len(starts)
    if len(axes) != len(starts) or len(steps) != len(starts) or 0 in steps:
        raise ShapeError(3, "axes and steps must be as many as starts, steps not 0")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = axis_of(axis, len(shape))
        stop = None if step < 0 and end < -shape[at] else end
        shape[at] = len(range(shape[at])[slice(start, stop, step)])
    return [tuple(shape)]


def _gather(call: Call) -> Shapes:
    shape, indices = call.shape(0), call.shape(1)
    axis = axis_of(call.number("axis", 0), len(shape))
    return [(*shape[:axis], *indices, *shape[axis + 1 :])]


def _expand(call: Call) -> Shapes | None:
    target = call.integers(1, "shape")
    return None if target is None else [broadcast([call.shape(), tuple(target)])]


def _reduce(call: Call) -> Shapes | None:
    shape, axes = call.shape(), call.integers(1, "axes")
    if call.op.startswith("Arg"):
        axes = [call.number("axis", 0)]
    if axes is None and call.value(1) is not None:
        return None
    if axes is None or not (axes or call.number("noop_with_empty_axes", 0)):
        axes = list(range(len(shape)))
    gone = {axis_of(axis, len(shape)) for axis in axes}
    keep = call.number("keepdims", 1)
    return [tuple(1 if k in gone else size for k, size in enumerate(shape) if keep or k not in gone)]


def _pad(call: Call) -> Shapes | None:
    shape, pads = call.shape(), call.integers(1, "pads")
    axes = call.integers(3, "axes") or list(range(len(shape)))
    if pads is None or len(pads) != 2 * len(axes):
        return None
    sizes = list(shape)
    for k, axis in enumerate(axes):
        sizes[axis_of(axis, len(shape))] += pads[k] + pads[len(axes) + k]
    return [tuple(sizes)]


def _tile(call: Call) -> Shapes | None:
    shape, times = call.shape(), call.integers(1, "repeats")
    return (
        None if times is None or len(times) != len(shape) else [tuple(a * b for a, b in zip(shape, times, strict=True))]
    )


def _resize(call: Call) -> Shapes | None:
    shape = call.shape()
    sizes = call.integers(3, "sizes")
    if sizes is not None and len(sizes) == len(shape):
        return [tuple(sizes)]
    held = call.value(2 if call.op == "Resize" and len(call.inputs) > 2 else 1)
    scales = call.attributes.get("scales") if held is None or held.data is None else held.data.reshape(-1).tolist()
    if not isinstance(scales, list) or len(scales) != len(shape):
        return None
    return [tuple(int(size * scale) for size, scale in zip(shape, scales, strict=True))]


def _filled(call: Call) -> Shapes | None:
    target = call.integers(0, "shape")
    return None if target is None else [tuple(target)]


def _range(call: Call) -> Shapes | None:
    parts = [value.data for value in call.inputs if value is not None and value.data is not None]
    if len(parts) != 3 or not parts[2].item():
        return None
    start, end, step = (part.item() for part in parts)
    return [(max(ceil((end - start) / step), 0),)]


def _gather_elements(call: Call) -> Shapes:
    return [call.shape(1)]


def _gather_nd(call: Call) -> Shapes:
    shape, indices, batch = call.shape(), call.shape(1), call.number("batch_dims", 0)
    if not indices or batch + indices[-1] > len(shape):
        raise ShapeError(1, f"indices {list(indices)} select from a tensor of {len(shape)} dimensions")
    return [(*indices[:-1], *shape[batch + indices[-1] :])]


def _top(call: Call) -> Shapes | None:
    """Return the shapes of the values and of their positions."""
    shape, count = call.shape(), call.integers(1, "") or [call.number("k", 0)]
    if count[0] < 1:
        return None
    axis = axis_of(call.number("axis", -1), len(shape))
    return [(*shape[:axis], count[0], *shape[axis + 1 :])] * 2


def _one_hot(call: Call) -> Shapes | None:
    shape, depth = call.shape(), call.integers(1, "")
    if not depth:
        return None
    axis = axis_of(call.number("axis", -1), len(shape) + 1)
    return [(*shape[:axis], depth[0], *shape[axis:])]


def _folded_patches(call: Call) -> Shapes | None:
    """Return the shape of images that patches are added up to."""
    (batch, rows, _), sides, block = call.shape(), call.integers(1, ""), call.integers(2, "")
    return [(batch, rows // prod(block), *sides)] if sides and block and min(block) > 0 else None


def _drawn(call: Call) -> Shapes | None:
    """Return the shape of random numbers, an attribute."""
    shape = call.attributes.get("shape")
    return [tuple(shape)] if isinstance(shape, list) else None


_REDUCTIONS = """
ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare
"""
LAYOUTS: Mapping[str, Rule] = (
    dict.fromkeys(_REDUCTIONS.split(), _reduce)
    | dict.fromkeys(("Resize", "Upsample"), _resize)
    | {"Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Concat": _concat}
    | {"Split": _split, "Slice": _slice, "Gather": _gather, "Expand": _expand, "Pad": _pad, "Tile": _tile}
    | {"Transpose": _transpose, "ConstantOfShape": _filled, "Range": _range, "TopK": _top, "OneHot": _one_hot}
    | {"GatherElements": _gather_elements, "GatherND": _gather_nd, "Col2Im": _folded_patches}
    | dict.fromkeys(("RandomNormal", "RandomUniform"), _drawn)
)
