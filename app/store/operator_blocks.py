"""Blocks of measured operators in columns, with contexts that rows share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.tables.arrays import Bytes, Floats, Ints

ID_BYTES = 16
# Missing time, in microseconds since 1970.
NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Context:
    """Attributes shared by rows.

    fields  columns of the operator that the rows store; the others have their defaults
    kernel  device function with the largest share of the time
    """

    op: str
    dtype: str
    fields: tuple[str, ...]
    gpu_id: str
    software: str
    source: str
    kernel: str | None

    def digest(self) -> bytes:
        """Return a digest of 16 bytes."""
        content = [self.op, self.dtype, self.fields, self.gpu_id, self.software, self.source, self.kernel]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class OperatorBlock:
    """n measured rows of one operator and dtype with the same fields; absent figures are NaN.

    contexts     contexts of equal op, dtype and fields
    context      int [n], code into `contexts`
    dims         float64 [fields, n]
    latency_s, latency_std_s, runs, clock_hz, power_w   float64 [n]
    measured_at  int64 [n], microseconds since 1970, or NO_TIME
    grid, block  float64 [3, n], blocks of the grid and threads of a block in x, y and z
    """

    contexts: tuple[Context, ...]
    context: Ints
    dims: Floats
    latency_s: Floats
    latency_std_s: Floats
    runs: Floats
    clock_hz: Floats
    power_w: Floats
    measured_at: NDArray[np.int64]
    grid: Floats
    block: Floats

    def __len__(self) -> int:
        return len(self.latency_s)

    def take(self, rows: Ints) -> OperatorBlock:
        """Return the given rows."""
        dims, context = np.take(self.dims, rows, axis=1), self.context[rows]
        return replace(self, context=context, dims=dims, **figures_of(self, rows))

    def compact(self) -> OperatorBlock:
        """Return the rows with read-only figures that take no memory where no row has them: of most, 9 of 12."""
        nothing: dict[str, Any] = {}
        for name in FIGURES:
            values: NDArray[Any] = getattr(self, name)
            if (values == NO_TIME if name == "measured_at" else np.isnan(values)).all():
                nothing[name] = np.broadcast_to(values[..., :1].copy(), values.shape)
        return replace(self, **nothing)


# Figures of a measured row besides those of its operator: one number, or three of a launch.
FIGURES = ("latency_s", "latency_std_s", "runs", "clock_hz", "power_w", "measured_at", "grid", "block")


def figures_of(measured: object, rows: Ints) -> dict[str, Any]:
    """Return FIGURES of the given rows, by name."""
    return {name: _taken(getattr(measured, name), rows) for name in FIGURES}


def _taken(figures: NDArray[Any], rows: Ints) -> NDArray[Any]:
    """Return the figures of the given rows; absent ones take no memory, if they took none before."""
    if figures.size and not figures.strides[-1]:
        return np.broadcast_to(figures[..., :1], (*figures.shape[:-1], len(rows)))
    return np.take(figures, rows, axis=-1)


def concatenate(blocks: Sequence[OperatorBlock]) -> OperatorBlock:
    """Return the rows of blocks of one operator and dtype with the same fields, and the contexts that they have."""
    codes: dict[Context, int] = {}
    columns = [_coded(block, codes) for block in blocks]
    figures = [np.concatenate([getattr(block, name) for block in blocks], axis=-1) for name in ("dims", *FIGURES)]
    return OperatorBlock(tuple(codes), np.concatenate(columns), *figures)


def _coded(block: OperatorBlock, codes: dict[Context, int]) -> Ints:
    """Return the code of each row's context in `codes`, to which missing ones are added."""
    used = np.unique(block.context)
    code = np.zeros(len(block.contexts), dtype=np.intp)
    code[used] = [codes.setdefault(block.contexts[k], len(codes)) for k in used.tolist()]
    coded: Ints = code[block.context]
    return coded


def identities(block: OperatorBlock) -> Bytes:
    """Return the identity of every row, uint8 [n, 16]: BLAKE2b of its context, dimensions, time and date.

    Number of runs, spread and power are not part of the identity.
    """
    if not len(block):
        return np.empty((0, ID_BYTES), dtype=np.uint8)
    digests = np.frombuffer(b"".join(item.digest() for item in block.contexts), dtype=np.uint8)
    figures = np.vstack([block.latency_s, block.dims, block.clock_hz, block.grid, block.block])
    figures = np.where(np.isnan(figures), np.nan, figures + 0.0)  # one NaN, and no negative zero
    content = np.hstack(
        [
            digests.reshape(-1, ID_BYTES)[block.context],
            _as_bytes(figures.T, "<f8"),
            _as_bytes(block.measured_at[:, None], "<i8"),
        ]
    )
    width, every = content.shape[1], memoryview(content.tobytes())
    hashed = b"".join(
        hashlib.blake2b(every[at : at + width], digest_size=ID_BYTES).digest() for at in range(0, len(every), width)
    )
    return np.frombuffer(hashed, dtype=np.uint8).reshape(-1, ID_BYTES)


def _as_bytes(figures: NDArray[np.float64] | NDArray[np.int64], kind: str) -> Bytes:
    return np.ascontiguousarray(figures, dtype=kind).view(np.uint8).reshape(len(figures), -1)
