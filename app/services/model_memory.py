"""What a network keeps in memory, the largest batch that a device has room for, and what would make it fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from math import floor
from typing import Any

from msgspec import structs

from app.errors import BadInput
from app.graphs.memory import Memory, memory
from app.graphs.run import Run
from app.services.model_requests import MOST_BATCH, NetworkWorkload
from app.services.model_sources import asked_network
from app.services.networks import workload_of
from app.services.prediction_form import Suggestion
from app.tables.workload import Workload

# Over how many devices a suggestion splits a network that was to run on one.
_SPLITS = (2, 4, 8)


class Room:
    """The memory of a network run in one way, whatever the GPU; looked at again only where it does not fit."""

    def __init__(self, asked: NetworkWorkload, rows: Workload, run: Run) -> None:
        self._asked, self._rows, self._run = asked, rows, run
        self.memory: Memory = memory(rows, run)

    def largest_batch(self, capacity_bytes: float) -> int:
        """The largest valid global batch that fits, 0 where none does.

        Weights and their like stay as they are, what flows grows with the batch: memory is the largest over stages
        of straight lines, so convex, and where a line through two batches overshoots, the next one undershoots.
        """
        unit, batch = self._unit, self._run.batch
        if self._fixed > capacity_bytes:
            return 0
        largest = MOST_BATCH // unit * unit
        for _ in range(2):
            slope = (self._required(batch) - self._fixed) / batch
            if slope <= 0:
                return largest
            batch = min(floor((capacity_bytes - self._fixed) / slope / unit) * unit, largest)
            if batch < unit or self._required(batch) <= capacity_bytes:
                return max(batch, 0)
        return max(batch, 0)

    def suggestions(self, capacity_bytes: float, dtypes: Collection[str]) -> list[Suggestion]:
        """Changes of the request with which it fits a GPU that computes in `dtypes`, of each sort the smallest."""
        found: dict[str, Suggestion] = {}
        batch = self.largest_batch(capacity_bytes)
        if 0 < batch < self._run.batch:
            found["batch"] = Suggestion({"batch": batch}, self._required(batch))
        for sort, change, required in self._changes:
            if sort not in found and required <= capacity_bytes and change.get("dtype", self._run.dtype) in dtypes:
                found[sort] = Suggestion(change, required)
        return list(found.values())

    @property
    def _unit(self) -> int:
        split = self._run.parallelism
        return split.data * split.microbatches * self._run.accumulation

    @cached_property
    def _fixed(self) -> float:
        return self._required(0)

    def _required(self, batch: int) -> float:
        """Bytes with another batch; 0 is what stays with none."""
        share = batch / self._run.batch
        rows = replace(
            self._rows,
            output_bytes=self._rows.output_bytes * share,
            saved_bytes=self._rows.saved_bytes * share,
            kv_bytes=self._rows.kv_bytes * share,
        )
        return float(memory(rows, replace(self._run, batch=max(batch, 1))).required_bytes)

    @cached_property
    def _changes(self) -> list[tuple[str, dict[str, Any], float]]:
        """Every change that is possible, with the bytes that it leaves."""
        found = []
        for sort, change in _candidates(self._asked, self._run):
            inner = change.get("parallelism", {})
            whole = change | ({"parallelism": structs.replace(self._asked.parallelism, **inner)} if inner else {})
            try:
                network, run = asked_network(structs.replace(self._asked, **whole))
                found.append((sort, change, float(memory(workload_of(network, run), run).required_bytes)))
            except BadInput:  # sizes that do not divide
                continue
        return found


def _candidates(asked: NetworkWorkload, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
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
