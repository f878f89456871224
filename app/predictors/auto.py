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
FLOOR_CHOICES = (0.6, 0.8, 1.0)
TRAFFIC_CHOICES = (0.5, 0.65, 0.8)


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
        if len(j) < 8:
            return np.array([self.floors_.get(gpus.ids[k], self.default_floor_) for k in j])
        rows, inverse = np.unique(j, return_inverse=True)
        return np.array([self.floors_.get(gpus.ids[k], self.default_floor_) for k in rows])[inverse]

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Latency of operator row `i[q]` on GPU row `j[q]`, float64 [n] seconds; supports every row."""
        n, m = len(i), len(evidence)
        query = evidence.query
        stacked = concatenate([evidence.rows.ops, ops.take(i)])
        where = np.concatenate([evidence.rows.gpu, j])
        both = bottlenecks(stacked, gpus, np.arange(m + n), where)
        floors = self.floor_s(gpus, where)
        source = Bottlenecks(both.limit_s[:m], both.unit_s[:, :m])
        target = Bottlenecks(both.limit_s[m:], both.unit_s[:, m:])
        work = work_s(evidence.rows.latency_s, floors[:m], source.limit_s, self.shares_)

        known, column = self.kernels_.find(ops.label[i])
        learned = np.where(known, self.kernels_.log_likelihood[:, column], 0.0) if known.any() else np.zeros((5, n))
        relation = relations(ops, i, j, evidence)
        group = best_group(relation, query, n)
        mechanisms = mechanism_prior(stacked, np.arange(m + n))
        mixture = self._unmeasured(mechanisms[:, m:], target, learned)
        if m:
            spread = source_spread(relation, ops, i, evidence)
            at_query = Bottlenecks(target.limit_s[query], target.unit_s[:, query])
            pairs = transfer(work, mechanisms[:, :m], source, at_query, self.shares_)
            mixture = _prefer(mix(pairs, spread, learned, query, n), mixture, group)
        log_work = (mixture.weight * mixture.log_work).sum(axis=0)
        # Rows of the target GPU itself say more than costs averaged over GPUs.
        blended = known & (group > SAME_GPU)
        if blended.any():
            log_work = self._blend_fitted(
                log_work, blended, column, target, (source, work, floors[:m], evidence, ops, i)
            )
            group = np.where(blended, np.minimum(group, OTHER_GPU_AND_SIZE), group)
        latency = time_s(np.maximum(np.exp(log_work), target.limit_s), floors[m:], self.shares_)
        return Estimate(latency, _bound(mixture, target, latency, floors[m:]), _support(group), group)

    def _unmeasured(self, mechanisms: Floats, target: Bottlenecks, learned: Floats) -> Mixture:
        """What launches without any source take: prior costs, mechanisms by their own description."""
        unit = target.unit_s * self.prior_cost_[:, None]
        log_work = np.log(np.maximum(np.maximum(unit, unit[0]), np.maximum(target.limit_s, 1e-12)))
        log_weight = hypothesis_prior(mechanisms, np.full(unit.shape[1], -np.inf), self.shares_.traffic) + learned
        weight = np.exp(log_weight - log_weight.max(axis=0))
        return Mixture(log_work, weight / weight.sum(axis=0))

    def _blend_fitted(
        self, log_work: Floats, known: NDArray[np.bool_], column: Ints, target: Bottlenecks, sources: tuple[Any, ...]
    ) -> Floats:
        """Average log work [n] with the kernels' fitted costs, corrected by each query's own sources."""
        source, work, floors, evidence, ops, i = sources
        cost = self.kernels_.cost[:, column]
        fitted = np.log(np.maximum((cost * target.unit_s).sum(axis=0), np.maximum(target.limit_s, 1e-12)))
        query = evidence.query
        if len(query):
            mine = evidence.rows.ops.label == ops.label[i[query]]
            expected = np.maximum((cost[:, query] * source.unit_s).sum(axis=0), 1e-12)
            trust = np.clip(work / (TRUSTED_WORK * floors), 0.0, 1.0)
            correction = np.where(mine, trust * np.log(work / expected), 0.0)
            rows = np.maximum(np.bincount(query, mine, len(i)), 1.0)
            fitted = fitted + np.bincount(query, correction, len(i)) / rows
        return np.where(known, 0.5 * (log_work + fitted), log_work)

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


def _prefer(sourced: Mixture, unmeasured: Mixture, group: Ints) -> Mixture:
    """Sources where there are any; half and half where the only source is another kernel."""
    trust = np.where(group == NO_EVIDENCE, 0.0, np.where(group == RELATED, 0.5, 1.0))
    log_work = np.where(trust > 0, sourced.log_work, 0.0)
    weight = np.where(trust > 0, sourced.weight, 0.0)
    return Mixture(
        trust * log_work + (1.0 - trust) * unmeasured.log_work, trust * weight + (1.0 - trust) * unmeasured.weight
    )


def _bound(mixture: Mixture, target: Bottlenecks, latency: Floats, floor_s: Floats) -> Ints:
    """What holds every query up: launch when the floor is over half its time, else traffic or the SMs."""
    traffic = target.unit_s[0]
    moving = mixture.log_work <= np.log(np.maximum(traffic, 1e-12)) + 1e-9
    moving[0] = traffic > 0
    memory = (mixture.weight * moving).sum(axis=0) >= 0.5
    return np.where(floor_s > 0.5 * latency, LAUNCH, np.where(memory, MEMORY, COMPUTE))


_SUPPORT = np.array([MEASURED, INTERPOLATED, INTERPOLATED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED])


def _support(group: Ints) -> Ints:
    support: Ints = _SUPPORT[group]
    return support
