"""Our own predictor: `auto`.

Two views of a launch, blended evenly in log space where both exist: what its sources imply under a mixture of
bottlenecks (app.predictors.transfer), and the costs fitted to all training rows of the same kernel
(app.predictors.kernel_knowledge). Without training it runs on documented priors and the request's own evidence.
Kernel names only join rows; nothing branches on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors.bottlenecks import Bottlenecks, bottlenecks
from app.predictors.intervals import NO_EVIDENCE, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU, best_group, relations
from app.predictors.kernel_knowledge import PRIOR_COST, KernelKnowledge, launch_floors, learn_kernels, like_pairs
from app.predictors.transfer import (
    FLOOR_S,
    Mixture,
    Shares,
    hypothesis_prior,
    mechanism_prior,
    mix,
    normalised,
    source_spread,
    time_s,
    transfer,
    work_s,
)
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable, concatenate
from app.tables.predictions import COMPUTE, EXTRAPOLATED, INTERPOLATED, LAUNCH, MEASURED, MEMORY, Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# A kernel's own measured work outweighs its fitted costs from this multiple of the launch floor.
TRUSTED_WORK = 6.0
# A fitted cost of zero everywhere still predicts a time.
_LEAST_EXPECTED_S = 1e-12
_ROUNDING = 1e-9
# Up to this many GPU rows are looked up one by one; more are looked up once each.
_FEW = 8
FLOOR_CHOICES = (0.6, 0.8, 1.0)
TRAFFIC_CHOICES = (0.5, 0.65, 0.8)


@dataclass(frozen=True, slots=True)
class _Case:
    """A query table laid out for transfer: m sources, n targets.

    launches  OpTable [m + n], sources first
    query     int [m], target of every source
    source_floor_s [m], target_floor_s [n], work [m]  float64, seconds
    """

    launches: OpTable
    query: Ints
    source: Bottlenecks
    target: Bottlenecks
    source_floor_s: Floats
    target_floor_s: Floats
    work: Floats


_SUPPORT = np.array([MEASURED, INTERPOLATED, INTERPOLATED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED])


@dataclass(frozen=True)
class Auto:
    """Mixture of bottlenecks, blended with fitted kernel costs where the kernel was trained on."""

    name: ClassVar[str] = "auto"
    trainable: ClassVar[bool] = True
    needs_training: ClassVar[bool] = False

    shares_: Shares = field(default_factory=Shares)
    floors_: Mapping[str, float] = field(default_factory=dict)
    default_floor_: float = FLOOR_S
    prior_cost_: Floats = field(default_factory=lambda: PRIOR_COST)
    kernels_: KernelKnowledge = field(default_factory=KernelKnowledge.none)

    def floor_s(self, gpus: GpuTable, j: Ints) -> Floats:
        """Launch floor of GPU rows `j` [n], seconds."""
        if not self.floors_:
            return np.full(len(j), self.default_floor_)
        rows, inverse = np.unique(j, return_inverse=True) if len(j) > _FEW else (j, slice(None))
        return np.array([self.floors_.get(gpus.ids[k], self.default_floor_) for k in rows])[inverse]

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Latency of operator row `i[q]` on GPU row `j[q]`, float64 [n] seconds; supports every row."""
        queries = ops.take(i)
        launches = concatenate([evidence.rows.ops, queries])
        case = self._case(launches, gpus, np.concatenate([evidence.rows.gpu, j]), evidence, len(i))
        relation = relations(ops, i, j, evidence)
        group = best_group(relation, evidence.query, len(i))
        known, column = self.kernels_.find(queries.label)
        learned = self.kernels_.log_likelihood[:, column] if known.any() else np.zeros((5, 1))
        mixture = self._mixture(case, relation, group, np.where(known, learned, 0.0))
        log_work = mixture.mean
        # Rows of the target GPU itself say more than costs averaged over GPUs.
        fitted = known & (group > SAME_GPU)
        if fitted.any():
            same = evidence.rows.ops.label == queries.label[evidence.query]
            log_work = np.where(fitted, 0.5 * (log_work + self._fitted(case, column, same)), log_work)
            group = np.where(fitted, np.minimum(group, OTHER_GPU_AND_SIZE), group)
        latency = time_s(np.maximum(np.exp(log_work), case.target.limit_s), case.target_floor_s, self.shares_)
        return Estimate(latency, _bound(mixture, case, latency), _SUPPORT[group], group)

    def _case(self, launches: OpTable, gpus: GpuTable, where: Ints, evidence: Evidence, n: int) -> _Case:
        m = len(evidence)
        units = bottlenecks(launches, gpus, np.arange(m + n), where)
        floors = self.floor_s(gpus, where)
        source = Bottlenecks(units.limit_s[:m], units.unit_s[:, :m])
        return _Case(
            launches=launches,
            query=evidence.query,
            source=source,
            target=Bottlenecks(units.limit_s[m:], units.unit_s[:, m:]),
            source_floor_s=floors[:m],
            target_floor_s=floors[m:],
            work=work_s(evidence.rows.latency_s, floors[:m], source.limit_s, self.shares_),
        )

    def _mixture(self, case: _Case, relation: Ints, group: Ints, learned: Floats) -> Mixture:
        """Sources where there are any, prior costs where not; half and half where the only source is another kernel."""
        n, m = len(group), len(relation)
        mechanisms = mechanism_prior(case.launches, np.arange(m + n))
        strong = group < RELATED
        if not strong.all():
            prior = self._unmeasured(mechanisms[:, m:], case.target, learned)
            if not m:
                return prior
        rows = np.arange(m)
        pairs = transfer(case.work, mechanisms[:, :m], case.source, case.target.take(case.query), self.shares_)
        spread = source_spread(relation, case.launches.take(rows), case.launches.take(m + case.query))
        answer = mix(pairs, spread, case.query, n)
        if strong.all():
            return normalised(answer.log_work, answer.log_prior + learned)
        trust = np.where(group == NO_EVIDENCE, 0.0, np.where(strong, 1.0, 0.5))
        answered = np.isfinite(answer.log_work)
        sourced = normalised(
            np.where(answered, answer.log_work, 0.0), np.where(answered, answer.log_prior, 0.0) + learned
        )
        weight = trust * sourced.weight + (1.0 - trust) * prior.weight
        log_work = trust * sourced.weight * sourced.log_work + (1.0 - trust) * prior.weight * prior.log_work
        return Mixture(log_work / weight, weight)

    def _unmeasured(self, mechanisms: Floats, target: Bottlenecks, learned: Floats) -> Mixture:
        """What launches without any source take: prior costs, mechanisms by their own description."""
        unit = target.unit_s * self.prior_cost_[:, None]
        log_work = np.log(np.maximum(np.maximum(unit, unit[0]), target.limit_s))
        return normalised(log_work, hypothesis_prior(mechanisms, np.zeros(unit.shape[1])) + learned)

    def _fitted(self, case: _Case, column: Ints, same: NDArray[np.bool_]) -> Floats:
        """Log work [n] by the kernels' fitted costs, corrected by each query's own sources."""
        n, query = len(column), case.query
        cost = self.kernels_.cost[:, column]
        fitted = np.log(np.maximum((cost * case.target.unit_s).sum(axis=0), case.target.limit_s))
        expected = np.maximum((cost[:, query] * case.source.unit_s).sum(axis=0), _LEAST_EXPECTED_S)
        trust = np.minimum(case.work / (TRUSTED_WORK * case.source_floor_s), 1.0)
        correction = np.where(same, trust * np.log(case.work / expected), 0.0)
        sources = np.maximum(np.bincount(query, same, n), 1.0)
        corrected: Floats = fitted + np.bincount(query, correction, n) / sources
        return corrected

    def fit(self, measurements: Measurements, gpus: GpuTable) -> Auto:
        """Learn launch floors, mechanisms and costs; choose the two shares by holding each GPU out in turn."""
        trained = [int(g) for g in np.unique(measurements.gpu)]
        choices = [Shares(*pair) for pair in product(FLOOR_CHOICES, TRAFFIC_CHOICES)]
        if len(trained) < 3:
            return _learn(measurements, gpus, Shares())
        errors = [_held_out_error(measurements, gpus, trained, shares) for shares in choices]
        return _learn(measurements, gpus, choices[int(np.argmin(errors))])

    def state(self) -> dict[str, Any]:
        """Plain containers and arrays."""
        return {
            "shares": [self.shares_.floor, self.shares_.traffic],
            "floors": dict(self.floors_),
            "default_floor": self.default_floor_,
            "prior_cost": self.prior_cost_,
            "label": self.kernels_.label,
            "log_likelihood": self.kernels_.log_likelihood,
            "cost": self.kernels_.cost,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        kernels = KernelKnowledge(state["label"], state["log_likelihood"], state["cost"])
        return cls(Shares(*state["shares"]), state["floors"], state["default_floor"], state["prior_cost"], kernels)


def _learn(measurements: Measurements, gpus: GpuTable, shares: Shares) -> Auto:
    floors = launch_floors(measurements, gpus)
    # Too long a floor doubles a short kernel's time, too short a one at most halves it: take the least.
    default = min(floors.values(), default=FLOOR_S)
    floor_s = np.array([floors[gpus.ids[g]] for g in measurements.gpu])
    kernels, cost = learn_kernels(measurements, gpus, floor_s, shares)
    return Auto(shares, floors, default, cost, kernels)


def _held_out_error(measurements: Measurements, gpus: GpuTable, trained: list[int], shares: Shares) -> float:
    """Mean absolute log error of single sources, each GPU held out in turn."""
    errors = []
    for gpu in trained:
        fitted = _learn(measurements.take(np.flatnonzero(measurements.gpu != gpu)), gpus, shares)
        source, target = like_pairs(measurements)
        chosen = measurements.gpu[target] == gpu
        source, target = source[chosen], target[chosen]
        if len(source):
            evidence = Evidence(measurements.take(source), np.arange(len(source)))
            answer = fitted.predict(measurements.ops, gpus, target, measurements.gpu[target], evidence=evidence)
            errors.append(np.abs(np.log(answer.latency_s / measurements.latency_s[target])).mean())
    return float(np.mean(errors)) if errors else np.inf


def _bound(mixture: Mixture, case: _Case, latency: Floats) -> Ints:
    """What holds every query up: launch when the floor is over half its time, else traffic or the SMs."""
    moving = mixture.log_work <= np.log(case.target.unit_s[0]) + _ROUNDING
    moving[0] = True
    memory = (mixture.weight * moving).sum(axis=0) >= 0.5
    return np.where(case.target_floor_s > 0.5 * latency, LAUNCH, np.where(memory, MEMORY, COMPUTE))
