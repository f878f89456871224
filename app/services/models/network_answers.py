"""Render a timed network as predictions of the HTTP contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from app.bands.coverage import COVERAGE
from app.engine.gpu_rows import GpuRows
from app.networks.run import Run
from app.ops import OPS
from app.predictors.roofline import peaks
from app.runtime.cancellation import check_cancelled
from app.services.models.memory_fit import MemoryFit
from app.services.operators.common import ROOFLINE, gpu_warnings, uses_slot
from app.services.operators.explanations import explanations
from app.steps.networks import Prepared, rows_per_step
from app.steps.stages import stage_transfer
from app.steps.timing import Step, StepQuery, time_rows
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES
from app.tables.predictions import BOUNDS, COMMUNICATION, EXTRAPOLATED, LAUNCH, MEASURED, SUPPORTS, Predictions
from app.tables.workload import PHASES
from app.warning_codes import CodedWarning, texts, warning
from app.wire.graph_form import NetworkRequest
from app.wire.prediction_form import (
    AnsweredBy,
    Explanation,
    Interval,
    MemoryParts,
    MemoryUse,
    OperatorRow,
    Phases,
    Prediction,
    ServingFigures,
    Share,
)

# A network's support is the worst one within this share of its time.
KNOWN_SHARE = 0.9
# Time without an operator: waiting for launches, links and other pipeline stages.
WAITING = "waiting"
# Lines of the breakdown whose operators send over links; what computation waits for of them is dealt by their times.
_SENDING = frozenset(op.group for op in OPS if op.link_bytes is not None)
_LEAST_S = 1e-30
_COMMUNICATION = 3  # of phases_s


@dataclass(frozen=True)
class NetworkAnswer:
    """A network timed on the GPUs of a query; `notes` are warnings for all of them.

    `advise` adds suggestions that make it fit.
    """

    query: StepQuery
    gpus: GpuRows
    request: NetworkRequest
    run: Run
    rows: Prepared
    step: Step
    room: MemoryFit
    notes: Sequence[CodedWarning]
    serving: Sequence[ServingFigures] | None
    advise: bool

    def predictions(self) -> list[Prediction]:
        """Return one prediction per target, in order."""
        return [_prediction(self, k) for k in range(len(self.query.targets))]

    @property
    def times(self) -> Floats:
        """How often each row runs in a whole step over all pipeline stages, float64 [n]."""
        return rows_per_step(self.rows, self.run)

    @cached_property
    def at_coverage(self) -> Predictions:
        """The predictions of the distinct rows on all targets, with intervals at the query's coverage."""
        if self.query.coverage == COVERAGE:
            return self.step.answer
        return time_rows(self.query, self.rows, self.run).answer

    def part(self, k: int, of: Predictions) -> Predictions:
        """Return the predictions of the distinct rows on target k, out of those on all targets."""
        u = len(self.rows.distinct.table)
        return of.take(slice(k * u, k * u + u))


def _prediction(network: NetworkAnswer, k: int) -> Prediction:
    check_cancelled()
    query, run, request = network.query, network.run, network.request
    target = query.targets[k]
    spec, part = network.gpus.spec(target), network.part(k, network.step.answer)
    step_s = float(network.step.done.step_s[k])
    low, high = (float(end[k]) * 1e3 for end in network.step.ends(request.coverage))
    seconds = network.step.done.rows_s[:, k]
    unanswered = int((~part.answered).sum())
    name = ROOFLINE if unanswered == len(part.answered) else request.predictor
    uncatalogued = network.gpus.is_uncatalogued(target)
    measured = bool(network.step.measured[k])
    unmeasured = 0 if measured else int((part.support == EXTRAPOLATED).sum())
    slotted = uses_slot(network.rows.distinct.table, query.gpus, target)
    if run.parallelism.pipeline > 1:
        slotted |= uses_slot(stage_transfer(network.rows.workload, run), query.gpus, target)
    messages = gpu_warnings(
        spec,
        request.predictor,
        unanswered=unanswered,
        unmeasured=unmeasured,
        slotted=slotted,
        uncatalogued=uncatalogued,
    )
    used = network.room.memory
    fits = used.required_bytes <= spec.memory_bytes
    parts = MemoryParts(*used)
    advised = network.advise and not fits
    suggestions = network.room.suggestions(spec.memory_bytes, _dtypes(query.gpus, target)) if advised else []
    if not fits:
        text = f"does not fit in the memory of {spec.id}{': see suggestions' * bool(suggestions)}"
        messages.append(warning("memory_exceeded", text))
    dataset = request.workload.dataset_size
    shares = _shares(network, k, seconds, step_s)
    warnings = [*network.notes, *messages]
    return Prediction(
        spec.id,
        step_s * 1e3,
        Interval(low, high, request.coverage),
        BOUNDS[_bound(network, k, part, seconds, shares)],  # type: ignore[arg-type]
        AnsweredBy(name, query.engine.version_of(name, spec.id)),
        SUPPORTS[MEASURED if measured else _support(part.support[network.rows.distinct.row], seconds)],  # type: ignore[arg-type]
        MemoryUse(used.required_bytes, spec.memory_bytes, fits, parts),
        shares,
        texts(warnings),
        warnings,
        _details(network, k) if request.detail else None,
        devices=run.parallelism.devices,
        phases_ms=Phases(*(network.step.done.phases_s[:, k] * 1e3).tolist()),
        throughput_per_s=run.batch / step_s,
        epoch_ms=UNSET if dataset is None else ceil(dataset / run.batch) * step_s * 1e3,
        largest_batch=network.room.largest_batch(spec.memory_bytes),
        suggestions=suggestions if advised else UNSET,
        serving=UNSET if network.serving is None else network.serving[k],
    )


def _dtypes(gpus: GpuTable, target: int) -> set[str]:
    return {DTYPES[code] for code in np.flatnonzero(np.isfinite(peaks(gpus)[:, target])).tolist()}


def _shares(network: NetworkAnswer, k: int, seconds: Floats, step_s: float) -> list[Share]:
    """Return where the time of one device goes, largest first; the entries add up to the step.

    Computation is that of an average pipeline stage, communication the part that computation waits for.
    """
    rows, groups = network.rows, (*network.rows.groups, WAITING)
    busy = np.bincount(rows.group, weights=seconds, minlength=len(groups)) / network.run.parallelism.pipeline
    count = np.bincount(rows.group, weights=network.times, minlength=len(groups))
    sends = np.array([group in _SENDING for group in groups])
    if sends.any():
        communication = network.step.done.phases_s[_COMMUNICATION, k]
        of_each = busy[sends] / max(busy[sends].sum(), _LEAST_S)
        busy[sends] = communication * of_each
    busy[-1] = max(step_s - busy.sum(), 0.0)
    lines = zip(groups, (busy * 1e3).tolist(), (busy / busy.sum()).tolist(), count.tolist(), strict=True)
    parts = [Share(group, latency, share, int(operators)) for group, latency, share, operators in lines]
    return sorted(parts if busy[-1] > 0 else parts[:-1], key=lambda part: -part.share)


def _bound(network: NetworkAnswer, k: int, part: Predictions, seconds: Floats, shares: Sequence[Share]) -> int:
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
    query, part = answer.query, answer.part(k, answer.at_coverage)
    rows, table = answer.rows, answer.rows.distinct.table
    longer = answer.step.longer.reshape(-1, len(table))[k]
    explanation = explanations(query.of_rows(table, answer.run), query.targets[k], part)
    key = rows.distinct.row * len(PHASES) + rows.workload.phase
    _, first, line = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(line.reshape(-1), weights=answer.times)
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
