"""Constants of the physics, fitted to measured rows of one operator in one dtype on one GPU, or on several.

Six multipliers correct what the priors say of a family (app.predictors.priors): of the overhead, of the
shortest time, and of the seconds that compute, DRAM, L2 and link take. They carry a measured GPU's rows to shapes
beyond them as physics does, where a model of residuals can only repeat its last answer. Fitted by least absolute
deviations in log space, drawn towards the priors as by a few rows that agree with them.
"""

from __future__ import annotations

import numpy as np

from app.predictors.auto.operators.physics.analytic_model import (
    COMPUTE_S,
    DRAM_S,
    L2_S,
    LEAST,
    LIMIT,
    LINK_S,
    OVERHEAD,
    blend,
)
from app.runtime.compiled import compiled
from app.tables.arrays import Floats

FACTOR_NAMES = ("overhead", "least", "compute", "DRAM", "L2", "link")
FACTORS = len(FACTOR_NAMES)
_OVERHEAD, _LEAST, COMPUTE, DRAM, _L2, _LINK = range(FACTORS)
NEUTRAL = np.ones(FACTORS)
# Those of the work, not of its launch.
OF_WORK = np.arange(FACTORS) >= COMPUTE
# The priors weigh as much as this many rows that are off by the deviation itself, and the share of DRAM as much as
# this part of all rows, but of operators that only stream: what others miss is not the DRAM's doing.
_PRIOR_ROWS = 3.0
_DRAM_PRIOR = 0.2
# How much rows count, besides, by what one bottleneck alone takes beyond the time that was measured. None can; but
# trees mend the sum where it does, and a GPU of the same make with another memory or fewer SMs is told wrongly.
_EXCESS_WEIGHT = 3.0
# In which order the factors are looked for: found first, the shortest time and the overhead would stand in for seconds
# of work.
_ORDER = [DRAM, COMPUTE, _L2, _LINK, _LEAST, _OVERHEAD]
MOST_ROWS = 1500
# How far a factor may go. The prior of the L2 is a cautious one; a slower L2 would stand in for DRAM, whose bandwidth
# differs between GPUs of one make.
LEAST_FACTORS = np.full(FACTORS, 1.0 / 30.0)
MOST_FACTORS = np.array([30.0, 30.0, 30.0, 30.0, 1.0, 30.0])


@compiled
def scaled_work_s(terms: Floats, q: int, factors: Floats) -> float:
    """Seconds of a query's work under these factors."""
    link = terms[LINK_S, q] * factors[_LINK]
    memory = max(terms[DRAM_S, q] * factors[DRAM], terms[L2_S, q] * factors[_L2])
    return float(max(blend(terms[COMPUTE_S, q] * factors[COMPUTE], memory), link))


@compiled
def scaled_s(terms: Floats, q: int, factors: Floats) -> float:
    """Seconds of a query under these factors."""
    work = scaled_work_s(terms, q, factors)
    return float(
        max(terms[OVERHEAD, q] * factors[_OVERHEAD] + work, terms[LEAST, q] * factors[_LEAST], terms[LIMIT, q])
    )


@compiled
def fill_scaled(terms: Floats, factors: Floats, latency_s: Floats) -> None:
    """Seconds of every query."""
    for q in range(len(latency_s)):
        latency_s[q] = scaled_s(terms, q, factors)


@compiled
def _excess(terms: Floats, factors: Floats, latency_s: Floats) -> Floats:
    """By how much, in log space, each bottleneck alone takes longer than was measured, summed over bottlenecks [n]."""
    found = np.zeros(len(latency_s))
    for q in range(len(latency_s)):
        for term, factor in ((COMPUTE_S, COMPUTE), (DRAM_S, DRAM), (L2_S, _L2), (LINK_S, _LINK)):
            found[q] += np.log(max(terms[term, q] * factors[factor] / latency_s[q], 1.0))
    return found


def fitted_factors(
    terms: Floats,
    latency_s: Floats,
    weight: Floats | None = None,
    *,
    streams: bool = False,
    capped: bool = False,
) -> Floats:
    """Factors [FACTORS] that fit `latency_s` [n] best, given terms [TERMS, n]; rows count by `weight` [n].

    `streams`: of an operator that only streams, so that its largest rows tell what it gets of the DRAM. `capped`: of
    rows of one GPU, no bottleneck alone may take longer than was measured.
    """
    from scipy.optimize import minimize  # noqa: PLC0415  (serving never fits)

    if len(latency_s) > MOST_ROWS:
        kept = np.random.default_rng(0).permutation(len(latency_s))[:MOST_ROWS]
        terms, latency_s = np.ascontiguousarray(terms[:, kept]), latency_s[kept]
        weight = None if weight is None else weight[kept]
    mass = np.ones(len(latency_s)) if weight is None else weight / weight.mean()
    dram_rows = 0.0 if streams else _DRAM_PRIOR * len(latency_s)
    wanted, answer, neutral = np.log(latency_s), np.empty(len(latency_s)), np.log(NEUTRAL)

    def loss(point: Floats) -> float:
        fill_scaled(terms, _within(point), answer)
        drawn = _PRIOR_ROWS * np.abs(point).sum() + dram_rows * abs(point[DRAM])
        off = np.abs(wanted - np.log(answer))
        if capped:
            off += _EXCESS_WEIGHT * _excess(terms, _within(point), latency_s)
        return float((mass @ off + drawn) / len(answer))

    options = {"direc": np.eye(FACTORS)[_ORDER], "maxiter": 12, "xtol": 3e-3, "ftol": 1e-4}
    shifted = minimize(loss, neutral, method="Powell", options=options)
    factors: Floats = _within(shifted.x)
    return factors if shifted.fun < loss(neutral) else NEUTRAL.copy()


def _within(point: Floats) -> Floats:
    """Factors of a point in log space, kept within bounds."""
    return np.clip(np.exp(point), LEAST_FACTORS, MOST_FACTORS)
