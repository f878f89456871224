"""Reader of untrusted joblib bytes: admits only NumPy arrays and plain containers, and runs no other code."""

from __future__ import annotations

import io
import pickle
import zlib
from typing import Any

import numpy as np
from joblib.numpy_pickle import NumpyArrayWrapper, NumpyUnpickler

MOST_BYTES = 2**30
_ZLIB = b"\x78"
# Errors that a refused or damaged stream can raise; MemoryError follows from a forged shape.
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
    """joblib's array wrapper without the nested pickle of object arrays."""

    def read(self, unpickler: Any, ensure_native_byte_order: bool = True) -> Any:
        if not isinstance(self.dtype, np.dtype) or self.dtype.hasobject or self.subclass is not np.ndarray:
            raise pickle.UnpicklingError("an array of Python objects")
        # Call the class's method: the stream may have set one on the instance.
        return np.asarray(NumpyArrayWrapper.read_array(self, unpickler, ensure_native_byte_order))


def inflated(data: bytes) -> bytes:
    """Return decompressed bytes, or uncompressed ones unchanged; raises UnpicklingError above MOST_BYTES."""
    if data[:1] != _ZLIB:
        return data
    inflater = zlib.decompressobj()
    try:
        whole = inflater.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise pickle.UnpicklingError(str(error)) from error
    if not inflater.eof:
        raise pickle.UnpicklingError(f"compressed data that is truncated, or of more than {MOST_BYTES} bytes")
    return whole


def _scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    """Return a NumPy scalar; refuses one that wraps an object."""
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
        """Return a class that arrays and dtypes need; refuses all others."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}") from None


def read_plain(data: bytes) -> Any:
    """Return what `joblib.dump` wrote, if it consists of arrays and plain containers; else raises one of UNREADABLE."""
    file = io.BytesIO(data)
    return _PlainUnpickler("", file, ensure_native_byte_order=True).load()
