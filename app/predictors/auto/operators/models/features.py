"""Features of the learned models: of the operator, and of the operator relative to a GPU; no raw GPU figure.

Shape features depend on the operator alone: logarithms of its dimensions and of its matrix products, and the powers of
two that divide these. Relative features compare it with a GPU: waves and their fullness for every candidate tile
(NeuSight, section 4), the balance of the terms of the analytic model, bytes relative to the L2. Operators with parts
have the logarithms of these in place of tiles.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from app.coefficients import Coefficients
from app.ops import OPS, Kind
from app.ops.figures import Products
from app.ops.gemm import CANDIDATES
from app.predictors.physics.analytic_model import (
    COMPUTE_S,
    DRAM_S,
    HANDED_BYTES,
    L2_S,
    LEAST,
    LIMIT,
    LINK_S,
    OVERHEAD,
    TIME,
    WORK_S,
    Devices,
    library_cost,
)
from app.predictors.physics.operator_features import OperatorFeatures
from app.predictors.priors import IS_EAGER
from app.runtime.compiled import compiled, compiled_per_row
from app.stacks.libraries import NO_LIBRARY
from app.tables.arrays import Floats, Singles
from app.tables.gpus import COLUMN_INDEX
from app.tables.ops import OpTable

_FITTED = Coefficients("learning")

_PRODUCT_FEATURES = 11
SHAPE_FEATURES = 27
_TILES = len(CANDIDATES)
RELATIVE_FEATURES = 10 + 2 * _TILES
# Behind all others: the serving stack, and the library whose kernels it runs on the GPU (app.stacks.libraries).
STACK = SHAPE_FEATURES + RELATIVE_FEATURES
LIBRARY_OF_STACK = STACK + 1
FEATURES = STACK + 2
# The first feature is the number of concurrent tasks, the last whether the host launches the operator; the last but one
# is the router class of experts.
_TASKS, ROUTER_CLASS, EAGER = 0, SHAPE_FEATURES - 2, SHAPE_FEATURES - 1
# Of a collective, its message, devices and library.
MESSAGE, DEVICES, LIBRARY = 1, 2, 4
# Relative features: compute over memory, work over launch cost, hardware limit over total time, link over memory (of
# kernels that loop over keys the turns), waves of tasks, their fullness, and into how many parts k may be split.
MEMORY_BALANCE, LAUNCH_BALANCE, LIMIT_SHARE, LINK_OR_TURNS = (SHAPE_FEATURES + k for k in (0, 1, 3, 4))
WAVES, FULL, SPLITS = (SHAPE_FEATURES + k for k in (7, 8, 9))
LOG_TIME, PARTS = SHAPE_FEATURES + 2, SHAPE_FEATURES + 10
# An amount in place of 0, of which there is a logarithm.
_NO_PART = 1e-3
# Concurrent blocks per SM of kernels that loop over keys.
_BLOCKS_OF_SM = _FITTED.number("blocks_of_sm")
_SMS, _L2, _GENERATION = (COLUMN_INDEX[name] for name in ("sm_count", "l2_bytes", "generation"))
# Bound of the logarithms of times and ratios.
_LARGEST_LOG = 12.0


@cache
def size_dims(kind: int) -> tuple[str, ...]:
    """Return the columns of an operator that are sizes among its features."""
    return tuple(name for dim in OPS[kind].dims if dim.feature == "size" for name in dim.columns)


@cache
def code_dims(kind: int) -> tuple[str, ...]:
    """Return the feature columns of an operator that are codes or exponents, not sizes."""
    return tuple(name for dim in OPS[kind].dims if dim.feature == "code" for name in dim.columns)


def own_dims(kind: int) -> tuple[str, ...]:
    """Return the columns of an operator that are features, in the order of their rows."""
    return size_dims(kind) + code_dims(kind)


@cache
def absent_dims(kind: int) -> dict[str, str]:
    """Return the columns that default to another column if absent, and that column."""
    dims = {dim.name: dim for dim in OPS[kind].dims}
    meant = ((dim, dims[dim.absent]) for dim in dims.values() if dim.absent)
    return {name: other for dim, of in meant for name, other in zip(dim.columns, of.columns, strict=True)}


@cache
def dim_rows(kind: int) -> dict[str, int]:
    """Return the row of the shape features that holds each of an operator's dimensions."""
    op = OPS[kind]
    first = 1 + (0 if op.products is None else _PRODUCT_FEATURES) + max(len(op.ratios) - 1, 0)
    return dict(zip(own_dims(kind), range(first, EAGER), strict=False))


@cache
def _ratio_signs(kind: int) -> Floats:
    """Return 1 for sizes that a ratio multiplies, -1 for those that it divides by, else 0, float64 [ratios, sizes]."""
    sizes, ratios = size_dims(kind), OPS[kind].ratios
    signs = [[float(name in over) - float(name in under) for name in sizes] for over, under in ratios]
    return np.array(signs).reshape(len(ratios), len(sizes))


def shape_features(kinds: list[Kind], products: list[Products | None], n: int) -> Singles:
    """Return the shape features of every row, float32 [SHAPE_FEATURES, n]; zero where a family has fewer."""
    if len(kinds) == 1:
        return _of_kind(kinds[0], products[0])
    features = np.zeros((SHAPE_FEATURES, n), dtype=np.float32)
    for kind, product in zip(kinds, products, strict=True):
        features[:, kind.rows] = _of_kind(kind, product)
    return features


def _of_kind(kind: Kind, product: Products | None) -> Singles:
    """Return the shape features of one family's rows: tasks, products, ratios, dimensions."""
    table, code = kind.table, int(kind.table.kind[0])
    eager, n = table.column("eager"), table.kind.size
    column = {name: _with_defaults(table, name) for name in own_dims(code)}
    sizes = np.array([column[name] for name in size_dims(code)])
    sizes = np.log(np.maximum(sizes, 0.5))  # over zero for their logarithms
    ratios = _ratio_signs(code) @ sizes
    parts = [ratios[:1] if len(ratios) else sizes[:1]]
    if product is not None:
        parts.append(np.empty((_PRODUCT_FEATURES, n)))
        _fill_products(np.array(product), parts[-1])
    parts += [ratios[1:], sizes, *(column[name][None] for name in code_dims(code))]
    if "window" in column:  # other kernels run with one, also where it is no shorter than the context
        parts.append((table.column("window") > 0.0)[None].astype(np.float64))
    if product is None:
        parts += [_divisors(column[name])[None] for name in ("b", "h") if name in column]
    features, at = np.zeros((SHAPE_FEATURES, n), dtype=np.float32), 0
    for part in parts:
        kept = part[: EAGER - at]
        features[at : at + len(kept)] = kept
        at += len(kept)
    kernel_class = OPS[code].kernel_class
    if kernel_class is not None:
        features[ROUTER_CLASS] = kernel_class(table)
    features[EAGER] = np.where(np.isnan(eager), IS_EAGER[table.dtype], eager > 0.0)
    return features


def _with_defaults(table: OpTable, name: str) -> Floats:
    """Return a dimension [n] with defaults in place of absent values."""
    values, kind = table.column(name), int(table.kind[0])
    if name in code_dims(kind):  # an absent number format defaults to the row's dtype
        return np.where(np.isnan(values), table.dtype.astype(np.float64), values)
    if (other := absent_dims(kind).get(name)) is not None:
        return np.where(np.isnan(values) | (values == 0.0), table.column(other), values)
    return values


@compiled
def _fill_products(sizes: Floats, features: Floats) -> None:
    """Fill logarithms of sizes, operands and results, and the powers of two that divide m, n and k (up to 2^8).

    `sizes`: batch, m, n and k, float64 [4, rows]. `features`: float64 [_PRODUCT_FEATURES, rows].
    """
    for q in range(sizes.shape[1]):
        batch, m, n, k = np.log(sizes[0, q]), np.log(sizes[1, q]), np.log(sizes[2, q]), np.log(sizes[3, q])
        features[0, q], features[1, q], features[2, q], features[3, q] = batch, m, n, k
        features[4, q], features[5, q], features[6, q] = batch + m + n, batch + n + k, batch + m + k
        features[7, q] = n - m
        for d in range(3):
            whole, power = int(max(sizes[1 + d, q], 1.0)), 0
            while power < 8 and whole % 2 == 0:
                whole //= 2
                power += 1
            features[8 + d, q] = power


def _divisors(sizes: Floats) -> Floats:
    """Return the power of two that divides each size, up to 8."""
    divisors: Floats = np.log2(np.gcd(np.maximum(sizes, 1.0).astype(np.int64), 256))
    return divisors


@compiled_per_row
def _log(ratio: float) -> float:
    """Return the logarithm within bounds, also of zero and infinity."""
    return float(min(max(np.log(max(ratio, 1e-30)), -_LARGEST_LOG), _LARGEST_LOG))


@compiled_per_row
def _fill_loops(loops: Floats, row: int, sms: float, features: Singles, k: int) -> None:
    """Fill the fullness of waves of blocks that loop over keys, their turns, and the turns over those of an even load.

    A loop is split into as many blocks as the SMs hold at once. Such a row has no link, and no product's k to split.
    """
    tasks, steps, slots = loops[0, row], loops[1, row], _BLOCKS_OF_SM * sms
    parts = min(max(np.floor(slots / tasks), 1.0), loops[2, row])
    turns, waves = np.ceil(steps / parts), tasks * parts / slots
    features[FULL, k] = waves / np.ceil(waves)
    features[LINK_OR_TURNS, k], features[SPLITS, k] = (
        _log(turns),
        _log(np.ceil(waves) * turns / (tasks * steps / slots)),
    )


class Rows(NamedTuple):
    """Features of operator rows, figures of GPUs, and the physics of queries.

    shape        float32 [SHAPE_FEATURES, rows]
    op_features  a struct of arrays over the rows
    devices      figures of the GPUs, a struct of arrays over them
    terms        float64 [TERMS, queries], seconds by the physics
    """

    shape: Singles
    op_features: OperatorFeatures
    devices: Devices
    terms: Floats


@compiled_per_row
def fill_features(rows: Rows, row: int, gpu: int, q: int, features: Singles, k: int) -> None:
    """Fill column `k` of `features` float32 [FEATURES, m] for operator `row` on `gpu`, given the terms in column q."""
    shape, op_features, devices, terms = rows
    for f in range(SHAPE_FEATURES):
        features[f, k] = shape[f, row]
    sms, l2, work = devices.figures[_SMS, gpu], devices.figures[_L2, gpu], terms[WORK_S, q]
    at = SHAPE_FEATURES
    memory = max(terms[DRAM_S, q], terms[L2_S, q])
    features[MEMORY_BALANCE, k] = _log(terms[COMPUTE_S, q] / memory)
    features[LAUNCH_BALANCE, k] = _log(work / max(terms[OVERHEAD, q], terms[LEAST, q]))
    features[LOG_TIME, k] = np.log(terms[TIME, q] + 1e-9)
    features[LIMIT_SHARE, k] = _log(terms[LIMIT, q] / terms[TIME, q])
    features[LINK_OR_TURNS, k] = _log(terms[LINK_S, q] / memory)
    late = library_cost(op_features, HANDED_BYTES, row, devices, gpu)
    features[at + 5, k] = _log((op_features.distinct[row] + op_features.between[row] + late) / l2)
    features[at + 6, k] = _log(op_features.moved[row] / l2)
    waves = np.exp(shape[_TASKS, row]) / sms
    features[WAVES, k] = _log(waves)
    features[FULL, k] = waves / np.ceil(waves)
    # Zero of a row that is no matrix product, whatever else its table holds.
    tiled = op_features.blocks.shape[0] > 0 and op_features.fill[0, row] > 0.0
    features[SPLITS, k] = op_features.splits[row] if tiled else 0.0
    if op_features.loops.shape[1] > 0 and op_features.loops[0, row] > 0.0:
        _fill_loops(op_features.loops, row, sms, features, k)
    features[STACK, k] = op_features.stack[row]
    libraries = op_features.libraries
    generation = int(devices.figures[_GENERATION, gpu])
    features[LIBRARY_OF_STACK, k] = libraries[generation, row] if len(libraries) else NO_LIBRARY
    at += 10
    for tile in range(_TILES):
        waves = op_features.blocks[tile, row] / sms if tiled else 1.0
        features[at + 2 * tile, k] = _log(waves)
        features[at + 2 * tile + 1, k] = op_features.fill[tile, row] * waves / np.ceil(waves) if tiled else 0.0
    parts = op_features.parts
    for part in range(len(parts) if len(parts) and parts[0, row] > 0.0 else 0):
        features[PARTS + part, k] = np.log(max(parts[part, row], _NO_PART))
