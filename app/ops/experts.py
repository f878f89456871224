"""Expert layers: gates, routers, and the load of ranks: (token, expert) pairs on the busiest, and its active experts.

`balanced`: equally many pairs on every rank, and as many active experts as can be. `power_law_a`: see app.ops.moe.
"""

from __future__ import annotations

import re
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from app.ops.base import Dim
from app.tables.arrays import Floats
from app.tables.ops import OpTable

GATES, ROUTERS = ("silu", "gelu", "other", "none"), ("plain", "grouped")
SILU, GELU, OTHER, UNGATED = (float(code) for code in range(len(GATES)))
# Gates that fused kernels lack, but of GELU in NVFP4.
LACKING = (GATES.index("gelu"), GATES.index("other"))
PLAIN, BY_GROUPS = (float(code) for code in range(len(ROUTERS)))


BALANCED = 0.0
_POWER_LAW = re.compile(r"power_law_(\d{1,3}(?:\.\d{1,12})?)")
STEEPEST = 8.0
# Largest part of all tokens that the generator gives one expert, and its range where pairs are fewer than experts.
_LARGEST_SHARE, _FEW = 0.8, (0.01, 2.0)
_NEAR_ZERO = 1e-6


def distribution(text: str) -> float:
    """The exponent of a power law, 0 for `balanced`; ValueError for any other word."""
    if text == "balanced":
        return BALANCED
    match = _POWER_LAW.fullmatch(text)
    exponent = float(match[1]) if match else 0.0
    if not 0.0 < exponent <= STEEPEST:
        raise ValueError(f"is balanced, or power_law_ and an exponent up to {STEEPEST:g}, as in power_law_1.01")
    return exponent


def distribution_name(exponent: float) -> str:
    """The word of an exponent, the inverse of `distribution`."""
    return "balanced" if exponent == BALANCED else f"power_law_{exponent:.12g}"


# The dimension by which a row says how its tokens spread.
DISTRIBUTION = Dim(
    "distribution",
    "how tokens spread over experts",
    least=0.0,
    default=BALANCED,
    whole=False,
    most=STEEPEST,
    read=distribution,
    write=distribution_name,
    words="balanced, or power_law_ and an exponent (power_law_1.01)",
    feature="code",
)


class Routing(NamedTuple):
    """What decides the load of a layer's ranks, float64 [n] each.

    tokens    of the whole expert-parallel group; each goes to `top_k` of `experts`
    ranks     groups of devices among which experts are dealt
    exponent  of the power law by which tokens spread over experts; BALANCED
    """

    tokens: Floats
    top_k: Floats
    experts: Floats
    ranks: Floats
    exponent: Floats


def _power(exponent: Floats) -> Floats:
    """The power of the integrand, float64 [n], kept off zero, where the integral is a logarithm."""
    power: Floats = np.where(np.abs(exponent) < _NEAR_ZERO, _NEAR_ZERO, exponent)
    return power


def _skewed(routing: Routing) -> tuple[Floats, Floats]:
    """The largest expert's share of all pairs, and the share of active experts, float64 [n] each."""
    tokens, experts, exponent = routing.tokens, routing.experts, routing.exponent
    pairs = tokens * routing.top_k
    many = pairs > experts
    low = np.where(many, 1.0, _FEW[0])
    high = np.where(many, np.maximum(_LARGEST_SHARE * tokens, 2.0), _FEW[1])
    power, above = _power(1.0 - exponent), _power(2.0 - exponent)
    top = high**power
    span = top - low**power
    mass = high**above - low**above
    total = experts * mass * power / (above * span)  # of the draws of all experts
    # The largest of n draws lies about half an expert from the end of the distribution.
    largest = (top - 0.5 / experts * span) ** (1.0 / power)

    def at_least(share: float) -> tuple[Floats, Floats]:
        """The share of experts with at least `share` pairs, and their share of all pairs, float64 [n] each."""
        least = np.minimum(np.maximum(share * total / pairs, low), high)
        return (top - least**power) / span, (high**above - least**above) / mass

    # Shares are rounded, those of three and more evenly; what pairs that leaves go to experts without any.
    working, (ample, theirs) = at_least(0.5)[0], at_least(3.0)
    rounded = working + at_least(1.5)[0] + at_least(2.5)[0] - 3.0 * ample
    left = np.maximum(pairs * (1.0 - theirs) / experts - rounded, 0.0)
    return np.minimum(np.maximum(largest / total, 1.0 / experts), 1.0), np.minimum(working + left, 1.0)


def load(table: OpTable) -> tuple[Floats, Floats]:
    """(token, expert) pairs on the busiest rank of `moe` rows, and its active experts, float64 [n] each."""
    names = ("tokens", "top_k", "experts", "expert_parallel", "distribution")
    return load_of(Routing(*(table.column(name) for name in names)))


def load_of(routing: Routing) -> tuple[Floats, Floats]:
    """(token, expert) pairs on the busiest rank, and its active experts, float64 [n] each."""
    _, _, experts, ranks, exponent = routing
    pairs, local, even = routing.tokens * routing.top_k, experts / ranks, 1.0 / ranks
    skewed = exponent != BALANCED
    if not skewed.any():
        return pairs * even, np.maximum(np.minimum(local, pairs * even), 1.0)
    largest, working = _skewed(routing)
    rest = (local - 1.0) * (1.0 - largest) / np.maximum(experts - 1.0, 1.0)
    busiest = pairs * np.where(skewed, np.minimum(np.maximum(largest + rest, even), 1.0), even)
    active = np.minimum(np.where(skewed, local * working + _more(local, working, ranks), local), local)
    busiest = np.where(skewed, np.maximum(busiest, np.minimum(active, pairs)), busiest)
    return busiest, np.maximum(np.minimum(active, busiest), 1.0)


def _more(local: Floats, working: Floats, ranks: Floats) -> Floats:
    """Active experts on the busiest rank above the mean, [n]: the largest of `ranks` normal draws (Blom 1958)."""
    spread = np.sqrt(local * working * (1.0 - working) * (1.0 - 1.0 / ranks))
    sizes, which = np.unique(ranks, return_inverse=True)
    quantile = np.array([NormalDist().inv_cdf((size - 0.375) / (size + 0.25)) for size in sizes.tolist()])
    more: Floats = spread * quantile[which.reshape(ranks.shape)]
    return more


def loads(tokens: int, experts: int, top_k: int, exponent: float) -> Any:
    """Tokens of each expert, int [experts]: balanced, or the quantiles of the density x^-a."""
    pairs = tokens * top_k
    if exponent == BALANCED:
        return pairs // experts + (np.arange(experts) < pairs % experts)
    low, high = (1.0, max(_LARGEST_SHARE * tokens, 2.0)) if pairs > experts else _FEW
    share = (np.arange(experts) + 0.5) / experts
    power = (1.0 - exponent) or _NEAR_ZERO
    drawn = (low**power + share * (high**power - low**power)) ** (1.0 / power)
    ends = np.rint(np.cumsum(drawn) / drawn.sum() * pairs).astype(np.int64)
    return np.diff(ends, prepend=0)
