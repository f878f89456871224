"""Search of served deployments: engines that a rate needs and limits of their batches, by the closed form first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import NamedTuple

import numpy as np

from app.bands.log_normal import limit_of_estimate
from app.bands.widths import LIMIT_MARGINS
from app.services.compare.request import Candidate
from app.services.compare.served_options import with_batch_limits
from app.services.serving.deployment import Deployment
from app.services.serving.engines import Engine, shape_of
from app.services.serving.load_figures import LoadFigures
from app.serving.steady_state import closed_loop, highest_rate, open_load

# Token budgets that are tried, as shares of the stack's own.
BUDGETS = (0.25, 0.5, 2.0, 4.0)
_BISECTIONS, _LEAST_TOKENS = 24, 512
# Share of the highest rate that engines get where their limits cannot be kept.
_BORNE = 0.7
# Sequences that a cap leaves beyond the mean ones.
_SPARE = 1.05


class Limits(NamedTuple):
    """Most milliseconds of the times by name, for this percentage of requests, with this probability."""

    ms: Mapping[str, float]
    percentile: float
    probability: float

    def of_means(self) -> dict[str, float]:
        """Return what the means may take, so that the limits are kept in spite of the usual uncertainty."""
        margins = LIMIT_MARGINS
        return {name: limit_of_estimate(limit, margins[name], self.probability) for name, limit in self.ms.items()}

    def missed(self, figures: LoadFigures) -> bool:
        """Return whether the percentile of a time is over its limit, or the load saturates the engines."""
        times = {"ttft_ms": figures.ttft, "tpot_ms": figures.tpot, "e2e_ms": figures.e2e}
        return figures.e2e is None or any(
            time is not None and 1e3 * time.chosen > self.ms[name] for name, time in times.items() if name in self.ms
        )


class Option(NamedTuple):
    """An engine on a GPU type, and how many the rate needs by the closed form; `able`: they keep the limits."""

    deployment: Deployment
    engine: Engine
    candidate: Candidate
    engines: int
    able: bool

    @property
    def price(self) -> float:
        """US dollars per hour of all devices, or without a price their number."""
        rate = self.candidate.rate
        each = 1.0 if rate is None else rate.usd_per_hour
        return self.engines * self.deployment.run.parallelism.devices * each


def option_of(deployment: Deployment, engine: Engine, candidate: Candidate, limits: Limits) -> Option:
    """Return the option with as many engines as the rate needs."""
    return Option(deployment, engine, candidate, *_engines_needed(deployment, engine, limits))


def _engines_needed(deployment: Deployment, engine: Engine, limits: Limits) -> tuple[int, bool]:
    """Return how many engines keep the limits in their means at the rate; or, with False, how many bear the rate."""
    shape, rate = shape_of(deployment), deployment.workload.load.rate_per_s or 0.0
    allowed = limits.of_means()

    def keeps(each: float) -> bool:
        state = open_load(engine.times, engine.limits, shape, each)
        means = {"ttft_ms": state.ttft_s, "tpot_ms": state.tpot_s, "e2e_ms": state.e2e_s}
        return bool(np.isfinite(state.e2e_s)) and all(1e3 * means[name] <= limit for name, limit in allowed.items())

    if keeps(rate):
        return 1, True
    most = highest_rate(engine.times, engine.limits, shape)
    if most == 0.0 or not keeps(1e-3 * most):
        return (1 if most == 0.0 else ceil(rate / (_BORNE * most))), False
    low, high = 1e-3 * most, most
    for _ in range(_BISECTIONS):
        if ceil(rate / low) == ceil(rate / high):
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return max(ceil(rate / low), 1), True


def with_best_budget(option: Option, limits: Limits) -> Option:
    """Return the option with the token budget that needs the fewest engines; the stack's own among equals."""
    if option.deployment.workload.max_batched_tokens is not None or (option.able and option.engines == 1):
        return option
    return min((option, *_other_budgets(option, limits)), key=lambda one: (not one.able, one.engines))


def _other_budgets(option: Option, limits: Limits) -> Iterator[Option]:
    own = option.engine.settings.budget_tokens
    for share in BUDGETS:
        tokens = int(share * own)
        if tokens >= _LEAST_TOKENS:
            deployment, engine = with_batch_limits(
                option.deployment, option.engine, option.candidate.spec, tokens=tokens
            )
            yield option_of(deployment, engine, option.candidate, limits)


def with_capped_batch(option: Option, limits: Limits) -> Option | None:
    """Return the option with as many sequences at once as keep the time per token; None where that changes nothing.

    Arrivals come in bunches: without a cap those of a bunch slow one another down, with it they wait.
    """
    limit, workload = limits.of_means().get("tpot_ms"), option.deployment.workload
    if limit is None or workload.max_sequences is not None:
        return None
    engine, shape = option.engine, shape_of(option.deployment)
    replicas = option.deployment.attention_replicas
    steady = open_load(engine.times, engine.limits, shape, (workload.load.rate_per_s or 0.0) / option.engines)
    if not np.isfinite(steady.tpot_s):
        return None
    low, high = ceil(_SPARE * steady.running / replicas), engine.settings.sequences

    def keeps(each: int) -> bool:
        return 1e3 * closed_loop(engine.times, engine.limits, shape, float(each * replicas)).tpot_s <= limit

    if low >= high or not keeps(low) or keeps(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    deployment, capped = with_batch_limits(option.deployment, engine, option.candidate.spec, sequences=low)
    return option._replace(deployment=deployment, engine=capped)
