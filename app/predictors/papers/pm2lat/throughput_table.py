"""Throughput of kernels at powers of two of K, after PM2Lat (section III.C, equations 1 and 2).

A block of the kernel does its whole tile even where the product fills only part of it, and the blocks of a last wave
run in parallel however few they are. So the work of a product is that of ceil(blocks / (SMs x resident)) waves, and

    time = overhead + waves x K / throughput(K),

which is equation 1 with the reference time at K = 8192 divided out. Between two powers of two, equation 2: throughput
is linear in K. Our extension: throughput also depends on the waves, at powers of two of them, linear in their log (the
paper fixes the waves of its sweeps; rows that were measured at random shapes do not).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.ops.figures import Products
from app.tables.arrays import Floats, Ints

# Knots: K = 1 to 2^17, waves 2^-3 to 2^10; throughput is constant outside.
MOST_LOG_K, LEAST_LOG_WAVES, MOST_LOG_WAVES = 17, -3, 10
DEPTHS, WAVES = MOST_LOG_K + 1, MOST_LOG_WAVES - LEAST_LOG_WAVES + 1
KNOTS = DEPTHS * WAVES
AXES = (f"log2(k) to {MOST_LOG_K}", f"log2(waves) from {LEAST_LOG_WAVES} to {MOST_LOG_WAVES}")
# Largest index distance of the four knots around a product.
_BAND = WAVES + 1


class Layout(NamedTuple):
    """How kernels fill a device, [n] or scalars.

    rows, columns  of the tile
    resident       blocks that an SM runs at once; 0: waves are not rounded up (a persistent or finely cut kernel)
    """

    rows: Floats | float
    columns: Floats | float
    resident: Floats | float


class Place(NamedTuple):
    """Positions of n products in a table: four knots and their weights, [4, n] each, and log work, [n]."""

    knot: Ints
    weight: Floats
    log_work: Floats


def waves(products: Products, layout: Layout, sms: Floats | float) -> tuple[Floats, Floats]:
    """Return waves of n products on devices of `sms` SMs: fractional, and rounded up as they count, [n] each."""
    batch, m, n, _ = products
    blocks = batch * np.ceil(m / layout.rows) * np.ceil(n / layout.columns)
    resident = np.maximum(layout.resident, 1.0)
    filled = blocks / (sms * resident)
    counted = np.where(layout.resident > 0, np.ceil(filled) * resident, np.maximum(filled, 1.0))
    return filled, counted


def place(products: Products, layout: Layout, sms: Floats | float) -> Place:
    """Return knots and weights of n products: linear in K (equation 2), logarithmic in waves."""
    filled, counted = waves(products, layout, sms)
    depth = np.maximum(products.k, 1.0)
    low = np.minimum(np.floor(np.log2(depth)), MOST_LOG_K - 1.0)
    into = np.clip(depth / 2.0**low - 1.0, 0.0, 1.0)  # (K - K1) / (K3 - K1), K3 = 2 K1
    wave = np.clip(np.log2(filled), LEAST_LOG_WAVES, MOST_LOG_WAVES) - LEAST_LOG_WAVES
    lower = np.minimum(np.floor(wave), WAVES - 2.0)
    beyond = wave - lower
    first = (low * WAVES + lower).astype(np.intp)
    knot = np.stack([first, first + 1, first + WAVES, first + WAVES + 1])
    weight = np.stack([(1 - into) * (1 - beyond), (1 - into) * beyond, into * (1 - beyond), into * beyond])
    return Place(knot, weight, np.log(counted * depth))


def throughput(log_table: Floats, at: Place, kernel: Ints | int = 0) -> Floats:
    """Return the throughput of n products (equation 2), [n]; `log_table` float [kernels, KNOTS]."""
    interpolated: Floats = (at.weight * np.exp(log_table[kernel, at.knot])).sum(axis=0)
    return interpolated


class Fit(NamedTuple):
    """A fitted table float64 [KNOTS], and its mean absolute relative error on the rows it was fitted to."""

    log_table: Floats
    error: float


# Weight of a knot's roughness in rows, and rounds of reweighting towards the least absolute error.
SMOOTHNESS, ROUNDS = 0.02, 6
# Residual below which weights are equal, so that no row dominates.
LEAST_RESIDUAL = 0.02
# Least share of a row's time that counts as work: a time that is nearly all overhead is little informative.
LEAST_SHARE = 0.05


def fit_table(at: Place, latency_s: Floats, overhead_s: float, *, rounds: int = ROUNDS) -> Fit:
    """Return log throughput at the knots, fitted to n rows at `at` by least absolute relative error of the time.

    Gauss-Newton on log throughput, reweighted; first differences between neighbouring knots are small where rows say
    nothing, so that an unmeasured knot has its neighbours' throughput. Rows couple neighbouring knots only: the normal
    equations are banded.
    """
    from scipy.linalg import solveh_banded  # noqa: PLC0415  (serving never fits)

    n = len(latency_s)
    device_s = np.maximum(latency_s - overhead_s, LEAST_SHARE * latency_s)
    share, target = device_s / latency_s, at.log_work - np.log(device_s)
    theta = np.full(KNOTS, np.median(target))
    weight = np.ones(n)
    one, other = np.triu_indices(len(at.knot))
    pair = ((_BAND + at.knot[one] - at.knot[other]) * KNOTS + at.knot[other]).ravel()
    for _ in range(rounds):
        each = at.weight * np.exp(theta[at.knot])
        total = each.sum(axis=0)
        slopes = each / total
        residual = target - np.log(total)
        weight = share / np.maximum(np.abs(residual) * share, LEAST_RESIDUAL)
        weight *= share / weight.mean()
        normal = np.bincount(pair, (slopes[one] * slopes[other] * weight).ravel(), (_BAND + 1) * KNOTS)
        rows = np.bincount(at.knot.ravel(), (slopes * (weight * residual)).ravel(), KNOTS)
        pull = rows - _ROUGHNESS @ (theta - np.median(target))
        theta = theta + solveh_banded(normal.reshape(_BAND + 1, KNOTS) + _BANDED_ROUGHNESS, pull)
    time = overhead_s + np.exp(at.log_work) / throughput(theta[None], at)
    return Fit(theta, float(np.mean(np.abs(time / latency_s - 1.0))))


def _roughness() -> Floats:
    """Return the penalty on first differences in both directions, and a small one on the level, [KNOTS, KNOTS]."""
    knot = np.arange(KNOTS).reshape(DEPTHS, WAVES)
    penalty = 1e-4 * np.eye(KNOTS)
    for one, other in ((knot[1:], knot[:-1]), (knot[:, 1:], knot[:, :-1])):
        a, b = one.ravel(), other.ravel()
        for p, q, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            np.add.at(penalty, (p, q), sign * SMOOTHNESS)
    return penalty


def _banded(matrix: Floats) -> Floats:
    """Return a symmetric matrix [KNOTS, KNOTS] in SciPy's upper banded form, [_BAND + 1, KNOTS]."""
    rows = [np.pad(np.diagonal(matrix, above), (above, 0)) for above in range(_BAND, -1, -1)]
    return np.stack(rows)


_ROUGHNESS = _roughness()
_BANDED_ROUGHNESS = _banded(_ROUGHNESS)
