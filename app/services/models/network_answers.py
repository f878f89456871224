"""Answers for timed networks: predictions of the HTTP contract, the memory of a run, and what would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, expm1, sqrt
from typing import NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from app.bands.band import Band, probability_within
from app.bands.coverage import COVERAGE
from app.bands.error_model import ErrorModel, Uncertainty
from app.engine.snapshot import GpuRows
from app.errors import BadInput
from app.networks.run import Run
from app.ops import OPS
from app.predictors.roofline import peaks
from app.runtime.cancellation import check_cancelled
from app.services.models.memory_fit import MemoryFit
from app.services.operators.explanations import explanations
from app.services.operators.predict_operators import ROOFLINE, gpu_warnings, uses_slot
from app.steps.levels import figure_of_step
from app.steps.networks import Prepared
from app.steps.run_formats import as_run
from app.steps.schedule import runs_in_step
from app.steps.stages import stage_transfer
from app.steps.timing import Step, StepQuery, time_rows
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES, OpTable
from app.tables.predictions import BOUNDS, COMMUNICATION, EXTRAPOLATED, LAUNCH, MEASURED, SUPPORTS, Predictions
from app.tables.workload import PHASES
from app.warning_codes import CodedWarning, warning
from app.wire.graph_form import NetworkRequest
from app.wire.network_form import FailuresIn
from app.wire.prediction_form import (
    AnsweredBy,
    Explanation,
    Goodput,
    Interval,
    MemoryParts,
    MemoryUse,
    NarrowedBy,
    OperatorRow,
    Phases,
    Prediction,
    ServingFigures,
    Share,
    WidthPart,
)

# A network's support is the worst one within this share of its time.
KNOWN_SHARE = 0.9
# Time without an operator: waiting for launches, links and other pipeline stages.
WAITING = "waiting"
# Lines of the breakdown whose operators send over links; what computation waits for of them is dealt by their times.
_SENDING = frozenset(op.group for op in OPS if op.link_bytes is not None)
_LEAST_S = 1e-30
# A wait under this part of the step is what the rounding of a sum leaves, which differs between processors.
_ROUNDING = 1e-9
_HOUR_S = 3600
# Means between failures in a checkpoint's interval beyond which a run gets on practically never.
_MOST_INTERVALS = 100
_COMMUNICATION = 3  # of phases_s


class StepFacts(NamedTuple):
    """What a timed step says beside its time: bound, support, who answered, where the time goes, and warnings."""

    bound: str
    support: str
    predictor: AnsweredBy
    breakdown: list[Share]
    warnings: list[CodedWarning]


class WidthFacts(NamedTuple):
    """Why an interval is as wide as it is, and what would narrow it."""

    width: list[WidthPart] | UnsetType
    narrowed_by: list[NarrowedBy] | UnsetType


UNEXPLAINED = WidthFacts(UNSET, UNSET)


def width_facts(errors: ErrorModel, uncertainty: Uncertainty, own: Band[float], support: str) -> WidthFacts:
    """Return the facts of an interval whose operators have this band and support."""
    parts = uncertainty.parts(own, interpolated=support != SUPPORTS[EXTRAPOLATED])
    kinds = errors.narrowed_by(uncertainty, own)
    return WidthFacts([WidthPart(*part) for part in parts], [NarrowedBy(*kind) for kind in kinds])


class TimedNetwork(NamedTuple):
    """A network timed on the GPUs of a query, which are rows of `gpus`."""

    query: StepQuery
    gpus: GpuRows
    run: Run
    rows: Prepared
    step: Step

    def table(self, k: int) -> OpTable:
        """Return the distinct rows in the formats that they run in on target k."""
        query, table = self.query, self.rows.distinct.table
        return as_run(query.engine, table, query.gpus, query.targets[k]) if self.run.assumed else table

    def part(self, k: int, of: Predictions) -> Predictions:
        """Return the predictions of the distinct rows on target k, out of those on all targets."""
        u = self.rows.distinct.table.kind.size
        return of.take(slice(k * u, k * u + u))

    def facts(self, k: int) -> StepFacts:
        """Return the facts of the step on target k."""
        query, run, rows, step = self.query, self.run, self.rows, self.step
        target, measured, seconds = query.targets[k], bool(step.measured[k]), step.done.rows_s[:, k]
        spec = self.gpus.spec(target)
        part = self.part(k, step.answer)
        unanswered = int((~part.answered).sum())
        name = ROOFLINE if unanswered == len(part.answered) else query.predictor
        slotted = uses_slot(rows.distinct.table, query.gpus, target)
        if run.parallelism.pipeline > 1:
            slotted |= uses_slot(stage_transfer(rows.workload, run), query.gpus, target)
        warnings = gpu_warnings(
            spec,
            query.predictor,
            unanswered=unanswered,
            unmeasured=0 if measured else int((part.support == EXTRAPOLATED).sum()),
            slotted=slotted,
            notes=[*self.gpus.notes(target), *self._substitutes(k)],
            together=run.parallelism.devices // run.parallelism.nodes,
        )
        shares = _shares(self, k, seconds)
        return StepFacts(
            BOUNDS[_bound(self, k, part, seconds, shares)],
            SUPPORTS[MEASURED if measured else _support(part.support[rows.distinct.row], seconds)],
            AnsweredBy(name, query.engine.version_of(name, spec.id)),
            shares,
            warnings,
        )

    def _substitutes(self, k: int) -> list[CodedWarning]:
        """Return a note on the formats that target k runs in place of those that nobody asked for."""
        assumed, table = self.rows.distinct.table, self.table(k)
        if table is assumed:
            return []
        pairs = sorted({*zip(assumed.dtype.tolist(), table.dtype.tolist(), strict=True)})
        changes = ", ".join(f"{DTYPES[run]} in place of {DTYPES[code]}" for code, run in pairs if code != run)
        return [warning("dtype_assumed", f"{self.gpus.spec(self.query.targets[k]).id} lacks the format: {changes}")]


@dataclass(frozen=True)
class NetworkAnswer:
    """The answer for a timed network; `notes` are warnings for all GPUs, `advise` adds suggestions that make it fit."""

    timed: TimedNetwork
    request: NetworkRequest
    room: MemoryFit
    notes: Sequence[CodedWarning]
    serving: Sequence[ServingFigures] | None
    advise: bool

    def predictions(self) -> list[Prediction]:
        """Return one prediction per target, in order."""
        return [self._prediction(k) for k in range(len(self.timed.query.targets))]

    @cached_property
    def at_coverage(self) -> Predictions:
        """The predictions of the distinct rows on all targets, with intervals at the query's coverage."""
        timed = self.timed
        if timed.query.coverage == COVERAGE:
            return timed.step.answer
        return time_rows(timed.query, timed.rows, timed.run).answer

    def _memory(self, k: int, capacity: float) -> MemoryUse:
        timed = self.timed
        required, levels = timed.rows.memory.required_bytes, timed.step.uncertainties[k].levels
        band = timed.query.engine.error_models["memory"].uncertainty(levels).band(Band.symmetric(0.0))
        return MemoryUse(
            required,
            capacity,
            required <= capacity,
            MemoryParts(*timed.rows.memory.breakdown),
            timed.rows.memory.parts if timed.run.mode == "training" else UNSET,
            Interval.of(required, band, self.request.coverage),
            probability_within(required, band, capacity),
        )

    def _width(self, k: int, support: str) -> WidthFacts:
        timed, step = self.timed, self.timed.step
        if not self.request.detail or step.measured[k]:
            return UNEXPLAINED
        errors = timed.query.engine.error_models[figure_of_step(timed.rows, timed.run)]
        own = Band(float(step.own.below[k]), float(step.own.above[k]))
        return width_facts(errors, step.uncertainties[k], own, support)

    def _prediction(self, k: int) -> Prediction:
        check_cancelled()
        (query, gpus, run, _, step), request = self.timed, self.request
        target, step_s = query.targets[k], float(step.done.step_s[k])
        low, high = (float(end[k]) * 1e3 for end in step.ends(request.coverage))
        facts, spec = self.timed.facts(k), gpus.spec(target)
        messages = [*self.notes, *facts.warnings]
        fits = self.timed.rows.memory.required_bytes <= spec.memory_bytes
        advised = self.advise and not fits
        suggestions = self.room.suggestions(spec.memory_bytes, _dtypes(query.gpus, target)) if advised else []
        if not fits:
            text = f"does not fit in the memory of {spec.id}{': see suggestions' * bool(suggestions)}"
            messages.append(warning("memory_exceeded", text))
        dataset = request.workload.dataset_size
        epoch_ms = UNSET if dataset is None else ceil(dataset / run.batch) * step_s * 1e3
        return Prediction(
            spec.id,
            step_s * 1e3,
            Interval(low, high, request.coverage),
            facts.bound,  # type: ignore[arg-type]
            facts.predictor,
            facts.support,  # type: ignore[arg-type]
            self._memory(k, spec.memory_bytes),
            facts.breakdown,
            [message.text for message in messages],
            messages,
            _details(self, k) if request.detail else None,
            *self._width(k, facts.support),
            devices=run.parallelism.devices,
            phases_ms=Phases(*(step.done.phases_s[:, k] * 1e3).tolist()),
            throughput_per_s=run.batch / step_s,
            epoch_ms=epoch_ms,
            goodput=goodput(request.workload.failures, run.parallelism.devices, epoch_ms),
            largest_batch=self.room.largest_batch(spec.memory_bytes),
            suggestions=suggestions if advised else UNSET,
            serving=UNSET if self.serving is None else self.serving[k],
        )


def goodput(failures: FailuresIn | None, devices: int, epoch_ms: float | UnsetType) -> Goodput | UnsetType:
    """Return the time of a run whose devices fail (Daly 2006). Raises BadInput for one that never gets on."""
    if failures is None:
        return UNSET
    mtbf, saving = failures.mtbf_hours_per_device * _HOUR_S / devices, failures.checkpoint_s
    share = saving / (2.0 * mtbf)
    best = mtbf if share >= 1.0 else 2.0 * mtbf * (sqrt(share) * (1.0 + sqrt(share) / 3.0 + share / 9.0) - share)
    interval = failures.checkpoint_interval_s or best
    if (interval + 2.0 * saving) / mtbf > _MOST_INTERVALS:
        message = f"all {devices} devices together run {mtbf:.3g} s between failures: the run never gets on"
        raise BadInput.at(("workload", "failures"), message)
    longer = mtbf / interval * exp(saving / mtbf) * expm1((interval + saving) / mtbf)
    expected_ms = UNSET if isinstance(epoch_ms, UnsetType) else longer * epoch_ms
    return Goodput(1.0 / longer, longer, mtbf, interval, best, expected_ms)


def _dtypes(gpus: GpuTable, target: int) -> set[str]:
    return {DTYPES[code] for code in np.flatnonzero(np.isfinite(peaks(gpus)[:, target])).tolist()}


def _shares(network: TimedNetwork, k: int, seconds: Floats) -> list[Share]:
    """Return where the time of one device goes, largest first; the entries add up to the step.

    Computation is that of an average pipeline stage, communication the part that computation waits for.
    """
    rows, groups = network.rows, (*network.rows.groups, WAITING)
    busy = np.bincount(rows.group, weights=seconds, minlength=len(groups)) / network.run.parallelism.pipeline
    count = np.bincount(rows.group, weights=runs_in_step(rows.workload, network.run), minlength=len(groups))
    sends = np.array([group in _SENDING for group in groups])
    if sends.any():
        communication = network.step.done.phases_s[_COMMUNICATION, k]
        of_each = busy[sends] / max(busy[sends].sum(), _LEAST_S)
        busy[sends] = communication * of_each
    step_s = float(network.step.done.step_s[k])
    busy[-1] = waited_s if (waited_s := step_s - busy.sum()) > _ROUNDING * step_s else 0.0
    lines = zip(groups, (busy * 1e3).tolist(), (busy / busy.sum()).tolist(), count.tolist(), strict=True)
    parts = [Share(group, latency, share, int(operators)) for group, latency, share, operators in lines]
    return sorted(parts if busy[-1] > 0 else parts[:-1], key=lambda part: -part.share)


def _bound(network: TimedNetwork, k: int, part: Predictions, seconds: Floats, shares: Sequence[Share]) -> int:
    """Return what most of the step is bound by; waiting for neither links nor stages is bound by launches."""
    alone = ~network.rows.workload.overlapped
    bound, weights = part.bound[network.rows.distinct.row][alone], seconds[alone] / network.run.parallelism.pipeline
    time = np.bincount(bound, weights=weights, minlength=len(BOUNDS))
    time[COMMUNICATION] = network.step.done.phases_s[_COMMUNICATION, k]
    waiting = sum(share.latency_ms for share in shares if share.group == WAITING) / 1e3
    time[LAUNCH] += max(waiting - float(network.step.done.bubble_s[k]), 0.0)
    return int(time.argmax())


def _support(support: Ints, seconds: Floats) -> int:
    """Return the best support that KNOWN_SHARE of the time has."""
    time = np.bincount(support, weights=seconds, minlength=len(SUPPORTS)).cumsum()
    return int(np.searchsorted(time, KNOWN_SHARE * time[-1]))


def _details(answer: NetworkAnswer, k: int) -> list[OperatorRow]:
    """Return one line per distinct row and phase, in order, for all its repetitions in the step together."""
    query, _, run, rows, step = answer.timed
    table, part = answer.timed.table(k), answer.timed.part(k, answer.at_coverage)
    longer = step.longer.reshape(-1, len(table))[k]
    explanation = explanations(query.of_rows(table, run), query.targets[k], part)
    key = rows.distinct.row * len(PHASES) + rows.workload.phase
    _, first, line = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(line.reshape(-1), weights=runs_in_step(rows.workload, run))
    lines = []
    for at in np.argsort(first).tolist():
        row = int(first[at])
        q, runs = int(rows.distinct.row[row]), float(count[at])
        lines.append(
            OperatorRow(
                op=OPS[table.kind[q]].name,
                latency_ms=float(part.latency_s[q]) * runs * 1e3,
                low_ms=float(part.low_s[q]) * runs * 1e3,
                high_ms=float(part.high_s[q]) * runs * 1e3,
                limit_ms=float(part.limit_s[q]) * runs * 1e3,
                bound=BOUNDS[part.bound[q]],
                flops=float(rows.work.flops[q]) * runs,
                bytes=float(rows.work.bytes[q]) * runs,
                name=rows.workload.names[row],
                group=rows.groups[rows.group[row]],
                dtype=DTYPES[table.dtype[q]],
                count=runs,
                support=SUPPORTS[part.support[q]],
                predictor=query.predictor if part.answered[q] else ROOFLINE,
                phase=PHASES[rows.workload.phase[row]],
                explanation=_in_network(explanation[q], float(longer[q])),
            )
        )
    return lines


def _in_network(alone: Explanation | UnsetType, longer: float) -> Explanation | UnsetType:
    """Return the explanation of an operator that takes `longer` times its latency in the network."""
    return alone if isinstance(alone, UnsetType) else replace(alone, in_network=longer)
