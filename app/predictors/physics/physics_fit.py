"""Physics fit: constants of the analytic model, fitted to measured rows of one operator and dtype, on one or more GPUs.

Six multipliers correct the priors of a family (app.predictors.priors): on the overhead, the shortest time, and the
seconds of compute, DRAM, L2 and link. They extrapolate beyond the training range as the analytic model does, where a
model of residuals can only repeat its last value. Fitted by least absolute deviations in log space, regularised towards
the priors as by a few rows that agree with them.
"""

from __future__ import annotations

import numpy as np

from app.coefficients import Coefficients
from app.predictors.physics.analytic_model import COMPUTE_S, DRAM_S, L2_S, LEAST, LIMIT, LINK_S, OVERHEAD, blend
from app.runtime.compiled import compiled, compiled_per_row
from app.tables.arrays import Floats

_FITTED = Coefficients("physics")

FACTOR_NAMES = ("overhead", "least", "compute", "DRAM", "L2", "link")
FACTORS = len(FACTOR_NAMES)
_OVERHEAD, _LEAST, COMPUTE, DRAM, _L2, _LINK = range(FACTORS)
NEUTRAL = np.ones(FACTORS)
# True for factors of the work, False for factors of its launch.
OF_WORK = np.arange(FACTORS) >= COMPUTE
# Weight of the priors, in rows, and of the additional DRAM prior, as a fraction of all rows. Operators that only stream
# have no additional DRAM prior; the residual of others is not due to DRAM.
_PRIOR_ROWS = _FITTED.number("prior_rows")
_DRAM_PRIOR = _FITTED.number("dram_prior")
# Weight of the penalty for a single bottleneck that exceeds the measured time. That is impossible, but trees would
# compensate for it, and siblings with another memory or fewer SMs would be predicted wrongly.
_EXCESS_WEIGHT = _FITTED.number("excess_weight")
# Order of the line searches. Searched first, the shortest time and the overhead would absorb seconds of work.
_ORDER = [DRAM, COMPUTE, _L2, _LINK, _LEAST, _OVERHEAD]
MOST_ROWS = 1500
# Bounds of the factors. The L2 prior is conservative; a slower L2 would stand in for DRAM, whose bandwidth differs
# between siblings.
LEAST_FACTORS = np.full(FACTORS, 1.0 / 30.0)
MOST_FACTORS = np.array(_FITTED.numbers("most_factors"))


@compiled_per_row
def scaled_work_s(terms: Floats, q: int, factors: Floats) -> float:
    """Return the work of query `q` under `factors` [FACTORS], in seconds."""
    link = terms[LINK_S, q] * factors[_LINK]
    memory = max(terms[DRAM_S, q] * factors[DRAM], terms[L2_S, q] * factors[_L2])
    return float(max(blend(terms[COMPUTE_S, q] * factors[COMPUTE], memory), link))


@compiled_per_row
def scaled_s(terms: Floats, q: int, factors: Floats) -> float:
    """Return the time of query `q` under `factors` [FACTORS], in seconds."""
    work = scaled_work_s(terms, q, factors)
    return float(
        max(terms[OVERHEAD, q] * factors[_OVERHEAD] + work, terms[LEAST, q] * factors[_LEAST], terms[LIMIT, q])
    )


@compiled_per_row
def fill_scaled(terms: Floats, factors: Floats, latency_s: Floats) -> None:
    """Fill `latency_s` [n] with the time of every query under `factors` [FACTORS]."""
    for q in range(len(latency_s)):
        latency_s[q] = scaled_s(terms, q, factors)


@compiled
def _excess(terms: Floats, factors: Floats, latency_s: Floats) -> Floats:
    """Return by how much each bottleneck alone exceeds the measured time, in log space, summed over bottlenecks [n]."""
    excess = np.zeros(len(latency_s))
    for q in range(len(latency_s)):
        for term, factor in ((COMPUTE_S, COMPUTE), (DRAM_S, DRAM), (L2_S, _L2), (LINK_S, _LINK)):
            excess[q] += np.log(max(terms[term, q] * factors[factor] / latency_s[q], 1.0))
    return excess


def fitted_factors(
    terms: Floats,
    latency_s: Floats,
    weight: Floats | None = None,
    *,
    streams: bool = False,
    capped: bool = False,
) -> Floats:
    """Return the factors [FACTORS] that fit `latency_s` [n] best, given terms [TERMS, n] and sample weights [n].

    `streams`: the operator only streams, so that its largest rows determine its DRAM share. `capped`: all rows are of
    one GPU, and a bottleneck that alone exceeds the measured time is penalised.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  (serving never fits)

    if len(latency_s) > MOST_ROWS:
        kept = np.random.default_rng(0).permutation(len(latency_s))[:MOST_ROWS]
        terms, latency_s = np.ascontiguousarray(terms[:, kept]), latency_s[kept]
        weight = None if weight is None else weight[kept]
    mass = np.ones(len(latency_s)) if weight is None else weight / weight.mean()
    dram_rows = 0.0 if streams else _DRAM_PRIOR * len(latency_s)
    target, off, neutral = np.log(latency_s), np.empty(len(latency_s)), np.log(NEUTRAL)

    def loss(point: Floats) -> float:  # a fit evaluates it hundreds of times, so each array is made in place
        factors = _within(point)
        fill_scaled(terms, factors, off)
        np.log(off, out=off)
        np.subtract(target, off, out=off)
        np.abs(off, out=off)
        drawn = _PRIOR_ROWS * np.abs(point).sum() + dram_rows * abs(point[DRAM])
        if capped:
            off[:] += _EXCESS_WEIGHT * _excess(terms, factors, latency_s)
        return float((mass @ off + drawn) / len(off))

    options = {"direc": np.eye(FACTORS)[_ORDER], "maxiter": 12, "xtol": 3e-3, "ftol": 1e-4}
    shifted = minimize(loss, neutral, method="Powell", options=options)
    factors: Floats = _within(shifted.x)
    return factors if shifted.fun < loss(neutral) else NEUTRAL.copy()


def _within(point: Floats) -> Floats:
    """Return the factors [FACTORS] of a point in log space, clipped to their bounds."""
    factors: Floats = np.minimum(np.maximum(np.exp(point), LEAST_FACTORS), MOST_FACTORS)  # np.clip takes twice the time
    return factors
