"""A timed network in the words and units of the HTTP contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from msgspec import UNSET

from app.engine.engine import Engine
from app.engine.gpu_rows import GpuRows
from app.graphs.run import Run
from app.ops import OPS
from app.predictors.roofline import peaks
from app.services.models.memory import Room
from app.services.models.networks import Prepared, times_of
from app.services.models.steps import Step, passed_on
from app.services.operators.answers import ROOFLINE, over_slot, warnings
from app.services.operators.between_nodes import Asking
from app.services.operators.explanations import explanations
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES
from app.tables.predictions import BOUNDS, COMMUNICATION, EXTRAPOLATED, LAUNCH, MEASURED, SUPPORTS, Predictions
from app.tables.workload import PHASES
from app.wire.network_form import NetworkRequest
from app.wire.prediction_form import (
    AnsweredBy,
    Interval,
    MemoryParts,
    MemoryUse,
    OperatorRow,
    Phases,
    Prediction,
    ServingFigures,
    Share,
)

# A network is as well known as the worst of the rows that take this part of its time.
KNOWN_SHARE = 0.9
# What no operator accounts for: waiting for launches, links and other stages of a pipeline.
WAITING, COLLECTIVE = "waiting", "collective"
_COMMUNICATION = 3  # of phases_s


@dataclass(frozen=True, slots=True)
class Answering:
    """A network asked and timed on GPU rows `targets`; `notes` are warnings whatever the GPU.

    `advise` looks for what would make it fit.
    """

    engine: Engine
    gpus: GpuRows
    table: GpuTable
    request: NetworkRequest
    run: Run
    rows: Prepared
    step: Step
    room: Room
    targets: Sequence[int]
    notes: Sequence[str]
    serving: Sequence[ServingFigures] | None
    advise: bool

    def predictions(self) -> list[Prediction]:
        """One per target, in order."""
        return [_prediction(self, k) for k in range(len(self.targets))]

    @property
    def times(self) -> Floats:
        """How often each row runs in a whole step on all pipeline stages, float64 [n]."""
        return times_of(self.rows, self.run)

    def part(self, k: int) -> Predictions:
        """The distinct rows on target k."""
        u = len(self.rows.distinct.table)
        columns = (getattr(self.step.answer, name) for name in Predictions.__dataclass_fields__)
        return Predictions(*(column[k * u : k * u + u] for column in columns))


def _prediction(asked: Answering, k: int) -> Prediction:
    target, run, request = asked.targets[k], asked.run, asked.request
    spec, part = asked.gpus.spec(target), asked.part(k)
    step_s = float(asked.step.done.step_s[k])
    low, high = (float(end[k]) * 1e3 for end in (asked.step.low_s, asked.step.high_s))
    seconds = asked.step.done.rows_s[:, k]
    unanswered = int((~part.answered).sum())
    name = ROOFLINE if unanswered == len(part.answered) else request.predictor
    guest = asked.gpus.is_uncatalogued(target)
    measured = bool(asked.step.measured[k])
    alone = 0 if measured else int((part.support == EXTRAPOLATED).sum())
    slotted = over_slot(asked.rows.distinct.table, asked.table, target)
    if run.parallelism.pipeline > 1:
        slotted |= over_slot(passed_on(asked.rows.workload, run), asked.table, target)
    words = warnings(spec, request.predictor, unanswered=unanswered, alone=alone, slotted=slotted, guest=guest)
    used = asked.room.memory
    fits = used.required_bytes <= spec.memory_bytes
    parts = MemoryParts(*used)
    advised = asked.advise and not fits
    suggestions = asked.room.suggestions(spec.memory_bytes, _dtypes(asked.table, target)) if advised else []
    if not fits:
        words.append(f"does not fit in the memory of {spec.id}{': see suggestions' * bool(suggestions)}")
    dataset = request.workload.dataset_size
    shares = _shares(asked, k, seconds, step_s)
    return Prediction(
        spec.id,
        step_s * 1e3,
        Interval(low, high, request.coverage),
        BOUNDS[_bound(asked, k, part, seconds, shares)],  # type: ignore[arg-type]
        AnsweredBy(name, asked.engine.version_of(name, spec.id)),
        SUPPORTS[MEASURED if measured else _support(part.support[asked.rows.distinct.row], seconds)],  # type: ignore[arg-type]
        MemoryUse(used.required_bytes, spec.memory_bytes, fits, parts),
        shares,
        [*asked.notes, *words],
        _details(asked, target, part) if request.detail else None,
        devices=run.parallelism.devices,
        phases_ms=Phases(*(asked.step.done.phases_s[:, k] * 1e3).tolist()),
        throughput_per_s=run.batch / step_s,
        epoch_ms=UNSET if dataset is None else ceil(dataset / run.batch) * step_s * 1e3,
        largest_batch=asked.room.largest_batch(spec.memory_bytes),
        suggestions=suggestions if advised else UNSET,
        serving=UNSET if asked.serving is None else asked.serving[k],
    )


def _dtypes(gpus: GpuTable, target: int) -> set[str]:
    return {DTYPES[code] for code in np.flatnonzero(np.isfinite(peaks(gpus)[:, target])).tolist()}


def _shares(asked: Answering, k: int, seconds: Floats, step_s: float) -> list[Share]:
    """Where the time of one device goes, the largest first; the lines add up to the step.

    With pipeline stages, what an average stage computes. Of communication, what computation waits for.
    """
    rows, groups = asked.rows, (*asked.rows.groups, WAITING)
    busy = np.bincount(rows.group, weights=seconds, minlength=len(groups)) / asked.run.parallelism.pipeline
    count = np.bincount(rows.group, weights=asked.times, minlength=len(groups))
    if COLLECTIVE in groups:
        busy[groups.index(COLLECTIVE)] = asked.step.done.phases_s[_COMMUNICATION, k]
    busy[-1] = max(step_s - busy.sum(), 0.0)
    lines = zip(groups, (busy * 1e3).tolist(), (busy / busy.sum()).tolist(), count.tolist(), strict=True)
    parts = [Share(group, latency, share, int(operators)) for group, latency, share, operators in lines]
    return sorted(parts if busy[-1] > 0 else parts[:-1], key=lambda part: -part.share)


def _bound(asked: Answering, k: int, part: Predictions, seconds: Floats, shares: Sequence[Share]) -> int:
    """What most of the step goes into; what waits for neither links nor other stages waits for the host."""
    alone = ~asked.rows.workload.overlapped
    bound, weights = part.bound[asked.rows.distinct.row][alone], seconds[alone] / asked.run.parallelism.pipeline
    time = np.bincount(bound, weights=weights, minlength=len(BOUNDS))
    time[COMMUNICATION] = asked.step.done.phases_s[_COMMUNICATION, k]
    waiting = sum(share.latency_ms for share in shares if share.group == WAITING) / 1e3
    time[LAUNCH] += max(waiting - float(asked.step.done.bubble_s[k]), 0.0)
    return int(time.argmax())


def _support(support: Ints, seconds: Floats) -> int:
    """The best support that KNOWN_SHARE of the time has."""
    time = np.bincount(support, weights=seconds, minlength=len(SUPPORTS)).cumsum()
    return int(np.searchsorted(time, KNOWN_SHARE * time[-1]))


def _details(asked: Answering, target: int, part: Predictions) -> list[OperatorRow]:
    """One line per distinct row and phase, in the order they run, each of all its repetitions in the step together."""
    rows, table = asked.rows, asked.rows.distinct.table
    request, network = asked.request, asked.run.parallelism.network_bytes_per_s
    asking = Asking(asked.engine, table, asked.table, request.predictor, request.coverage, network)
    explanation = explanations(asking, target, part)
    key = rows.distinct.row * len(PHASES) + rows.workload.phase
    _, first, line = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(line.reshape(-1), weights=asked.times)
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
                predictor=asked.request.predictor if part.answered[q] else ROOFLINE,
                phase=PHASES[rows.workload.phase[row]],
                explanation=explanation[q],
            )
        )
    return lines
