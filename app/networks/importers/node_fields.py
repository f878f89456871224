"""Fields of a graph node: its attributes as columns of the operator, and those that follow from its tensors.

Attributes are the fields of POST /predict's operators, plus `dilation` and a `padding` of [top, left, bottom, right]
for windows, and `causal` for attention. An integer may also be a named dimension, or a product of such. Missing fields
are derived from tensors, given ones are checked by element counts, so that a `linear` may have any number of leading
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from app.networks.importers.tensors import Tensor, extent
from app.ops import OP_CODE, OPS
from app.ops.base import Dim

Fields = dict[str, float]

# Fields that graph nodes do not have: a graph is a forward pass on the device.
_NOT_OF_GRAPHS = ("backward", "burst", "eager")
_DILATION = Dim("dilation", "steps between elements of the window", default=1.0, pair=True)
_CAUSAL = Dim("causal", "whether a query sees only keys up to its own", least=0.0, most=1.0, default=1.0)


class Mistake(Exception):
    """An error in a node: its place in the node, and the reason."""

    def __init__(self, place: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.place, self.message = place, message


def _dims(op: str) -> dict[str, Dim]:
    own = {dim.name: dim for dim in OPS[OP_CODE[op]].dims if dim.name not in _NOT_OF_GRAPHS}
    more = [_DILATION] * ("kernel_size" in own) + [_CAUSAL] * (op == "attention_prefill")
    return own | {dim.name: dim for dim in more}


_DIMS: Mapping[str, Mapping[str, Dim]] = {op.name: _dims(op.name) for op in OPS[1:]}


def read_attributes(op: str, attributes: Mapping[str, Any], sizes: Mapping[str, int]) -> Fields:
    """Return the columns of a node's attributes, without `dtype`; raises Mistake for an unknown or invalid one."""
    fields: Fields = {}
    for name, value in attributes.items():
        if name == "dtype" or value is None:
            continue
        dim = _DIMS[op].get(name)
        if dim is None:
            known = ", ".join((*_DIMS[op], "dtype"))
            raise Mistake(("attributes", name), f"is not an attribute of {op}; its attributes are {known}")
        try:
            fields.update(_columns(dim, value, sizes))
        except ValueError as error:
            raise Mistake(("attributes", name), str(error)) from None
    return fields


def _columns(dim: Dim, value: Any, sizes: Mapping[str, int]) -> Fields:
    if isinstance(value, list):
        figures = [_figure(dim, item, sizes) for item in value]
        if dim.name == "padding" and len(figures) == 4:
            return _uneven(figures)
        if not dim.pair or len(figures) != 2:
            raise ValueError(f"must be one number{' or a pair' * dim.pair}, got {len(figures)} numbers")
        return dict(zip(dim.columns, figures, strict=True))
    return dict.fromkeys(dim.columns, _figure(dim, value, sizes))


def _uneven(padding: list[float]) -> Fields:
    """Return the columns of a padding [top, left, bottom, right]; an odd remainder enlarges the input."""
    sums = {"height": padding[0] + padding[2], "width": padding[1] + padding[3]}
    halves = {f"padding_{side}": total // 2.0 for side, total in sums.items()}
    return halves | {f"uneven_{side}": total % 2.0 for side, total in sums.items() if total % 2.0}


def _figure(dim: Dim, value: Any, sizes: Mapping[str, int]) -> float:
    """Return one number in the field's range, from a number, a named choice, or the name of a dimension."""
    if isinstance(value, str) and (dim.choices or dim.read is not None):
        return _choice(dim, value)
    if isinstance(value, str):
        figure = float(extent(value, sizes))
    elif isinstance(value, int | float) and abs(value) < 1e300:  # True and False are 1 and 0
        figure = float(value)
    else:
        raise ValueError("must be a number")
    if not dim.least <= figure <= dim.most or (dim.whole and figure != figure // 1.0):
        allowed = f"a {'whole ' * dim.whole}number from {dim.least:.15g} to {dim.most:.15g}"
        raise ValueError(f"must be {allowed}, got {figure:.17g}")
    return figure


def _choice(dim: Dim, value: str) -> float:
    if dim.read is not None:
        return dim.read(value)
    if value not in dim.choices:
        raise ValueError(f"invalid value {value[:100]!r}; valid: {', '.join(dim.choices)}")
    return float(dim.choices.index(value))


Tensors = Sequence[Tensor]
Rule = Callable[[Fields, Tensors, Tensors], float]

_BINARY = ("add", "mul", "div", "pow")
_SIDES = ("height", "width")


def completed(op: str, given: Fields, inputs: Tensors, outputs: Tensors) -> tuple[str, float]:
    """Fill in `given` from the tensors, and return the operator's final name and its number of weights.

    Raises Mistake for an inconsistent tensor.
    """
    rule = _RULES.get(op) or (_elementwise if OPS[OP_CODE[op]].fields.keys() >= _OF_ROWS else None)
    if rule is None:
        return op, 0.0
    # Only one operand has the size of the result: the other's traffic is negligible.
    if op in _BINARY and inputs and sum(2 * tensor.elements > outputs[0].elements for tensor in inputs) < 2:
        op = f"{op}_scalar"
    return op, rule(given, inputs, outputs)


def _agree(what: str, elements: float, tensor: Tensor, place: str, index: int = 0) -> None:
    if elements != tensor.elements:
        shape = list(tensor.shape)
        raise Mistake((place, index), f"{what} is {elements:,.15g} elements; shape {shape} has {tensor.elements:,}")


def _listed(given: Mapping[str, float], *names: str) -> str:
    return " x ".join(f"{name} {given[name]:g}" for name in names)


def _linear(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    y = outputs[0]
    n = given.setdefault("n", y.last)
    m = given.setdefault("m", y.elements // n)
    _agree(_listed(given, "m", "n"), m * n, y, "outputs")
    if not inputs:
        return n * given.get("k", 0.0)
    x = inputs[0]
    k = given.setdefault("k", x.last)
    _agree(_listed(given, "m", "k"), m * k, x, "inputs")
    if len(inputs) == 1:
        return n * k
    _agree(_listed(given, "n", "k"), n * k, inputs[1], "inputs", 1)
    return 0.0


def _bmm(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    known_k, y = "k" in given, outputs[0]
    n = given.setdefault("n", y.last)
    m = given.setdefault("m", y.shape[-2] if len(y.shape) > 1 else 1)
    b = given.setdefault("b", y.elements // (m * n))
    _agree(_listed(given, "b", "m", "n"), b * m * n, y, "outputs")
    if inputs:
        k = given.setdefault("k", inputs[0].last)
        _matrices(inputs[0], 0, b, (m, k), flat=known_k)
        if len(inputs) > 1:
            _matrices(inputs[1], 1, b, (k, n), flat=known_k)
    return 0.0


def _matrices(tensor: Tensor, index: int, b: float, sides: tuple[float, float], *, flat: bool) -> None:
    """Check that a tensor holds `b` matrices, transposed or not, or fewer that repeat; `flat` allows any layout."""
    if flat and tensor.elements == b * sides[0] * sides[1]:
        return
    held = (1, *tensor.shape)[-2:]
    if sorted(held) != sorted(sides) or b % prod(tensor.shape[:-2]):
        message = f"must be {b:g} matrices of {sides[0]:g} x {sides[1]:g}; its shape is {list(tensor.shape)}"
        raise Mistake(("inputs", index), message)


def _plane_of(given: Fields, name: str, tensor: Tensor) -> float:
    """Derive height and width from the last two dimensions (of one dimension: height 1), and return their product."""
    shape = tensor.shape
    height = given.setdefault(f"{name}_height", shape[-2] if len(shape) > 3 else 1)
    return height * given.setdefault(f"{name}_width", tensor.last)


def _slid(given: Fields, side: str) -> float:
    """Return the number of window positions along one side, as in PyTorch."""
    kernel = given[f"kernel_size_{side}"]
    stride = given.get(f"stride_{side}", kernel if "channels" in given else 1.0)
    return (given[f"input_size_{side}"] + 2.0 * given.get(f"padding_{side}", 0.0) - kernel) // stride + 1.0


def _windows(given: Fields, channels: float, y: Tensor) -> None:
    """Check that the output has one element per window position."""
    if all(f"kernel_size_{side}" in given for side in _SIDES):
        area = [_slid(given, side) for side in _SIDES]
        what = f"b {given['b']:g} x channels {channels:g} x {area[0]:g} x {area[1]:g}, by the window,"
        _agree(what, given["b"] * channels * prod(area), y, "outputs")


def _images(given: Fields, channels: str, x: Tensor) -> None:
    """Derive images, channels and the plane from a tensor [b, channels, height, width]."""
    shape = x.shape if len(x.shape) > 2 else (1, 1, 1, *x.shape)
    b = given.setdefault("b", shape[0])
    c = given.setdefault(channels, shape[1])
    area = _plane_of(given, "input_size", x)
    _agree(f"b {b:g} x {channels} {c:g} x input_size {area:g}", b * c * area, x, "inputs")


def _plain_window(given: Fields) -> None:
    """Replace dilation and uneven padding by a plain window on another input size, with equal positions and FLOPs.

    A window that is wider than the image takes its padding too.
    """
    for side in _SIDES:
        gap = given.pop(f"dilation_{side}", 1.0) - 1.0
        more = given.pop(f"uneven_{side}", 0.0) - gap * (given.get(f"kernel_size_{side}", 1.0) - 1.0)
        size = given.get(f"input_size_{side}", 0.0) + more
        if size < 1.0 < given.get(f"padding_{side}", 0.0):
            cut = min(given[f"padding_{side}"], (2.0 - size) // 2.0)
            given[f"padding_{side}"] -= cut
            size += 2.0 * cut
        if more:
            given[f"input_size_{side}"] = size


def _conv2d(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    y = outputs[0]
    if inputs:
        _images(given, "in_channels", inputs[0])
    _plain_window(given)
    out = given.setdefault("out_channels", y.shape[1] if len(y.shape) > 2 else y.last)
    if "b" in given and "input_size_height" in given:
        _windows(given, out, y)
    area = given.get("kernel_size_height", 0.0) * given.get("kernel_size_width", 0.0)
    weights = out * given.get("in_channels", 0.0) / given.get("groups", 1.0) * area
    if len(inputs) > 1:
        _agree("weights of out_channels x in_channels / groups x kernel", weights, inputs[1], "inputs", 1)
        return 0.0
    return weights


def _pool(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    if inputs:
        _images(given, "channels", inputs[0])
    _plain_window(given)
    if "b" in given and "input_size_height" in given and "channels" in given:
        _windows(given, given["channels"], outputs[0])
    return 0.0


def _rows(given: Fields, tensor: Tensor, place: str) -> float:
    """Derive a tensor's rows `b` of length `h`, and return the length."""
    if "h" not in given:
        b = given.get("b")
        given["h"] = tensor.last if b is None else tensor.elements // b
    h = given["h"]
    b = given.setdefault("b", tensor.elements // h)
    _agree(_listed(given, "b", "h"), b * h, tensor, place)
    return h


def _normed(parameters: float) -> Rule:
    def rule(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
        h = _rows(given, outputs[0], "outputs")
        if inputs:
            _agree(_listed(given, "b", "h"), given["b"] * h, inputs[0], "inputs")
        return parameters * h if len(inputs) < 2 else 0.0

    return rule


def _batch_norm(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    shape = outputs[0].shape
    given.setdefault("h", shape[1] if len(shape) > 1 else outputs[0].last)
    return _normed(2.0)(given, inputs, outputs)


def _elementwise(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    y = outputs[0]
    _rows(given, y, "outputs")
    for index, tensor in enumerate(inputs):
        if tensor.shape != y.shape and not _broadcasts(tensor.shape, y.shape):
            message = f"shape {list(tensor.shape)} does not broadcast to the output's {list(y.shape)}"
            raise Mistake(("inputs", index), message)
    return 0.0


def _broadcasts(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(into), strict=False)
    return len(shape) <= len(into) and all(size in (1, other) for size, other in pairs)


def _embedding(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    h = _rows(given, outputs[0], "outputs")
    if inputs:
        _agree(f"b {given['b']:g}", given["b"], inputs[0], "inputs")
    return given.get("vocabulary", 0.0) * h if len(inputs) < 2 else 0.0


def _attention(given: Fields, inputs: Tensors, outputs: Tensors) -> float:
    """Queries [batch, heads, query_length, head_dim], keys and values of kv_heads and context_length."""
    if inputs and len(inputs[0].shape) == 4:
        names = ("batch", "heads", "query_length", "head_dim")
        for name, size in zip(names, inputs[0].shape, strict=True):
            given.setdefault(name, size)
        _agree(_listed(given, *names), prod(given[name] for name in names), inputs[0], "inputs")
    if len(inputs) > 1 and len(inputs[1].shape) == 4:
        given.setdefault("kv_heads", inputs[1].shape[1])
        given.setdefault("context_length", inputs[1].shape[2])
        names = ("batch", "kv_heads", "context_length", "head_dim")
        _agree(_listed(given, *names), prod(given[name] for name in names), inputs[1], "inputs", 1)
    if not given.pop("causal", 1.0) and "context_length" in given:
        _all_keys(given)
    return 0.0


def _all_keys(given: Fields) -> None:
    """Express attention without a mask as causal attention with as many pairs, by longer keys or a window."""
    keys = given["context_length"]
    queries = given.setdefault("query_length", keys)
    given["context_length"] = keys + (queries - 1.0) // 2.0
    if given["context_length"] < queries or "window" in given:
        given["context_length"], given["window"] = keys + queries, keys


# Any other operator on rows is as an element-wise one: as large as its output, its inputs broadcast to that.
_OF_ROWS = {"b", "h"}
_RULES: Mapping[str, Rule] = (
    {"linear": _linear, "bmm": _bmm, "conv2d": _conv2d, "max_pool2d": _pool, "avg_pool2d": _pool}
    | {"softmax": _normed(0.0), "layer_norm": _normed(2.0), "rms_norm": _normed(1.0)}
    | dict.fromkeys(("batch_norm", "batch_norm_training"), _batch_norm)
    | {"copy": _normed(0.0), "embedding": _embedding}
    | {"attention_prefill": _attention, "attention_decode": _attention}
)
