"""`auto`, the service's own predictor.

Kernels: two estimates, averaged in log space if both exist: the transfer of source measurements under a mixture of
bottlenecks (app.predictors.auto.kernels.bottlenecks), and costs fitted to all training rows of the same kernel
(app.predictors.auto.kernels.kernel_costs). Without training it uses documented priors and the request's own evidence.
Deep-learning operators: operators.model.
Kernel names only join rows; nothing branches on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from app.bands.groups import S_MEASURED, SUPPORT_OF_GROUP, operator_codes
from app.coefficients import Coefficients
from app.ops import OP_CODE
from app.predictors.auto.kernels.bottlenecks import BOTTLENECKS, FLOOR_S, Devices, Launches, Shares, devices_of
from app.predictors.auto.kernels.kernel_costs import (
    PRIOR_COST,
    KernelCosts,
    comparable_pairs,
    fit_kernels,
    launch_floors,
)
from app.predictors.auto.kernels.launch_time import LaunchQueries, Parameters, Times, fill_times
from app.predictors.auto.kernels.transfer import VARIANCES, Variances
from app.predictors.auto.layout import layout, learned_cells
from app.predictors.auto.operators.explain import Explanation, explained
from app.predictors.auto.operators.learning import learn as learning
from app.predictors.auto.operators.model import Learned
from app.predictors.auto.operators.models.packed import Prepared
from app.predictors.base import Capabilities
from app.predictors.roofline import hardware_limit
from app.predictors.schema import check_shape
from app.runtime.fields_only import fields_only
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements, OperatorRuns
from app.tables.ops import OpTable
from app.tables.predictions import MEASURED, Estimate, Predictions

_FITTED = Coefficients("launches")

FLOOR_CHOICES = _FITTED.numbers("floor_choices")
TRAFFIC_CHOICES = _FITTED.numbers("traffic_choices")
ANY = ""

_KERNEL = OP_CODE["kernel"]


@dataclass(frozen=True, eq=False)
class Auto:
    """Mixture of bottlenecks, averaged with fitted costs for trained kernels; learned models for operators."""

    name: ClassVar[str] = "auto"
    can: ClassVar[Capabilities] = Capabilities(
        ("launches", "operators"), ("launches", "operators"), takes_measured=True, explains=True
    )

    shares_: Shares = field(default_factory=Shares)
    floors_: Mapping[str, float] = field(default_factory=dict)
    default_floor_: float = FLOOR_S
    prior_cost_: Floats = field(default_factory=lambda: PRIOR_COST)
    kernels_: KernelCosts = field(default_factory=KernelCosts.none)
    architecture_: str = ANY  # the only one of the kernels trained on
    operators_: Learned = field(default_factory=Learned)
    variances_: Variances = VARIANCES

    __getstate__ = fields_only

    def devices(self, gpus: GpuTable) -> Devices:
        """Return the GPUs of the table for compiled code, with fitted launch floors; computed once per table.

        A floor is fitted to the GPU's rows, else the catalogue's measured figure, else NaN.
        """
        known: Devices | None = gpus.memo_of.get(self)
        if known is None:
            devices = devices_of(gpus)
            fitted = np.array([self.floors_.get(gpu, np.nan) for gpu in gpus.ids])
            floor_s = np.where(np.isnan(fitted), devices.floor_s, fitted)
            known = devices._replace(floor_s=floor_s, alike=self._alike(gpus))
            gpus.memo_of[self] = known
        return known

    def _alike(self, gpus: GpuTable) -> Bools:
        """Return where the fitted costs of kernels hold, bool [gpus].

        After training on one architecture they hold there only, as a kernel's costs on it say little of others.
        """
        alike: Bools = (_architectures(gpus) == self.architecture_) | (self.architecture_ == ANY)
        return alike

    def predict(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, *, evidence: Evidence) -> Estimate:
        """Return the estimates of operator row `i[q]` on GPU row `j[q]`; supports every row.

        A table holds either kernel launches or deep-learning operators.
        """
        if ops.kind.size and ops.kind[0] != _KERNEL:
            return _with_hits(self.operators_.estimate(ops, gpus, i, j), ops, gpus, i, j, evidence)
        rows = evidence.rows
        times = Times.empty(len(i))
        sources = Launches.of(rows.ops, np.arange(len(evidence)), rows.gpu)
        fill_times(
            LaunchQueries(Launches.of(ops, i, j), sources, rows.latency_s, evidence.query),
            self.devices(gpus),
            self._parameters,
            times,
        )
        support = SUPPORT_OF_GROUP[times.group]
        return Estimate(times.latency_s, times.bound, support, times.group, None, times.limit_s, times.half_width)

    @cached_property
    def _parameters(self) -> Parameters:
        kernels = self.kernels_
        return Parameters(
            self.shares_.floor,
            self.shares_.traffic,
            self.default_floor_,
            self.prior_cost_,
            kernels.label,
            np.ascontiguousarray(kernels.log_likelihood),
            np.ascontiguousarray(kernels.cost),
            self.variances_,
        )

    def fit(self, measurements: Measurements, gpus: GpuTable, *, target_gpu: str | None = None) -> Auto:
        """Return `auto` with launch floors, mechanisms and costs fitted, and Shares chosen by holding out each GPU.

        All rows are used, whatever `target_gpu` is: a version for one GPU differs in its intervals.
        """
        trained = [int(g) for g in np.unique(measurements.gpu)]
        choices = [Shares(*pair) for pair in product(FLOOR_CHOICES, TRAFFIC_CHOICES)]
        shares = Shares()
        if len(trained) >= 3:
            errors = [_held_out_error(measurements, gpus, trained, choice) for choice in choices]
            shares = choices[int(np.argmin(errors))]
        return replace(_learn(measurements, gpus, shares), operators_=self.operators_)

    def fit_operators(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Auto:
        """Return `auto` with the operators and dtypes of `runs` learned (learning.learn)."""
        return replace(self, operators_=learning.fit(self.operators_, runs, gpus))

    def with_measured(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Auto:
        """Return `auto` calibrated to the measured rows of `runs`, in seconds and without training."""
        return self.with_corrections([self.corrections(runs, gpus)], gpus)

    def corrections(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> learning.Corrections:
        """Return the calibration to the measured rows of `runs`, which `with_corrections` takes."""
        return learning.corrections(self.operators_, runs, gpus)

    def with_corrections(
        self, parts: Iterable[learning.Corrections], gpus: GpuTable, prepared: Prepared | None = None
    ) -> Auto:
        """Return `auto` calibrated, in milliseconds; `parts` were fitted to distinct operators or GPUs."""
        operators = learning.corrected(self.operators_, parts, gpus)
        if prepared is not None:
            operators = operators.with_prepared(prepared, self.operators_, gpus)
        return replace(self, operators_=operators)

    def prepared(self, gpus: GpuTable) -> Prepared:
        """Return what `with_corrections` derives from the same corrections otherwise, at the first answer: 0.2 s."""
        return self.operators_.prepared(gpus)

    layout = staticmethod(layout)
    learned_cells = staticmethod(learned_cells)

    def ran_on(self, gpu: str) -> NDArray[np.bool_]:
        """Operators and dtypes that were measured on a GPU, by its id, bool [kinds, dtypes]."""
        return self.operators_.ran_on(gpu)

    def expected_errors(self, rows: Measurements, gpus: GpuTable) -> Floats | None:
        """Covariance of the errors of rows while none is measured (learning.expected_errors), float64 [n, n]."""
        return learning.expected_errors(self.operators_, rows, gpus)

    def explained(self, ops: OpTable, gpus: GpuTable, j: Ints, answer: Predictions) -> list[Explanation]:
        """Why row `q` of `ops` on GPU row `j[q]` has its `answer`."""
        return explained(self.operators_, ops, gpus, j, answer)

    def state(self) -> dict[str, Any]:
        """Return plain containers and arrays."""
        return {
            "shares": [self.shares_.floor, self.shares_.traffic],
            "floors": dict(self.floors_),
            "default_floor": self.default_floor_,
            "prior_cost": self.prior_cost_,
            "label": self.kernels_.label,
            "log_likelihood": self.kernels_.log_likelihood,
            "cost": self.kernels_.cost,
            "architecture": self.architecture_,
            "operators": self.operators_.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the predictor of a `state`."""
        kernels = KernelCosts(state["label"], state["log_likelihood"], state["cost"])
        check_shape("prior costs", state["prior_cost"], len(BOTTLENECKS))
        for part in (kernels.log_likelihood, kernels.cost):
            check_shape("figures of kernels", part, len(BOTTLENECKS), len(kernels.label))
        learned = Learned.from_state(state["operators"])
        shares, only = Shares(*state["shares"]), state.get("architecture", ANY)  # versions trained before have none
        return cls(shares, state["floors"], state["default_floor"], state["prior_cost"], kernels, only, learned)


def _with_hits(estimate: Estimate, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, evidence: Evidence) -> Estimate:
    """Return `estimate`, in place, with measured times where `evidence` holds the same operator on the same GPU."""
    hits = evidence.query
    if not len(hits):
        return estimate
    estimate.latency_s[hits], estimate.support[hits] = evidence.rows.latency_s, MEASURED
    estimate.group[hits] = operator_codes(ops.kind[i[hits]], ops.dtype[i[hits]], S_MEASURED)
    if estimate.stretch is not None:
        estimate.stretch[hits] = 1.0
    # A measured time may be under the learned limit: faster than rings over a slot, never than a bridge.
    limit = hardware_limit(ops, gpus, i, j)
    bound = np.where(estimate.latency_s >= limit.latency_s, estimate.bound, limit.bound)
    return replace(estimate, bound=bound, limit_s=limit.latency_s)


def _learn(measurements: Measurements, gpus: GpuTable, shares: Shares) -> Auto:
    floors = launch_floors(measurements, gpus)
    floor_s = np.array([floors[gpus.ids[g]] for g in measurements.gpu])
    kernels, cost = fit_kernels(measurements, gpus, floor_s, shares)
    trained_on = np.unique(_architectures(gpus)[measurements.gpu])
    only = str(trained_on[0]) if len(trained_on) == 1 else ANY
    # Too long a floor may double a short kernel's time, too short a floor at most halves it: take the least, but not
    # that of one architecture, which may all have been timed in one way.
    default = min(floors.values()) if only == ANY else FLOOR_S
    return Auto(shares, floors, default, cost, kernels, only)


def _architectures(gpus: GpuTable) -> NDArray[np.str_]:
    """Return every GPU's architecture; its id where a table has none."""
    return np.array(gpus.architectures or gpus.ids)


def _held_out_error(measurements: Measurements, gpus: GpuTable, trained: list[int], shares: Shares) -> float:
    """Return the mean absolute log error of predictions from single sources, each GPU held out in turn."""
    errors = []
    for gpu in trained:
        fitted = _learn(measurements.take(np.flatnonzero(measurements.gpu != gpu)), gpus, shares)
        source, target = comparable_pairs(measurements)
        chosen = measurements.gpu[target] == gpu
        source, target = source[chosen], target[chosen]
        if len(source):
            evidence = Evidence(measurements.take(source), np.arange(len(source)))
            answer = fitted.predict(measurements.ops, gpus, target, measurements.gpu[target], evidence=evidence)
            errors.append(np.abs(np.log(answer.latency_s / measurements.latency_s[target])).mean())
    return float(np.mean(errors)) if errors else np.inf
