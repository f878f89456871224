"""Tensors of a graph, and the binding of named dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from app.ops.base import MOST, MOST_BYTES
from app.tables.ops import ACTIVATION_DTYPES, DTYPE_BYTES, DTYPE_CODE

# Bytes per element of dtypes that no operator computes in.
INDEX_BYTES = {"int64": 8.0, "int32": 4.0, "int16": 2.0, "uint8": 1.0, "bool": 1.0}
ELEMENT_BYTES: Mapping[str, float] = INDEX_BYTES | {
    name: float(DTYPE_BYTES[DTYPE_CODE[name]]) for name in ACTIVATION_DTYPES
}
TENSOR_DTYPES = (*ACTIVATION_DTYPES, *INDEX_BYTES)
# Exporters' names of the dimensions that a request's batch and sequence bind.
BATCH_NAMES = ("batch", "batch_size", "N", "n")
SEQUENCE_NAMES = ("sequence", "sequence_length", "seq_len", "seq_length", "seq")


class Tensor(NamedTuple):
    """One tensor: its shape, elements and dtype."""

    shape: tuple[int, ...]
    elements: int
    dtype: str

    @property
    def bytes(self) -> float:
        """Size in bytes."""
        return self.elements * ELEMENT_BYTES[self.dtype]

    @property
    def last(self) -> int:
        """Innermost dimension."""
        return self.shape[-1] if self.shape else 1


def bound(shape: Sequence[int | str], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with named dimensions bound; a name may be a product such as 12*batch. Raises ValueError."""
    sizes = tuple([extent(size, dims) if isinstance(size, str) else int(size) for size in shape])
    if sizes and min(sizes) < 1:
        raise ValueError(f"shape {list(sizes)} has no elements")
    if prod(sizes) > MOST_BYTES or (sizes and max(sizes) > MOST):
        raise ValueError(f"shape {list(sizes)} has more than {MOST_BYTES:.0e} elements, or {MOST:.0f} in one dimension")
    return sizes


def extent(text: str, dims: Mapping[str, int]) -> int:
    """Return the size of a named dimension, or of a product of names and numbers."""
    size = 1
    for part in text.split("*"):
        factor = part.strip()
        if factor.isascii() and factor.isdigit() and len(factor) < 16:
            size *= int(factor)
        elif factor in dims:
            size *= dims[factor]
        else:
            raise ValueError(f"dimension {factor[:100]!r} has no size: give it in dims")
    return size


def free_dims(shapes: Sequence[Sequence[int | str]]) -> list[str]:
    """Return the distinct names in shapes."""
    names = (part.strip() for shape in shapes for size in shape if isinstance(size, str) for part in size.split("*"))
    return list(dict.fromkeys(name for name in names if not name.isdigit()))


def binding(dims: Mapping[str, int], batch: int, sequence: int, names: Sequence[str] = ()) -> dict[str, int]:
    """Return sizes of the given names, and of the usual names of batch and sequence.

    `names` are the network's: of several usual names of the batch among them, the first of BATCH_NAMES is it.
    """
    others = [name for name in BATCH_NAMES if name in names][1:]
    usual = {name: dims.get(BATCH_NAMES[0], batch) for name in BATCH_NAMES if name not in others}
    usual |= dict.fromkeys(SEQUENCE_NAMES, dims.get(SEQUENCE_NAMES[0], sequence))
    return {**usual, **dims}
