"""Sums of oblivious trees for blocks of rows, on byte indices and half-precision leaves.

A model has few thresholds per feature. So each feature of a row is first replaced by its place, the number of
thresholds that it exceeds, and a tree's level compares the place: a byte, of which a vector holds four times as many as
of singles. Leaves are stored as halves, which takes half of the memory, and are widened a few trees at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.runtime.compiled import COMPILES, compiled
from app.tables.arrays import Bytes, Floats, Halves, Ints, Shorts, Singles

Words = NDArray[np.uint32]

DEPTH = 6
LEAVES = 1 << DEPTH
# Rows of a block; not a power of two, whose columns would map to few sets of the L1 cache.
BLOCK = 544
# Fewest rows for which a block is faster than row by row; trees, and thresholds, that are processed together.
_FEW, _TREES, _THRESHOLDS = 4, 4, 8
# Unit of a half's fraction, by its sign and exponent.
_UNIT = np.array([sign * 2.0 ** (max(exponent, 1) - 25) for sign in (1, -1) for exponent in range(32)], np.float32)


class TreeArrays(NamedTuple):
    """Trees as compiled sums read them.

    feature          int16 [trees, DEPTH], row of the features that a level compares
    level_threshold  uint8 [trees, DEPTH], as in Questions
    half             uint16 [trees, LEAVES], bits of the leaves in half precision
    """

    feature: Shorts
    level_threshold: Bytes
    half: NDArray[np.uint16]


class Thresholds(NamedTuple):
    """Thresholds of one model: `threshold` float32 [thresholds] and `begin` int [columns + 1], as in Questions."""

    threshold: Singles
    begin: Ints


class Questions(NamedTuple):
    """Comparisons of trees, as indices into sorted thresholds.

    level_threshold  uint8 [trees, DEPTH], index among the feature's thresholds; right if the feature exceeds more
    threshold        float32 [thresholds], sorted within each feature, one feature after another
    begin            int [columns + 1], where the thresholds of each feature begin
    """

    level_threshold: Bytes
    threshold: Singles
    begin: Ints


def questions_of(feature: Shorts, threshold: Singles, columns: int) -> Questions:
    """Return the comparisons of trees, given `feature` and `threshold` [trees, DEPTH] over `columns` features.

    Raises ValueError if a feature has more than 255 thresholds.
    """
    of, at = feature.ravel(), threshold.ravel()
    # One whole number of both, in their order, is sorted in half of the time.
    bits = (at + np.float32(0.0)).view(np.int32)
    key = (of.astype(np.int64) << 32) + np.where(bits < 0, bits ^ np.iinfo(np.int32).max, bits)
    order = np.argsort(key)
    of, at, key = of[order], at[order], key[order]
    new = np.ones(len(of), dtype=np.bool_)
    new[1:] = key[1:] != key[:-1]
    begin = np.searchsorted(of[new], np.arange(columns + 1)).astype(np.intp)
    if len(of) and np.diff(begin).max() > np.iinfo(np.uint8).max:
        raise ValueError("trees have more thresholds of a feature than a byte counts")
    level_threshold = np.empty(len(of), dtype=np.uint8)
    level_threshold[order] = np.cumsum(new) - 1 - begin[of]
    return Questions(level_threshold.reshape(feature.shape), at[new], begin)


@compiled
def add_trees(
    features: Singles,
    trees: TreeArrays,
    thresholds: Thresholds,
    span: tuple[int, int],
    weight: float,
    total: Floats,
) -> None:
    """Add `weight` times trees span[0] ... span[1] - 1 to total [m], m <= BLOCK, for features [columns, m]."""
    if span[0] == span[1]:
        return
    feature, level_threshold, half = trees
    m, rest_from = len(total), span[1] - (span[1] - span[0]) % _TREES
    place = np.empty((len(thresholds.begin) - 1, m), dtype=np.uint8)
    if m < _FEW:
        for k in range(m):
            _find_places(features, k, thresholds, place)
            alone, some = np.float32(0.0), np.float32(0.0)
            for tree in range(span[0], span[1]):
                some += _single(half[tree, _leaf(place, k, feature[tree], level_threshold[tree])])
                if tree >= rest_from or (tree - span[0]) % _TREES == _TREES - 1:  # in the order of the sums below
                    alone, some = alone + some, np.float32(0.0)
            total[k] += weight * alone
        return
    _fill_places(features, thresholds, place)
    leaf, value = np.empty((_TREES, m), dtype=np.uint8), np.empty((_TREES, LEAVES), dtype=np.float32)
    bits, least = np.empty(LEAVES, dtype=np.uint32), np.empty(LEAVES, dtype=np.uint32)
    whole, taken, summed = bits.view(np.float32), least.view(np.float32), np.zeros(m, dtype=np.float32)
    for tree in range(span[0], rest_from, _TREES):
        for k in range(_TREES):
            _fill_leaves(place, feature[tree + k], level_threshold[tree + k], leaf[k])
            _fill_bits(half[tree + k], bits, least)
            _fill_difference(whole, taken, value[k])
        of_a, of_b, of_c, of_d = leaf[0], leaf[1], leaf[2], leaf[3]
        a, b, c, d = value[0], value[1], value[2], value[3]
        for k in range(m):
            summed[k] += a[of_a[k]] + b[of_b[k]] + c[of_c[k]] + d[of_d[k]]
    for rest in range(rest_from, span[1]):
        _fill_leaves(place, feature[rest], level_threshold[rest], leaf[0])
        _fill_bits(half[rest], bits, least)
        _fill_difference(whole, taken, value[0])
        for k in range(m):
            summed[k] += value[0, leaf[0, k]]
    for k in range(m):
        total[k] += weight * summed[k]


@compiled
def _fill_places(features: Singles, thresholds: Thresholds, place: Bytes) -> None:
    """Fill `place` uint8 [columns, m], how many of its thresholds each feature exceeds; counting vectorises."""
    threshold, begin = thresholds
    count, one, none = np.empty(features.shape[1], dtype=np.int32), np.int32(1), np.int32(0)
    for f in range(len(place)):
        column, at = features[f], begin[f]
        if at == begin[f + 1]:
            continue  # no tree compares it
        count[:] = 0
        while at + _THRESHOLDS <= begin[f + 1]:  # several at once, so that counts are read and written less often
            a, b, c, d = threshold[at], threshold[at + 1], threshold[at + 2], threshold[at + 3]
            e, g, h, i = threshold[at + 4], threshold[at + 5], threshold[at + 6], threshold[at + 7]
            for k in range(len(count)):
                x = column[k]
                low = (one if x > a else none) + (one if x > b else none) + (one if x > c else none)
                mid = (one if x > d else none) + (one if x > e else none) + (one if x > g else none)
                count[k] += low + mid + (one if x > h else none) + (one if x > i else none)
            at += _THRESHOLDS
        for rest in range(at, begin[f + 1]):
            over = threshold[rest]
            for k in range(len(count)):
                count[k] += one if column[k] > over else none
        for k in range(len(count)):
            place[f, k] = count[k]


@compiled
def _find_places(features: Singles, k: int, thresholds: Thresholds, place: Bytes) -> None:
    """Fill column k of `place`, by bisection."""
    threshold, begin = thresholds
    for f in range(len(place)):
        low, high = begin[f], begin[f + 1]
        while low < high:
            middle = (low + high) >> 1
            if features[f, k] > threshold[middle]:
                low = middle + 1
            else:
                high = middle
        place[f, k] = low - begin[f]


@compiled
def _leaf(place: Bytes, k: int, feature: Shorts, level_threshold: Bytes) -> np.uint32:
    """Return the leaf of row k in one tree; unsigned, which saves the check for negative indices."""
    leaf = np.uint32(0)
    for level in range(DEPTH):
        over = place[np.uint32(feature[level]), k] > level_threshold[level]
        leaf |= np.uint32(over) << np.uint32(level)
    return leaf


@compiled
def _single(half: int) -> np.float32:
    """Return the number with these bits in half precision."""
    fraction = (half & 0x3FF) + (0x400 if half & 0x7C00 else 0)
    return np.float32(_UNIT[half >> 10] * np.float32(fraction))


def halves_of(steps: NDArray[np.int8], unit: Singles) -> Halves:
    """Return `steps` [trees, LEAVES] times the `unit` of each tree in half precision, rounded to even.

    NumPy takes 15 ns for each subnormal half, which every second leaf is; a loop that is not compiled, 3 us for each.
    """
    single = np.ascontiguousarray(steps * unit[:, None], dtype=np.float32)
    if not COMPILES:
        return single.astype(np.float16)
    half = np.empty(single.shape, dtype=np.uint16)
    _fill_halves(single.ravel(), single.view(np.uint32).ravel(), half.ravel())
    return half.view(np.float16)


@compiled
def _fill_halves(single: Singles, bits: Words, half: NDArray[np.uint16]) -> None:
    """Fill the bits of the halves nearest to `single` [n], whose own bits are `bits`."""
    for k in range(len(single)):
        sign, rest = (bits[k] >> np.uint32(16)) & np.uint32(0x8000), bits[k] & np.uint32(0x7FFFFFFF)
        even = (rest >> np.uint32(13)) & np.uint32(1)
        normal = (rest - np.uint32(112 << 23) + np.uint32(0xFFF) + even) >> np.uint32(13)
        subnormal = np.uint32(np.rint(min(np.abs(single[k]), np.float32(1.0)) * np.float32(2**24)))
        finite = subnormal if rest < np.uint32(113 << 23) else normal
        special = np.uint32(0x7E00) if rest > np.uint32(255 << 23) else np.uint32(0x7C00)
        half[k] = sign | (finite if rest < np.uint32(143 << 23) else special)


@compiled
def _fill_leaves(place: Bytes, feature: Shorts, level_threshold: Bytes, leaf: Bytes) -> None:
    """Fill the leaf of every row in one tree, [m].

    All DEPTH comparisons in one pass: compilers vectorise this, but not a loop over levels.
    """
    a, b, c = place[feature[0]], place[feature[1]], place[feature[2]]
    d, e, f = place[feature[3]], place[feature[4]], place[feature[5]]
    over_a, over_b, over_c = level_threshold[0], level_threshold[1], level_threshold[2]
    over_d, over_e, over_f = level_threshold[3], level_threshold[4], level_threshold[5]
    none, bit_a, bit_b, bit_c = np.uint8(0), np.uint8(1), np.uint8(2), np.uint8(4)
    bit_d, bit_e, bit_f = np.uint8(8), np.uint8(16), np.uint8(32)
    for k in range(len(leaf)):
        low = (bit_a if a[k] > over_a else none) | (bit_b if b[k] > over_b else none)
        low |= bit_c if c[k] > over_c else none
        high = (bit_d if d[k] > over_d else none) | (bit_e if e[k] > over_e else none)
        leaf[k] = low | high | (bit_f if f[k] > over_f else none)


@compiled
def _fill_bits(half: NDArray[np.uint16], bits: Words, least: Words) -> None:
    """Fill the bits of two singles whose difference is each of a tree's leaves; integer arithmetic, which vectorises.

    The exponents of halves have another bias. Subnormal halves get the smallest exponent, which is then subtracted.
    """
    for k in range(LEAVES):
        leaf = np.uint32(half[k])
        sign, rest = (leaf & np.uint32(0x8000)) << np.uint32(16), (leaf & np.uint32(0x7FFF)) << np.uint32(13)
        small = rest < np.uint32(1 << 23)
        bits[k] = sign | (rest + (np.uint32(113 << 23) if small else np.uint32(112 << 23)))
        least[k] = (sign | np.uint32(113 << 23)) if small else np.uint32(0)


@compiled
def _fill_difference(one: Singles, other: Singles, single: Singles) -> None:
    for k in range(LEAVES):
        single[k] = one[k] - other[k]
