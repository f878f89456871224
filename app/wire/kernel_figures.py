"""Figures of kernel launches that follow from the given ones: lane operations, working set, mechanism and launch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.ops.kernel import (
    ACCESS_CODE,
    BYTES_PER_LANE_OPERATION,
    FIELD_INDEX,
    GIVEN,
    IDENTITY_FIELDS,
    LOOP_RATIO,
    LOOPS,
    OPERANDS,
    SERIAL,
)
from app.runtime.compiled import compiled
from app.tables.arrays import Floats

_GIVEN = len(GIVEN)
_FLOPS, _BYTES, _WORKING_SET = (FIELD_INDEX[name] for name in ("flops", "bytes", "working_set_bytes"))
_LANES, _ATOMICS, _ADDRESSES = (
    FIELD_INDEX[name] for name in ("lane_operations", "atomic_operations", "atomic_addresses")
)
_PATTERN, _DIVERGENCE = FIELD_INDEX["access_pattern"], FIELD_INDEX["branch_divergence"]
_MECHANISM, _LAUNCH = FIELD_INDEX["mechanism"], FIELD_INDEX["launch"]
_IDENTITY = np.array([FIELD_INDEX[name] for name in IDENTITY_FIELDS])
_STRIDED = ACCESS_CODE["strided"]
# A float64 holds an integer of so many bits exactly.
_HASH_BITS = np.uint64(52)
# Of MurmurHash3's finalizer, after which every bit depends on every bit before.
_HALF, _FIRST, _SECOND = np.uint64(33), np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def fill_figures(given: bytes, dims: Floats) -> None:
    """Fill `dims`, float64 [fields, n], from the given figures of launches, float64 [n, len(GIVEN)], NaN where absent.

    An absent working set is all bytes; absent lane operations are the FLOPs and the words moved, at least the atomics.
    """
    _fill(np.frombuffer(given), np.frombuffer(given, np.uint64), dims)


@compiled
def _fill(given: Floats, bits: NDArray[np.uint64], dims: Floats) -> None:
    for k in range(dims.shape[1]):
        first = k * _GIVEN
        for field in range(_GIVEN):
            dims[field, k] = given[first + field]
        flops, moved, atomics = _or_zero(dims[_FLOPS, k]), _or_zero(dims[_BYTES, k]), _or_zero(dims[_ATOMICS, k])
        lanes = dims[_LANES, k]
        if np.isnan(lanes):
            lanes = flops + moved / BYTES_PER_LANE_OPERATION
        lanes = max(lanes, atomics, 1.0)
        dims[_LANES, k] = lanes
        if np.isnan(dims[_WORKING_SET, k]):
            dims[_WORKING_SET, k] = moved
        diverges = _or_zero(dims[_DIVERGENCE, k]) > 0.0
        mechanism = OPERANDS
        if flops + moved <= 0.0 or (atomics > 0.0 and dims[_ADDRESSES, k] == 1.0):
            mechanism = SERIAL
        elif lanes > LOOP_RATIO * (1.0 + flops) or dims[_PATTERN, k] == _STRIDED or diverges:
            mechanism = LOOPS
        dims[_MECHANISM, k] = mechanism
        dims[_LAUNCH, k] = _launch(given, bits, first)


@compiled
def _or_zero(figure: float) -> float:
    return 0.0 if np.isnan(figure) else figure


@compiled
def _launch(given: Floats, bits: NDArray[np.uint64], first: int) -> float:
    """Return a hash of the figures that identify a launch, equal for absent ones and zeros."""
    value = np.uint64(0)
    for field in _IDENTITY:
        if abs(given[first + field]) > 0.0:  # False for NaN
            value ^= bits[first + field]
        value = (value ^ (value >> _HALF)) * _FIRST
        value = (value ^ (value >> _HALF)) * _SECOND + np.uint64(field)
    return float(value >> (np.uint64(64) - _HASH_BITS))
