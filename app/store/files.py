"""Files that appear whole or not at all, and objects of arrays in files that processes map into memory.

Mapped files are read in milliseconds, and all processes share one copy.

A file is unpickled without restrictions, so only what this installation wrote is read: caches, never artefacts.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from app.tables.arrays import Bytes, Ints


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write to a temporary file, flush it to disk, rename it into place, flush the folder."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:12]}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# A cache line, and the width of the widest vector.
_ALIGNMENT = 64
_PROTOCOL = 5  # leaves the bytes of arrays to us
_mapped: WeakSet[mmap.mmap] = WeakSet()


def save(path: Path, item: object) -> None:
    """Write a file of an object. Raises OSError."""
    write_whole(path, to_bytes(item).data)


def to_bytes(item: object) -> Bytes:
    """Return the bytes of an object, for `from_bytes`. Arrays that share memory share it there.

    Three parts: the number of arrays, the bytes of the pickle, and where each array begins and ends, int64; the pickle;
    the arrays.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(item, protocol=_PROTOCOL, buffer_callback=buffers.append)
    parts = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
    arrays_at = _aligned(8 * (2 + 2 * len(parts)) + len(pickled))
    begin = arrays_at + _places(parts)
    spans = np.stack([begin, begin + [len(part) for part in parts]], axis=1).astype(np.int64)
    head = np.array([len(parts), len(pickled)], dtype=np.int64).tobytes() + spans.tobytes() + pickled
    whole = np.zeros(max([len(head), *spans[:, 1].tolist()]), dtype=np.uint8)
    whole[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    for part, (first, stop) in zip(parts, spans.tolist(), strict=True):
        whole[first:stop] = part
    return whole


def load(path: Path) -> Any | None:
    """Return the object of a file, None if there is none that can be read.

    Its arrays are mapped writable: compiled code has other types for read-only arrays, and would be compiled again.
    What is written to them stays in this process, and is lost when pages are released.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        _mapped.add(mapped)
        return from_bytes(memoryview(mapped))
    except Exception:  # a cache that cannot be read, for whatever reason, is none
        return None


def from_bytes(whole: memoryview) -> Any:
    """Return the object of such bytes, whose arrays stay where they are."""
    count, size = np.frombuffer(whole, dtype=np.int64, count=2).tolist()
    spans = np.frombuffer(whole, dtype=np.int64, count=2 * count, offset=16).reshape(-1, 2).tolist()
    pickled_at = 8 * (2 + 2 * count)
    return pickle.loads(whole[pickled_at : pickled_at + size], buffers=(whole[first:stop] for first, stop in spans))


def release_pages() -> None:
    """Take the pages of mapped files out of this process's memory: those that are used come back, as in the files."""
    for mapped in list(_mapped):
        mapped.madvise(mmap.MADV_DONTNEED)


def _places(parts: Sequence[Bytes]) -> Ints:
    """Return where each part begins after the first, int [parts]: parts that overlap in memory do so in the file."""
    address = np.array([part.ctypes.data for part in parts], dtype=np.int64)
    place = np.zeros(len(parts), dtype=np.int64)
    shift = covered = free = 0
    for part in np.argsort(address, kind="stable").tolist():
        begin, size = int(address[part]), len(parts[part])
        if begin >= covered:
            shift, covered = _aligned(free) - begin, begin
        place[part] = begin + shift
        covered = max(covered, begin + size)
        free = covered + shift
    return place


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT
