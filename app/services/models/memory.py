"""What a network keeps in memory, the largest batch that a device has room for, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import floor
from typing import Any, TypeAlias

from msgspec import structs

from app.errors import BadInput
from app.graphs.run import Run
from app.graphs.step_memory import Memory, memory
from app.services.models.networks import Network, Prepared, bytes_with, check_stages, forward_of
from app.wire.network_form import MOST_BATCH, NetworkWorkload
from app.wire.prediction_form import Suggestion

# Over how many devices a suggestion splits a network that was to run on one.
_SPLITS = (2, 4, 8)

Change: TypeAlias = dict[str, Any]
Find: TypeAlias = Callable[[NetworkWorkload], tuple[Network, Run]]


class Room:
    """The memory of a network run in one way, whatever the GPU; suggestions are looked for where it does not fit."""

    def __init__(self, asked: NetworkWorkload, run: Run, rows: Prepared, find: Find) -> None:
        self._asked, self._run, self._rows, self._find = asked, run, rows, find
        self._batches: dict[float, int] = {}

    @property
    def memory(self) -> Memory:
        """What a device keeps."""
        return self._rows.memory

    def largest_batch(self, capacity_bytes: float) -> int:
        """The largest valid global batch that fits, 0 where none does.

        Weights and their like stay as they are, what flows grows with the batch: on each pipeline stage memory is a
        straight line, so the largest over stages is convex, and where a line through two batches overshoots, the next
        one undershoots.
        """
        if capacity_bytes not in self._batches:  # many GPUs have as much memory
            self._batches[capacity_bytes] = self._largest_batch(capacity_bytes)
        return self._batches[capacity_bytes]

    def _largest_batch(self, capacity_bytes: float) -> int:
        run, fixed = self._run, self._rows.fixed_bytes
        unit = run.parallelism.data * run.parallelism.microbatches * run.accumulation
        batch, required, largest = run.batch, self.memory.required_bytes, MOST_BATCH // unit * unit
        if fixed > capacity_bytes:
            return 0
        for _ in range(2 if run.parallelism.pipeline > 1 else 1):
            if required <= fixed:
                return largest
            units = floor((capacity_bytes - fixed) / (required - fixed) * batch / unit)
            batch = min(units * unit, largest)
            required = bytes_with(self._rows.workload, run, batch) if run.parallelism.pipeline > 1 else 0.0
            if batch == 0 or required <= capacity_bytes:
                break
        return batch

    def suggestions(self, capacity_bytes: float, dtypes: Collection[str]) -> list[Suggestion]:
        """Changes of the request with which it fits a GPU that computes in `dtypes`, of each sort the smallest.

        Where no single change is enough, several together.
        """
        found: dict[str, Suggestion] = {}
        batch = self.largest_batch(capacity_bytes)
        if 0 < batch < self._run.batch:
            found["batch"] = Suggestion({"batch": batch}, bytes_with(self._rows.workload, self._run, batch))
        for sort, change, required in self._changes:
            if sort not in found and required <= capacity_bytes and change.get("dtype", self._run.dtype) in dtypes:
                found[sort] = Suggestion(change, required)
        if not found:
            fit = (Suggestion(change, required) for _, change, required in self._together if required <= capacity_bytes)
            return list(islice(fit, 1))
        return list(found.values())

    @cached_property
    def _changes(self) -> list[tuple[str, Change, float]]:
        """Every change that is possible, with the bytes that it leaves."""
        return self._possible(_candidates(self._run))

    @cached_property
    def _together(self) -> list[tuple[str, Change, float]]:
        """More and more changes at once, the cheapest first."""
        steps = list(_steps(self._run))
        return self._possible(("together", _merged(steps[: k + 1])) for k in range(1, len(steps)))

    def _possible(self, changes: Iterable[tuple[str, Change]]) -> list[tuple[str, Change, float]]:
        found = []
        for sort, change in changes:
            try:
                found.append((sort, change, self._changed(change)))
            except BadInput:  # sizes that do not divide
                continue
        return found

    def _changed(self, change: Change) -> float:
        """Bytes of the request with these fields; rows are lowered again only where they are others."""
        inner = change.get("parallelism", {})
        whole = change | ({"parallelism": structs.replace(self._asked.parallelism, **inner)} if inner else {})
        network, run = self._find(structs.replace(self._asked, **whole))
        rows = self._rows.workload if _alike(run) == _alike(self._run) else forward_of(network, run)
        check_stages(rows, run)
        return memory(rows, run).required_bytes


def _alike(run: Run) -> tuple[object, ...]:
    """What forward rows depend on, of what changes change."""
    return run.dtype, run.device_batch, run.parallelism.tensor


def _merged(changes: Sequence[Change]) -> Change:
    split = {name: size for change in changes for name, size in change.get("parallelism", {}).items()}
    flat = {name: value for change in changes for name, value in change.items() if name != "parallelism"}
    return flat | ({"parallelism": split} if split else {})


def _steps(run: Run) -> Iterator[Change]:
    """Changes to be made one after another, those that cost least time first."""
    split = run.parallelism
    if run.mode == "training":
        yield {"recompute": True}
        yield {"gradient_accumulation": run.batch // (split.data * split.microbatches)}
        if split.data > 1:
            yield {"parallelism": {"zero": 3}}
    for name in ("tensor", "pipeline"):
        yield {"parallelism": {name: getattr(split, name) * _SPLITS[-1]}}


def _candidates(run: Run) -> Iterator[tuple[str, Change]]:
    """(sort, fields to send instead), of each sort the smallest change first."""
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
