"""How many engines of a GPU type keep the limits of a rate, by the closed form, and with which limits of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import NamedTuple

import numpy as np
from msgspec import structs

from app.bands.band import EXACT, Served, corrected, limit_of_estimate, probability_within, sum_correlated
from app.coefficients import Coefficients
from app.services.compare.request import Candidate
from app.services.serving.deployment import Deployment
from app.services.serving.engines import Engine, shape_of, with_limits
from app.services.serving.known_times import NearCapacity, Uncertainties
from app.services.serving.load_figures import LoadFigures
from app.serving.steady_state import closed_loop, highest_rate, open_load
from app.tables.gpus import GpuSpec

# Most devices of a plan.
_DEVICES = 4096
_BISECTIONS, _LEAST_TOKENS = 24, 512
_SERVING = Coefficients("serving")
# Token budgets that are tried, as shares of the stack's own.
BUDGETS = _SERVING.numbers("planned_budgets")
# Share of the highest rate that engines get where their limits cannot be kept.
_BORNE = _SERVING.number("planned_load")
# Sequences that a cap leaves, over the mean ones.
_SPARE = _SERVING.number("planned_sequences")


class Limits(NamedTuple):
    """Most milliseconds of the times by name, for this percentage of requests, with this probability."""

    ms: Mapping[str, float]
    percentile: float
    probability: float

    def of_means(self, known: Uncertainties) -> dict[str, float]:
        """Return what the means may take of an engine whose steps are known as well, far from its highest rate."""
        token, first = (one.band(EXACT) for one in known)
        bands = {"ttft_ms": first, "tpot_ms": token, "e2e_ms": token}
        return {
            name: limit_of_estimate(limit, bands[name].deviations().above, self.probability)
            for name, limit in self.ms.items()
        }

    def missed(self, figures: LoadFigures) -> bool:
        """Return whether the percentile of a time is over its limit, or the load saturates the engines."""
        times = {"ttft_ms": figures.ttft, "tpot_ms": figures.tpot, "e2e_ms": figures.e2e}
        return figures.e2e is None or any(
            time is not None and 1e3 * time.chosen > self.ms[name] for name, time in times.items() if name in self.ms
        )


class Option(NamedTuple):
    """An engine on a GPU type, and how many the rate needs by the closed form.

    known  of its times per token and to the first token
    able   whether so many engines keep the limits
    """

    deployment: Deployment
    engine: Engine
    candidate: Candidate
    known: Uncertainties
    engines: int
    able: bool

    @property
    def each(self) -> float:
        """What a device adds to `price`: its rent; 1 without a price, or if it is owned."""
        rate = self.candidate.rate
        return 1.0 if rate is None or rate.usd_per_kwh is not None else rate.usd_per_hour or 1.0

    @property
    def price(self) -> float:
        """US dollars per hour of all devices, or without a price their number."""
        return self.engines * self.deployment.run.parallelism.devices * self.each

    @property
    def token_s(self) -> float:
        """Mean seconds per output token at the rate, by the closed form."""
        rate = self.deployment.rate_per_s / self.engines
        return open_load(self.engine.times, self.engine.limits, shape_of(self.deployment), rate).tpot_s


def option_of(
    deployment: Deployment, engine: Engine, candidate: Candidate, known: Uncertainties, limits: Limits
) -> Option:
    """Return the option with as many engines as the rate needs."""
    allowed = limits.of_means(known)
    return Option(deployment, engine, candidate, known, *_engines_needed(deployment, engine, allowed))


def _engines_needed(deployment: Deployment, engine: Engine, allowed: Mapping[str, float]) -> tuple[int, bool]:
    """Return how many engines keep their means to these milliseconds; or, with False, how many bear the rate."""
    shape, rate = shape_of(deployment), deployment.rate_per_s

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


# Bands of operators that are not predicted yet.
_UNPREDICTED = Served(EXACT, EXACT)


class Fewest:
    """The fewest engines of an option that keep the limits by the closed form, as probably as is required.

    Times are the less certain, the nearer the rate of each engine is to its highest.
    """

    def __init__(self, option: Option, limits: Limits, own: Served = _UNPREDICTED) -> None:
        """`own`: the bands of operators in both times."""
        self._option, self._limits, self._most = option, limits, most_engines(option.deployment)
        token, first = option.known
        self._shape = shape_of(option.deployment)
        self._token, self._first = token.band(own.token), first.band(own.first)
        self._near = NearCapacity(option.engine, self._shape, self._token)

    def of(self, probability: float, least: int) -> int | None:
        """Return how many, at least this many, keep all limits with this probability; None if no number does."""
        low, high = least - 1, least
        while self._probability(high) < probability:
            if high >= self._most:
                return None
            low, high = high, min(2 * high, self._most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._probability(middle) >= probability else (middle, high)
        return high

    def more(self, engines: int, probability: float) -> int | None:
        """Return how many it takes where so many engines keep the limits with this probability only."""
        return self.of(corrected(self._limits.probability, self._probability(engines), probability), engines + 1)

    def _probability(self, engines: int) -> float:
        option, each = self._option, self._option.deployment.rate_per_s / engines
        state = open_load(option.engine.times, option.engine.limits, self._shape, each)
        per_token, to_first = self._near.elasticities(each)
        token, first = self._token.amplified(per_token), self._first.amplified(to_first)
        whole = sum_correlated([(state.ttft_s, first), (max(state.e2e_s - state.ttft_s, 0.0), token)])
        times = {"ttft_ms": (state.ttft_s, first), "tpot_ms": (state.tpot_s, token), "e2e_ms": (state.e2e_s, whole)}
        return min(
            (
                probability_within(1e3 * times[name][0], times[name][1], limit)
                for name, limit in self._limits.ms.items()
            ),
            default=1.0,
        )


def with_fewest(option: Option, limits: Limits) -> Option:
    """Return the option with the fewest engines that probably keep the limits; not `able` where no number does."""
    if not option.able:
        return option
    engines = Fewest(option, limits).of(limits.probability, option.engines)
    return option._replace(able=False) if engines is None else option._replace(engines=engines)


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
            yield option_of(deployment, engine, option.candidate, option.known, limits)


def with_capped_batch(option: Option, limits: Limits) -> Option | None:
    """Return the option with as many sequences at once as keep the time per token; None where that changes nothing.

    Arrivals come in bunches: without a cap those of a bunch slow one another down, with it they wait.
    """
    limit, workload = limits.of_means(option.known).get("tpot_ms"), option.deployment.workload
    if limit is None or workload.max_sequences is not None:
        return None
    engine, shape = option.engine, shape_of(option.deployment)
    replicas = option.deployment.attention_replicas
    steady = open_load(engine.times, engine.limits, shape, option.deployment.rate_per_s / option.engines)
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


def most_engines(deployment: Deployment) -> int:
    """Return how many engines of a deployment are planned at most."""
    return max(_DEVICES // deployment.run.parallelism.devices, 1)


def with_engines(deployment: Deployment, engines: int) -> Deployment:
    """Return the deployment with this number of engines."""
    parallelism = structs.replace(deployment.workload.parallelism, replicas=engines)
    return deployment._replace(workload=structs.replace(deployment.workload, parallelism=parallelism), engines=engines)


def with_batch_limits(
    deployment: Deployment, engine: Engine, spec: GpuSpec, *, tokens: int | None = None, sequences: int | None = None
) -> tuple[Deployment, Engine]:
    """Return the deployment and its engine with other limits of a step, of an attention replica; None: as it is."""
    workload = deployment.workload
    changed = structs.replace(
        workload,
        max_batched_tokens=workload.max_batched_tokens if tokens is None else tokens,
        max_sequences=workload.max_sequences if sequences is None else sequences,
    )
    deployment = deployment._replace(workload=changed)
    return deployment, with_limits(engine, deployment, spec)
