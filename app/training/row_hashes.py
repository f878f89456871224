"""Hashes of measured operators, by which rows are drawn: a draw does not change when other rows are added."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from app.ops import OP_CODE, OPS
from app.tables.arrays import Ints
from app.tables.measurements import OperatorRuns
from app.tables.ops import OpTable

Hashes = NDArray[np.uint64]


def configurations(runs: OperatorRuns) -> Hashes:
    """Return a hash of every row's configuration, the same for all GPUs and dtypes, uint64 [n].

    A configuration is a layer of a model with any number of tokens, a network with any number of images, or the devices
    and bytes of a collective.
    """
    op = OPS[OP_CODE[runs.op]]
    hashes = hashed(runs.rows.ops, op.configuration) if op.configuration else dimensions(runs)
    if op.pattern is None:
        return hashes
    # By its name, as its position among the operators changes when others are added.
    return mixed(hashes, np.uint64(crc32(runs.op.encode())))


def dimensions(runs: OperatorRuns) -> Hashes:
    """Return a hash of every row's dimensions, uint64 [n]; serving stacks, and layouts of operands, share a fold."""
    layouts = [name for dim in OPS[OP_CODE[runs.op]].dims if dim.feature == "layout" for name in dim.columns]
    return hashed(runs.rows.ops, [name for name in runs.rows.ops.fields if name not in ("stack", *layouts)])


def hashed(table: OpTable, names: Sequence[str]) -> Hashes:
    """Return a hash of the columns `names` of every row, uint64 [n]."""
    hashes = np.zeros(len(table), dtype=np.uint64)
    for name in names:
        column = table.column(name)
        hashes = mixed(np.where(np.isnan(column), -1.0, column + 0.0).view(np.uint64), hashes)
    return hashes


def mixed(values: Hashes, salt: Hashes | np.uint64) -> Hashes:
    """Return a hash of values and salt, uint64 [n]: SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        z = (values ^ salt) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out: Hashes = z ^ (z >> np.uint64(31))
    return out


def fifths(hashes: Hashes) -> Ints:
    """Return which fifth of all hashes each is in, 0 to 4, int [n]."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(5)) >> np.uint64(32)).astype(np.intp)
