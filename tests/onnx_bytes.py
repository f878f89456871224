"""ONNX files byte by byte, for tests: the Protocol Buffers that an exporter would write, and those that none would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

FLOAT, UINT8, INT8, INT64, INT4 = 1, 2, 3, 7, 22


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, shape: Sequence[int], data: bytes | None = None, kind: int = FLOAT) -> bytes:
    """With zeros for data unless given; b"" leaves them out, as a file with external data does."""
    size = {FLOAT: 4, INT64: 8}.get(kind, 1)
    for side in shape:
        size *= side
    raw = field(9, bytes(size) if data is None else data) if data != b"" else field(14, 1)
    return b"".join(field(1, side) for side in shape) + field(2, kind) + field(8, name) + raw


def integers(name: str, *values: int) -> bytes:
    return tensor(name, [len(values)], struct.pack(f"<{len(values)}q", *values), INT64)


def value(name: str, shape: Sequence[int | str], kind: int = FLOAT) -> bytes:
    dims = b"".join(field(1, field(1 if isinstance(side, int) else 2, side)) for side in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, dims)))


def attribute(name: str, given: int | float | str | list[int] | bytes) -> bytes:
    if isinstance(given, bytes):
        return field(1, name) + field(6, given)
    if isinstance(given, list):
        return field(1, name) + b"".join(field(8, item) for item in given)
    if isinstance(given, float):
        return field(1, name) + varint(2 << 3 | 5) + struct.pack("<f", given)
    return field(1, name) + (field(4, given) if isinstance(given, str) else field(3, given))


def subgraph(nodes: Sequence[bytes], inputs: Sequence[str], outputs: Sequence[str], *weights: bytes) -> bytes:
    """A graph within a graph: a branch, or a body."""
    graph = (
        b"".join(field(1, each) for each in nodes) + field(2, "inner") + b"".join(field(5, each) for each in weights)
    )
    given = b"".join(field(11, field(1, name)) for name in inputs)
    return graph + given + b"".join(field(12, field(1, name)) for name in outputs)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> bytes:
    named = b"".join(field(5, attribute(name, given)) for name, given in attributes.items())
    return (
        b"".join(field(1, name) for name in inputs)
        + b"".join(field(2, name) for name in outputs)
        + field(4, op)
        + named
    )


def model(
    nodes: Sequence[bytes],
    inputs: Mapping[str, Sequence[int | str]],
    weights: Sequence[bytes] = (),
    opset: int = 17,
    functions: Sequence[bytes] = (),
) -> bytes:
    graph = b"".join(field(1, each) for each in nodes) + field(2, "net") + b"".join(field(5, each) for each in weights)
    graph += b"".join(field(11, value(name, shape)) for name, shape in inputs.items())
    return field(1, 8) + field(7, graph) + field(8, field(2, opset)) + b"".join(field(25, each) for each in functions)


def function(name: str, inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[bytes]) -> bytes:
    """An operator of the domain "own" that the file defines."""
    parts = [field(4, each) for each in inputs] + [field(5, each) for each in outputs]
    return field(1, name) + b"".join(parts) + b"".join(field(7, each) for each in nodes) + field(10, "own")


def referring(name: str, source: str) -> bytes:
    """An attribute of a node in a function, which is the function's own one."""
    return field(5, field(1, name) + field(21, source))


def of_domain(domain: str, node_: bytes) -> bytes:
    return node_ + field(7, domain)


def perceptron(batch: int | str = "batch") -> bytes:
    """Flatten, two layers with biases, softmax: 784 x 512 + 512 + 512 x 10 + 10 weights."""
    nodes = [
        node("Flatten", ["x"], ["flat"]),
        node("Gemm", ["flat", "w1", "b1"], ["hidden"], transB=1),
        node("Relu", ["hidden"], ["act"]),
        node("Gemm", ["act", "w2", "b2"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["p"], axis=-1),
    ]
    weights = [tensor("w1", [512, 784]), tensor("b1", [512]), tensor("w2", [10, 512]), tensor("b2", [10])]
    return model(nodes, {"x": [batch, 1, 28, 28]}, weights)
