"""The engine: loaded predictors over one catalogue. Immutable; a change makes a new engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app import __version__
from app.bands.band import Band
from app.bands.conformal import Intervals, ends_of
from app.bands.error_model import ErrorModel, error_models
from app.bands.groups import NO_EVIDENCE
from app.engine.exact_hits import NO_OPERATORS, MeasuredModels, OperatorIndex, ServedPoints
from app.engine.power import PowerModel
from app.engine.prices import PriceBook
from app.engine.unlearned import Correction, Group, GroupKey
from app.errors import BadInput, FieldError, NotTrained
from app.predictors import BY_NAME, capabilities
from app.predictors.base import Predictor
from app.predictors.links import by_link, gpu_id_of
from app.predictors.physics.conditions import under_cap
from app.predictors.roofline import Limit, hardware_limit, roofline
from app.runtime.compiled import compiled
from app.stacks.release import ServingHosts
from app.tables.arrays import Floats, Ints
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.tables.predictions import EXTRAPOLATED, Estimate, Predictions
from app.training.operator_start import KeySet

POOLED = "*"


@dataclass(frozen=True, eq=False)
class Served:
    """A ready predictor, its intervals and the version that names both.

    rows   operator rows that the version was trained on; empty if the predictor cannot be calibrated with others
    uncalibrated  the predictor before it was calibrated with newer rows; None if it was not calibrated
    cells  operators and dtypes that it was trained on
    gpus   ids of GPUs whose operators it was trained on
    unlearned    stored rows that it was not trained on, by operator and GPU
    corrections  of `predictor`, by rows that were unlearned when they were fitted
    """

    predictor: Predictor
    intervals: Intervals
    version: str
    rows: tuple[KeySet, ...] = ()
    uncalibrated: Predictor | None = None
    cells: tuple[tuple[str, str], ...] = ()
    gpus: frozenset[str] = frozenset()
    unlearned: Mapping[GroupKey, Group] = field(default_factory=dict)
    corrections: Mapping[GroupKey, Correction] = field(default_factory=dict)

    def log_offsets(self, coverage: float) -> Floats:
        """Return the interval offsets of a coverage in log space, float64 [2, groups], cached."""
        return self.intervals.last_log_offsets(coverage)


def import_hint(predictor: str) -> str:
    """Return how to import measurements that a predictor can learn from, for error messages."""
    can = capabilities(predictor)
    kernels, operators = can.learns_launches, can.learns_operators
    if can.only_networks:
        ways = "'gpucast import timm DIR', 'gpucast measure --suite models' or POST /measurements"
        return f"Import measurements of networks ({ways})"
    of = "operators, kernels or both" if kernels and operators else "operators" if operators else "kernels"
    forms = [*(["neusight", "aiconfigurator"] if operators else []), *(["cuda-kernels"] if kernels else [])]
    commands = ", ".join(("'gpucast measure'", *(f"'gpucast import {form} DIR'" for form in forms)))
    return f"Add measurements of {of} ({commands} or POST /measurements)"


def untrained() -> dict[tuple[str, str], Served]:
    """Return the predictors that need no training, under the code's own version."""
    return {
        (name, POOLED): Served(predictor(), Intervals.prior(), f"{__version__}+untrained")
        for name, predictor in BY_NAME.items()
        if not predictor.can.needs_training
    }


@dataclass(frozen=True, slots=True)
class Refusal:
    """A version that should be served and is not.

    `absent`: its artefact is missing or damaged here, so that other processes may serve it. Otherwise it does not fit
    this version of the code.
    """

    predictor: str
    gpu_id: str
    version: str
    reason: str
    absent: bool

    def __str__(self) -> str:
        return f"{self.predictor} {self.version} for {self.gpu_id} is not served: {self.reason}"


@dataclass(frozen=True, slots=True)
class KernelIndex:
    """Stored kernel measurements by label: the evidence for requests that bring none.

    rows   Measurements whose `gpu` are rows of the engine's GpuTable
    spans  label -> rows of that kernel
    """

    rows: Measurements | None
    spans: Mapping[int, Ints]

    @classmethod
    def build(cls, rows: Measurements | None) -> KernelIndex:
        """Return the index of `rows`, grouped by label."""
        if rows is None or not len(rows):
            return cls(None, {})
        order = np.argsort(rows.ops.label, kind="stable")
        labels, start = np.unique(rows.ops.label[order], return_index=True)
        return cls(rows, dict(zip(labels.tolist(), np.split(order, start[1:]), strict=True)))

    def find(self, label: int) -> Measurements | None:
        """Return the stored rows of one kernel, or None."""
        span = self.spans.get(label)
        return None if span is None or self.rows is None else self.rows.take(span)


@dataclass(frozen=True, slots=True)
class MeasuredOperators:
    """Exact-match index over stored operator measurements.

    counts  number of rows per GPU id
    """

    index: OperatorIndex = NO_OPERATORS
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """Predictors by (name, GPU id or "*"), and the GPUs they know.

    `gpus` holds `catalog.specs` in order, so a curated GPU's row is its position there. `refused`: the versions that
    the database serves and this process cannot; `problems`: why others that ship are not served. `revision`: of the
    database that it describes; `corrected`: the same of its power model, and of the corrections of its predictors.
    `power_cap_w`: the power at which all boards are capped, watts; None: each runs at its own.
    """

    catalog: Catalog
    gpus: GpuTable
    served: Mapping[tuple[str, str], Served] = field(default_factory=untrained)
    kernels: KernelIndex = field(default_factory=lambda: KernelIndex(None, {}))
    revision: int = 0
    operators: MeasuredOperators = field(default_factory=MeasuredOperators)
    models: MeasuredModels = field(default_factory=MeasuredModels)
    prices: PriceBook = field(default_factory=PriceBook)
    power: PowerModel = field(default_factory=PowerModel)
    refused: tuple[Refusal, ...] = ()
    problems: tuple[str, ...] = ()
    corrected: int = -1
    served_points: ServedPoints = field(default_factory=ServedPoints)
    hosts: ServingHosts = field(default_factory=ServingHosts)
    error_models: Mapping[str, ErrorModel] = field(default_factory=error_models)
    power_cap_w: float | None = None

    @property
    def uncapped(self) -> Engine:
        """Itself, with boards at their own power."""
        return (
            self if self.power_cap_w is None else replace(self, power_cap_w=None, power=replace(self.power, cap_w=None))
        )

    def caps(self, spec: GpuSpec) -> bool:
        """Return whether a board runs at less than its own power."""
        return self.power_cap_w is not None and self.power_cap_w < (spec.board_power_w or 0.0)

    @property
    def messages(self) -> tuple[str, ...]:
        """Why versions are not served."""
        return (*map(str, self.refused), *self.problems)

    def serving(self, predictor: str, gpu_id: str) -> Served:
        """Return the version that answers for a GPU: its own if there is one, else the pooled one.

        Raises BadInput for an unknown predictor and NotTrained for one without any version.
        """
        if predictor not in BY_NAME:
            raise BadInput(
                f"Unknown predictor {predictor!r}: use one of {', '.join(sorted(BY_NAME))}.",
                errors=[FieldError(("predictor",), f"use one of {', '.join(sorted(BY_NAME))}")],
            )
        served = self.served.get((predictor, gpu_id)) or self.served.get((predictor, POOLED))
        served = served or self.served.get((predictor, gpu_id_of(gpu_id)))  # of a GPU over another link
        if served is None:
            raise NotTrained(
                f"{predictor} has no training data yet. {import_hint(predictor)}, "
                f'then POST /retrain {{"predictor": "{predictor}"}}.'
            )
        return served

    def version_of(self, predictor: str, gpu_id: str) -> str:
        """Return the name of the version that `serving` picks."""
        return self.serving(predictor, gpu_id).version

    def predict(
        self,
        ops: OpTable,
        gpus: GpuTable,
        i: Ints,
        j: Ints,
        *,
        predictor: str,
        coverage: float,
        evidence: Evidence,
    ) -> Predictions:
        """Return latency and interval of operator row `i[q]` on row `j[q]` of `gpus`, for every query q.

        Each query is answered by the version of its GPU. Results are never below the hardware limit; the roofline
        answers where the predictor has no support.
        """
        served = self.serving(predictor, gpus.ids[j[0]])
        if all(self.serving(predictor, gpus.ids[k]) is served for k in set(j.tolist())):
            answer = _finish(served, ops, gpus, i, j, coverage, evidence)
        else:
            answer = self._by_version(ops, gpus, i, j, predictor, coverage, evidence)
        return answer if self.power_cap_w is None else under_cap(answer, ops, gpus, i, j, coverage, self.power_cap_w)

    def predict_with_hits(
        self,
        ops: OpTable,
        gpus: GpuTable,
        i: Ints,
        j: Ints,
        *,
        predictor: str,
        coverage: float,
        requested: OpTable | None = None,
    ) -> Predictions:
        """Return the answer with measured times of the same operators, looked up by `requested` or `ops`."""
        evidence = self.operators.index.evidence(ops if requested is None else requested, i, j)
        return self.predict(ops, gpus, i, j, predictor=predictor, coverage=coverage, evidence=evidence)

    def _by_version(
        self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, predictor: str, coverage: float, evidence: Evidence
    ) -> Predictions:
        """Split queries by the version that answers, predict, and return the answers in query order."""
        versions = [self.serving(predictor, gpus.ids[k]) for k in j]
        parts, order = [], []
        for served in {id(version): version for version in versions}.values():
            mine = np.array([q for q, version in enumerate(versions) if version is served])
            rows = np.flatnonzero(np.isin(evidence.query, mine))
            part = Evidence(evidence.rows.take(rows), np.searchsorted(mine, evidence.query[rows]))
            parts.append(_finish(served, ops, gpus, i[mine], j[mine], coverage, part))
            order.append(mine)
        return Predictions.joined(parts).take(np.argsort(np.concatenate(order)))


def _finish(
    served: Served, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, coverage: float, evidence: Evidence
) -> Predictions:
    """Predict with one version, and apply hardware limit and intervals."""
    estimate = served.predictor.predict(ops, gpus, i, j, evidence=evidence)
    if estimate.limit_s is None:
        gpus, j = by_link(ops, gpus, i, j)
        limit = hardware_limit(ops, gpus, i, j)
        if np.isnan(estimate.latency_s).any():
            limit = replace(limit, roof_s=roofline(ops, gpus, i, j).latency_s)
    else:
        limit = Limit(estimate.limit_s, estimate.bound)
    return finished(estimate, limit, served.log_offsets(coverage), coverage)


class _Estimates(NamedTuple):
    """Arrays of an Estimate and of its Limit, [n] each; `latency_s` is NaN if unsupported."""

    latency_s: Floats
    bound: Ints
    support: Ints
    group: Ints
    stretch: Floats
    limit_s: Floats
    limit_bound: Ints
    roof_s: Floats


def finished(estimate: Estimate, limit: Limit, log_offsets: Floats, coverage: float) -> Predictions:
    """Return the predictions; rows without an estimate get the roofline.

    log_offsets  float64 [2, groups], lower and upper end of each group's interval relative to the time, in log space
    coverage     at which they are, and those of rows that have a half-width of their own
    """
    n = len(estimate.latency_s)
    stretch = np.ones(n) if estimate.stretch is None else estimate.stretch
    times, codes, answered = np.empty((4, n)), np.empty((3, n), dtype=np.intp), np.empty(n, dtype=np.bool_)
    answer = (estimate.latency_s, estimate.bound, estimate.support, estimate.group)
    roof_s = limit.latency_s if limit.roof_s is None else limit.roof_s
    estimates = _Estimates(*answer, stretch, limit.latency_s, limit.bound, roof_s)
    _fill(estimates, log_offsets, times, codes, answered)
    latency, low, high, limit_s = times
    if estimate.half_width is not None:
        own, ends = (
            answered & ~np.isnan(estimate.half_width),
            Band.symmetric(estimate.half_width).ends(latency, coverage),
        )
        low, high = np.where(own, np.maximum(ends[0], limit_s), low), np.where(own, ends[1], high)
    bound, support, group = codes
    return Predictions(latency, low, high, limit_s, bound, support, group, answered)


@compiled
def _fill(estimates: _Estimates, log_offsets: Floats, times: Floats, codes: Ints, answered: NDArray[np.bool_]) -> None:
    """Fill `times` [4, n], latency, interval and limit; `codes` [3, n], bound, support and group; `answered` [n]."""
    for q in range(len(estimates.latency_s)):
        estimate, limit, stretch = estimates.latency_s[q], estimates.limit_s[q], estimates.stretch[q]
        answered[q] = np.isfinite(estimate)
        over = answered[q] and estimate >= limit
        latency = estimate if over else limit if answered[q] else estimates.roof_s[q]
        codes[0, q] = estimates.bound[q] if over else estimates.limit_bound[q]
        codes[1, q] = estimates.support[q] if answered[q] else EXTRAPOLATED
        codes[2, q] = estimates.group[q] if answered[q] else NO_EVIDENCE
        times[0, q] = latency
        low, high = log_offsets[0, codes[2, q]], log_offsets[1, codes[2, q]]
        times[1, q], times[2, q] = ends_of(latency, low, high, stretch, limit)
        times[3, q] = limit
