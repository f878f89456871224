"""Reads joblib bytes that may be hostile: admits NumPy arrays and plain containers, and runs nothing else."""

from __future__ import annotations

import io
import pickle
import zlib
from typing import Any

import numpy as np
from joblib.numpy_pickle import NumpyArrayWrapper, NumpyUnpickler

MOST_BYTES = 2**30
_ZLIB = b"\x78"
# What a refused or damaged stream can raise; MemoryError by a forged shape.
UNREADABLE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    AssertionError,
    NotImplementedError,
    ImportError,
    RecursionError,
)


class _PlainArray(NumpyArrayWrapper):  # type: ignore[misc]
    """joblib's stand-in for an array, less the nested pickle by which arrays of objects are stored."""

    def read(self, unpickler: Any, ensure_native_byte_order: bool = True) -> Any:
        if not isinstance(self.dtype, np.dtype) or self.dtype.hasobject or self.subclass is not np.ndarray:
            raise pickle.UnpicklingError("an array of Python objects")
        # The class's own method: one that the stream set on the instance is never called.
        return np.asarray(NumpyArrayWrapper.read_array(self, unpickler, ensure_native_byte_order))


def inflated(data: bytes) -> bytes:
    """Compressed bytes as they were, others as they are; UnpicklingError beyond MOST_BYTES, against bombs."""
    if data[:1] != _ZLIB:
        return data
    inflater = zlib.decompressobj()
    try:
        whole = inflater.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise pickle.UnpicklingError(str(error)) from error
    if not inflater.eof:
        raise pickle.UnpicklingError(f"compressed data that is cut off, or of more than {MOST_BYTES} bytes")
    return whole


def _scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    """One NumPy scalar, never one that wraps an object."""
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise pickle.UnpicklingError("a scalar of a Python object")
    return np.frombuffer(data, dtype=dtype)[0]


_ADMITTED = {
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): _PlainArray,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.multiarray", "scalar"): _scalar,
}


class _PlainUnpickler(NumpyUnpickler):  # type: ignore[misc]
    def find_class(self, module: str, name: str) -> Any:
        """Only the names that arrays and their dtypes need."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}") from None


def read_plain(data: bytes) -> Any:
    """What `joblib.dump` wrote, if it is made of arrays and plain containers; one of UNREADABLE otherwise."""
    file = io.BytesIO(data)
    return _PlainUnpickler("", file, ensure_native_byte_order=True).load()
