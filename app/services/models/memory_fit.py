"""Memory of a network run in one way: the largest batch that fits, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import floor
from typing import Any, TypeAlias

from msgspec import structs

from app.errors import BadInput
from app.networks.run import FULL, Run
from app.runtime.cancellation import check_cancelled
from app.steps.networks import Network, Prepared, bytes_for_batch, check_stages, forward_rows
from app.steps.stages import memory
from app.wire.graph_form import NetworkWorkload
from app.wire.network_form import MOST_BATCH
from app.wire.prediction_form import Suggestion

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
        if FULL not in run.recompute:
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
