"""Which configurations of a sweep are answered together: transformers alike but for sizes, batch and sequence.

Nothing is refused here: a configuration that cannot be is among those that are asked for alone, which says why.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs
from numpy.typing import NDArray

from app.errors import BadInput
from app.graphs.importers import hf
from app.graphs.run import Run
from app.graphs.transformers import splitting
from app.graphs.transformers.architecture import Architecture
from app.graphs.transformers.many import Sized, sized
from app.services.models.builtin import config_of
from app.services.models.hits import MeasuredModels
from app.services.models.requests import ModelWorkload
from app.services.models.runs import attention_of, is_host_launched, run_of
from app.services.sweep.model_columns import CONFIG, Columns, Values, workload_of

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]


class Group(NamedTuple):
    """c configurations that are lowered together.

    rows             int [c], of the table
    like, sizes      an architecture of their form, and the sizes of each, [c, ...]
    batch, sequence  of each, [c]
    run              how they run, but for these two
    launched         whether the host launches each operator
    """

    rows: Ints
    like: Architecture
    sizes: Floats
    batch: Floats
    sequence: Floats
    run: Run
    launched: bool

    def part(self, first: int, stop: int) -> Group:
        """Some of them."""
        here = slice(first, stop)
        return self._replace(
            rows=self.rows[here], sizes=self.sizes[here], batch=self.batch[here], sequence=self.sequence[here]
        )


class Plan(NamedTuple):
    """What configurations of one group share, from the cells of all other columns."""

    workload: ModelWorkload
    run: Run
    launched: bool


class Table:
    """Configurations in columns, sorted into groups; `measured` are networks that are asked for alone."""

    def __init__(self, table: pa.Table, measured: MeasuredModels) -> None:
        columns = Columns(table)
        of_model = ["name", *columns.named(CONFIG)]
        self._models = columns.combined(of_model)
        self._plans = columns.combined([name for name in columns.names if name not in (*of_model, "batch", "sequence")])
        self._batches, self._sequences = columns.combined(["batch"]), columns.combined(["sequence"])
        self._batch = _numbers(self._batches, "batch", 1.0)
        self._sequence = _numbers(self._sequences, "sequence", np.nan)
        self._ready_plans = [_tried(_plan, plan) for plan in self._plans.each]
        self._ready_models = [_tried(_model, model) for model in self._models.each]
        self.together = self._is_known() & ~self._is_measured(measured)

    def groups(self) -> list[Group]:
        """Those that are answered together."""
        forms: dict[Any, int] = {}
        form = [0 if ready is None else forms.setdefault(ready.form, len(forms)) for ready in self._ready_models]
        code = self._plans.of * max(len(forms), 1) + np.array(form)[self._models.of]
        rows = np.flatnonzero(self.together)
        rows = rows[np.argsort(code[rows], kind="stable")]
        return [self._group(part) for part in np.split(rows, np.flatnonzero(np.diff(code[rows])) + 1) if len(part)]

    def _group(self, rows: Ints) -> Group:
        plan, models = self._ready_plans[self._plans.of[rows[0]]], self._models.of[rows]
        used, of = np.unique(models, return_inverse=True)
        ready = [model for model in (self._ready_models[k] for k in used.tolist()) if model is not None]
        assert plan is not None
        sizes = np.array([model.sizes for model in ready], dtype=np.float64)[of]
        batch, sequence = self._batch[rows], self._sequence[rows]
        return Group(rows, ready[0].architecture, sizes, batch, sequence, plan.run, plan.launched)

    def workload(self, row: int) -> ModelWorkload:
        """One configuration as POST /predict takes it; BadInput names what is wrong."""
        cells: dict[str, Any] = {}
        for values in (self._models, self._plans, self._batches, self._sequences):
            cells |= values.each[values.of[row]]
        return workload_of(cells)

    def _is_known(self) -> Bools:
        """Rows whose cells are as they must be, of a kind that can be answered together."""
        plan = np.array([ready is not None for ready in self._ready_plans])[self._plans.of]
        model = np.array([ready is not None for ready in self._ready_models])[self._models.of]
        sequence = np.array(
            ["sequence" in cells and _tried(workload_of, cells) is not None for cells in self._sequences.each]
        )
        known: Bools = plan & model & sequence[self._sequences.of]
        known &= self._each(known, self._batches, self._splits)
        known &= self._each(known, self._models, self._runs)
        return known

    def _each(self, rows: Bools, values: Values, holds: Callable[[int, int, float], bool]) -> Bools:
        """Whether it holds for the plan, the value and the longest sequence of these, asked once for each pair."""
        pair, where = np.unique(self._plans.of * len(values.each) + values.of, return_inverse=True)
        longest = np.full(len(pair), -1.0)
        np.maximum.at(longest, where[rows], self._sequence[rows])
        asked = zip(*(part.tolist() for part in (*np.divmod(pair, len(values.each)), longest)), strict=True)
        held: Bools = np.array([most >= 0.0 and holds(plan, value, most) for plan, value, most in asked])[where]
        return held

    def _splits(self, plan: int, batch: int, _: float) -> bool:
        """Whether a batch can be dealt as the plan has it."""
        ready = self._ready_plans[plan]
        assert ready is not None
        try:
            sent = workload_of(self._batches.each[batch])
            run_of(structs.replace(ready.workload, batch=sent.batch), dtype=ready.run.dtype)
        except BadInput:
            return False
        return True

    def _runs(self, plan: int, model: int, sequence: float) -> bool:
        """Whether a model can be run and split so; what goes for the longest sequence goes for shorter ones."""
        ready, found = self._ready_plans[plan], self._ready_models[model]
        assert ready is not None and found is not None
        try:
            splitting.check(found.architecture, replace(ready.run, sequence=int(sequence)))
        except BadInput:
            return False
        return True

    def _is_measured(self, measured: MeasuredModels) -> Bools:
        """Rows of networks that were measured whole, with that batch and sequence."""
        found = np.zeros(len(self._models.of), dtype=np.bool_)
        if not measured.times:
            return found
        runs: dict[Hashable, set[tuple[int, int]]] = {}
        for key in measured.times:
            network, run, _ = cast(tuple[Hashable, Run, bool], key)
            runs.setdefault(network, set()).add((run.batch, run.sequence))
        for number, model in enumerate(self._models.each):
            config = _config(model) if self._ready_models[number] is not None else None
            for batch, sequence in runs.get(("config", msgspec.json.encode(config, order="sorted")), ()):
                found |= (self._models.of == number) & (self._batch == batch) & (self._sequence == sequence)
        return found


def _numbers(values: Values, name: str, default: float) -> Floats:
    """A column of numbers, NaN for what is none."""
    cells = [cells.get(name, default) for cells in values.each]
    return np.array([cell if isinstance(cell, int | float) else np.nan for cell in cells], dtype=np.float64)[values.of]


def _tried(read: Callable[[Mapping[str, Any]], Any], cells: Mapping[str, Any]) -> Any:
    """None where it is refused."""
    try:
        return read(cells)
    except BadInput:
        return None


def _plan(cells: Mapping[str, Any]) -> Plan | None:
    """None for what is asked for alone: several stages, fusion, training, tokens dealt to devices, images."""
    workload = workload_of(cells)
    run = run_of(structs.replace(workload, batch=_divisible(workload)), dtype=workload.dtype)
    run = replace(run, attention=attention_of(workload))  # type: ignore[arg-type]
    split = run.parallelism
    if split.pipeline > 1 or split.sequence or run.fused or run.mode == "training" or workload.image_size is not None:
        return None
    return Plan(workload, run, is_host_launched(workload.software, run.mode, run.dtype))


def _divisible(workload: ModelWorkload) -> float:
    """A batch that can be dealt as the workload says."""
    split = workload.parallelism
    return split.data * split.microbatches * workload.gradient_accumulation


def _config(cells: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of a transformer, by name or by its fields."""
    workload = workload_of(cells)
    return workload.config if workload.name is None else config_of(workload.name)


def _model(cells: Mapping[str, Any]) -> Sized | None:
    """None of a ConvNet, and of what takes images."""
    config = _config(cells)
    return None if config is None or "patch_size" in config else sized(hf.read(config))
