"""Answers for timed networks: predictions of the HTTP contract, the memory of a run, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import ceil, floor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import UNSET, UnsetType, structs
from msgspec.structs import replace

from app.bands.coverage import COVERAGE
from app.engine.snapshot import GpuRows
from app.errors import BadInput
from app.networks.run import Run
from app.ops import OPS
from app.predictors.roofline import peaks
from app.runtime.cancellation import check_cancelled
from app.services.operators.explanations import explanations
from app.services.operators.predict_operators import ROOFLINE, gpu_warnings, uses_slot
from app.steps.networks import Network, Prepared, bytes_for_batch, check_stages, forward_rows, rows_per_step
from app.steps.stages import memory, stage_transfer
from app.steps.timing import Step, StepQuery, time_rows
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPES
from app.tables.predictions import BOUNDS, COMMUNICATION, EXTRAPOLATED, LAUNCH, MEASURED, SUPPORTS, Predictions
from app.tables.workload import PHASES
from app.warning_codes import CodedWarning, warning
from app.wire.graph_form import NetworkRequest, NetworkWorkload
from app.wire.network_form import MOST_BATCH
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
    Suggestion,
)

# A network's support is the worst one within this share of its time.
KNOWN_SHARE = 0.9
# Time without an operator: waiting for launches, links and other pipeline stages.
WAITING = "waiting"
# Lines of the breakdown whose operators send over links; what computation waits for of them is dealt by their times.
_SENDING = frozenset(op.group for op in OPS if op.link_bytes is not None)
_LEAST_S = 1e-30
_COMMUNICATION = 3  # of phases_s


class StepFacts(NamedTuple):
    """What a timed step says beside its time: bound, support, who answered, where the time goes, and warnings."""

    bound: str
    support: str
    predictor: AnsweredBy
    breakdown: list[Share]
    warnings: list[CodedWarning]


class TimedNetwork(NamedTuple):
    """A network timed on the GPUs of a query, which are rows of `gpus`."""

    query: StepQuery
    gpus: GpuRows
    run: Run
    rows: Prepared
    step: Step

    def part(self, k: int, of: Predictions) -> Predictions:
        """Return the predictions of the distinct rows on target k, out of those on all targets."""
        u = self.rows.distinct.table.kind.size
        return of.take(slice(k * u, k * u + u))

    def facts(self, k: int) -> StepFacts:
        """Return the facts of the step on target k."""
        query, run, rows, step = self.query, self.run, self.rows, self.step
        target, measured, seconds = query.targets[k], bool(step.measured[k]), step.done.rows_s[:, k]
        spec, uncatalogued = self.gpus.spec(target), self.gpus.is_uncatalogued(target)
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
            uncatalogued=uncatalogued,
        )
        shares = _shares(self, k, seconds)
        return StepFacts(
            BOUNDS[_bound(self, k, part, seconds, shares)],
            SUPPORTS[MEASURED if measured else _support(part.support[rows.distinct.row], seconds)],
            AnsweredBy(name, query.engine.version_of(name, spec.id)),
            shares,
            warnings,
        )


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

    def _prediction(self, k: int) -> Prediction:
        check_cancelled()
        (query, gpus, run, _, step), request = self.timed, self.request
        target, step_s = query.targets[k], float(step.done.step_s[k])
        low, high = (float(end[k]) * 1e3 for end in step.ends(request.coverage))
        facts, spec = self.timed.facts(k), gpus.spec(target)
        used, messages = self.timed.rows.memory, [*self.notes, *facts.warnings]
        required = used.required_bytes
        fits = required <= spec.memory_bytes
        advised = self.advise and not fits
        suggestions = self.room.suggestions(spec.memory_bytes, _dtypes(query.gpus, target)) if advised else []
        if not fits:
            text = f"does not fit in the memory of {spec.id}{': see suggestions' * bool(suggestions)}"
            messages.append(warning("memory_exceeded", text))
        dataset = request.workload.dataset_size
        return Prediction(
            spec.id,
            step_s * 1e3,
            Interval(low, high, request.coverage),
            facts.bound,  # type: ignore[arg-type]
            facts.predictor,
            facts.support,  # type: ignore[arg-type]
            MemoryUse(required, spec.memory_bytes, fits, MemoryParts(*used)),
            facts.breakdown,
            [message.text for message in messages],
            messages,
            _details(self, k) if request.detail else None,
            devices=run.parallelism.devices,
            phases_ms=Phases(*(step.done.phases_s[:, k] * 1e3).tolist()),
            throughput_per_s=run.batch / step_s,
            epoch_ms=UNSET if dataset is None else ceil(dataset / run.batch) * step_s * 1e3,
            largest_batch=self.room.largest_batch(spec.memory_bytes),
            suggestions=suggestions if advised else UNSET,
            serving=UNSET if self.serving is None else self.serving[k],
        )


def _dtypes(gpus: GpuTable, target: int) -> set[str]:
    return {DTYPES[code] for code in np.flatnonzero(np.isfinite(peaks(gpus)[:, target])).tolist()}


def _shares(network: TimedNetwork, k: int, seconds: Floats) -> list[Share]:
    """Return where the time of one device goes, largest first; the entries add up to the step.

    Computation is that of an average pipeline stage, communication the part that computation waits for.
    """
    rows, groups = network.rows, (*network.rows.groups, WAITING)
    busy = np.bincount(rows.group, weights=seconds, minlength=len(groups)) / network.run.parallelism.pipeline
    count = np.bincount(rows.group, weights=rows_per_step(rows, network.run), minlength=len(groups))
    sends = np.array([group in _SENDING for group in groups])
    if sends.any():
        communication = network.step.done.phases_s[_COMMUNICATION, k]
        of_each = busy[sends] / max(busy[sends].sum(), _LEAST_S)
        busy[sends] = communication * of_each
    busy[-1] = max(float(network.step.done.step_s[k]) - busy.sum(), 0.0)
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
    table, part = rows.distinct.table, answer.timed.part(k, answer.at_coverage)
    longer = step.longer.reshape(-1, len(table))[k]
    explanation = explanations(query.of_rows(table, run), query.targets[k], part)
    key = rows.distinct.row * len(PHASES) + rows.workload.phase
    _, first, line = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(line.reshape(-1), weights=rows_per_step(rows, run))
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


# Device counts that suggestions split a network over.
_SPLITS = (2, 4, 8)

Change: TypeAlias = dict[str, Any]
Resolve: TypeAlias = Callable[[NetworkWorkload], tuple[Network, Run]]


class MemoryFit:
    """Memory of a network run in one way, whatever the GPU, with suggestions to make it fit."""

    def __init__(self, workload: NetworkWorkload, run: Run, rows: Prepared, find: Resolve) -> None:
        self._workload, self._run, self._rows, self._find = workload, run, rows, find
        self._batches: dict[float, int] = {}

    def largest_batch(self, capacity_bytes: float) -> int:
        """Return the largest valid global batch that fits, 0 if none does.

        Weights are constant and activations grow with the batch: on each pipeline stage memory is linear in the batch,
        so the maximum over stages is convex, and where a line through two batches overshoots, the next one undershoots.
        """
        if capacity_bytes not in self._batches:  # many GPUs have the same capacity
            self._batches[capacity_bytes] = self._largest_batch(capacity_bytes)
        return self._batches[capacity_bytes]

    def _largest_batch(self, capacity_bytes: float) -> int:
        run, fixed = self._run, self._rows.fixed_bytes
        unit = run.parallelism.data * run.parallelism.microbatches * run.accumulation
        batch, required, largest = run.batch, self._rows.memory.required_bytes, MOST_BATCH // unit * unit
        if fixed > capacity_bytes:
            return 0
        for _ in range(2 if run.parallelism.pipeline > 1 else 1):
            if required <= fixed:
                return largest
            units = floor((capacity_bytes - fixed) / (required - fixed) * batch / unit)
            batch = min(units * unit, largest)
            required = bytes_for_batch(self._rows.workload, run, batch) if run.parallelism.pipeline > 1 else 0.0
            if batch == 0 or required <= capacity_bytes:
                break
        return batch

    def suggestions(self, capacity_bytes: float, dtypes: Collection[str]) -> list[Suggestion]:
        """Return changes of the request that fit a GPU supporting `dtypes`, the smallest of each kind.

        If no single change suffices, several combined.
        """
        suggestions: dict[str, Suggestion] = {}
        batch = self.largest_batch(capacity_bytes)
        if 0 < batch < self._run.batch:
            suggestions["batch"] = Suggestion({"batch": batch}, bytes_for_batch(self._rows.workload, self._run, batch))
        for sort, change, required in self._changes:
            if (
                sort not in suggestions
                and required <= capacity_bytes
                and change.get("dtype", self._run.dtype) in dtypes
            ):
                suggestions[sort] = Suggestion(change, required)
        if not suggestions:
            fit = (Suggestion(change, required) for _, change, required in self._together if required <= capacity_bytes)
            return list(islice(fit, 1))
        return list(suggestions.values())

    @cached_property
    def _changes(self) -> list[tuple[str, Change, float]]:
        """Every possible change, with the bytes it needs."""
        return self._possible(_candidates(self._run))

    @cached_property
    def _together(self) -> list[tuple[str, Change, float]]:
        """More and more changes combined, the cheapest first."""
        steps = list(_steps(self._run))
        return self._possible(("together", _merged(steps[: k + 1])) for k in range(1, len(steps)))

    def _possible(self, changes: Iterable[tuple[str, Change]]) -> list[tuple[str, Change, float]]:
        possible = []
        for sort, change in changes:
            check_cancelled()
            try:
                possible.append((sort, change, self._changed(change)))
            except BadInput:  # sizes that do not divide
                continue
        return possible

    def _changed(self, change: Change) -> float:
        """Return the bytes of the changed request; rows are lowered again only if they differ."""
        inner = change.get("parallelism", {})
        whole = change | ({"parallelism": structs.replace(self._workload.parallelism, **inner)} if inner else {})
        network, run = self._find(structs.replace(self._workload, **whole))
        rows = self._rows.workload if _lowering_key(run) == _lowering_key(self._run) else forward_rows(network, run)
        check_stages(rows, run)
        return memory(rows, run).required_bytes


def _lowering_key(run: Run) -> tuple[object, ...]:
    """Return what forward rows depend on, among what changes can change."""
    return run.dtype, run.device_batch, run.parallelism.tensor


def _merged(changes: Sequence[Change]) -> Change:
    split = {name: size for change in changes for name, size in change.get("parallelism", {}).items()}
    flat = {name: value for change in changes for name, value in change.items() if name != "parallelism"}
    return flat | ({"parallelism": split} if split else {})


def _steps(run: Run) -> Iterator[Change]:
    """Yield changes to combine, those that cost least time first."""
    split = run.parallelism
    if run.mode == "training":
        yield {"recompute": True}
        yield {"gradient_accumulation": run.batch // (split.data * split.microbatches)}
        if split.data > 1:
            yield {"parallelism": {"zero": 3}}
    for name in ("tensor", "pipeline"):
        yield {"parallelism": {name: getattr(split, name) * _SPLITS[-1]}}


def _candidates(run: Run) -> Iterator[tuple[str, Change]]:
    """Yield (kind, fields to change), smallest change of each kind first."""
    split = run.parallelism
    if run.mode == "training":
        if not run.recompute:
            yield "recompute", {"recompute": True}
        for factor in _SPLITS:
            yield "accumulation", {"gradient_accumulation": run.accumulation * factor}
        if split.data > 1:
            for stage in range(split.zero + 1, 4):
                yield "zero", {"parallelism": {"zero": stage}}
    if run.dtype in ("fp32", "tf32"):
        yield "dtype", {"dtype": "bf16"}
        yield "dtype", {"dtype": "fp16"}
    for name in ("tensor", "pipeline"):
        for factor in _SPLITS:
            yield name, {"parallelism": {name: getattr(split, name) * factor}}
