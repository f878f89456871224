"""Group the configurations of a sweep: networks that only differ by sizes, batch, sequence or image.

Nothing is refused here: invalid configurations are predicted individually, where the error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs

from app.errors import BadInput
from app.networks.batched import LoweredGroup, lower_groups, per_configuration
from app.networks.builtin import find_config
from app.networks.convnets import is_convnet
from app.networks.convnets import lower as lower_convnet
from app.networks.importers import hf
from app.networks.run import Run, has_formats
from app.networks.transformers.architecture import Architecture
from app.networks.transformers.lowering import check, write
from app.networks.transformers.sizes import split_sizes, with_sizes
from app.services.models.resolve_networks import (
    IMAGE_SIZE,
    convnet_run,
    default_image_size,
    published_dtype,
    to_run,
    transformer_run,
    workload_dtype,
)
from app.services.sweep.sweep_rows import CONFIG, Columns, Values, to_workload
from app.steps.networks import Network, all_rows
from app.tables.arrays import Bools, Floats, Ints
from app.tables.workload import Workload
from app.wire.network_form import ModelWorkload

# Input length of transformers, and of ConvNets.
_LENGTHS = ("sequence", "image_size")


class Group(NamedTuple):
    """c configurations that are lowered together.

    rows           int [c], rows of the table
    like, sizes    a model of their form, and their sizes, [c, ...]
    batch, length  per configuration, [c]: length is tokens of a sequence, or pixels of an image side
    run            their run, but for these two
    """

    rows: Ints
    like: Model
    sizes: Floats
    batch: Floats
    length: Floats
    run: Run

    def part(self, first: int, stop: int) -> Group:
        """Return some of the configurations."""
        here = slice(first, stop)
        return self._replace(
            rows=self.rows[here], sizes=self.sizes[here], batch=self.batch[here], length=self.length[here]
        )

    def lower_groups(self) -> Iterator[LoweredGroup]:
        """Yield their rows, in groups that are lowered the same way."""

        def lower(these: Ints) -> Workload:
            return all_rows(self.like.network(self.sizes[these]), self.run_of(these))

        return lower_groups(len(self.rows), lower)

    def run_of(self, these: Ints) -> Run:
        """Return the run of some of the configurations, with their batches and lengths."""
        batch, length = (per_configuration(figures[these]) for figures in (self.batch, self.length))
        if self.like.of_images:
            return replace(self.run, batch=batch, image_size=length)
        return replace(self.run, batch=batch, sequence=length)


class GroupPlan(NamedTuple):
    """What the configurations of one group share, from all other columns: `runs` of each sort of network.

    A sort of network that cannot run so has no run.
    """

    workload: ModelWorkload
    runs: Mapping[Sort, Run]


class Table:
    """Configurations in columns, sorted into groups; `measured` are keys of networks predicted individually."""

    def __init__(self, table: pa.Table, measured: Sequence[Hashable]) -> None:
        columns = Columns(table)
        of_model = ["name", *columns.named(CONFIG)]
        self._models = columns.combined(of_model)
        apart = (*of_model, "batch", *_LENGTHS)
        self._plans = columns.combined([name for name in columns.names if name not in apart])
        self._batches, self._lengths = columns.combined(["batch"]), columns.combined(_LENGTHS)
        self._ready_plans = [_none_if_refused(_plan, plan) for plan in self._plans.each]
        self._ready_models = [_none_if_refused(to_model, model) for model in self._models.each]
        self._batch = _numbers(self._batches, "batch", 1.0)
        sides = np.array([np.nan if model is None else model.side for model in self._ready_models])[self._models.of]
        image = _numbers(self._lengths, "image_size", np.nan)
        sequence = _numbers(self._lengths, "sequence", np.nan)
        self._length = np.where(np.isnan(sides), sequence, np.where(np.isnan(image), sides, image))
        self.together = self._is_groupable() & ~self._is_measured(measured)

    def groups(self) -> list[Group]:
        """Return the configurations that are predicted together."""
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
        return Group(rows, ready[0], sizes, self._batch[rows], self._length[rows], plan.runs[ready[0].sort])

    def workload(self, row: int) -> ModelWorkload:
        """Return one configuration as a workload of POST /predict. Raises BadInput."""
        cells: dict[str, Any] = {}
        for values in (self._models, self._plans, self._batches, self._lengths):
            cells |= values.each[values.of[row]]
        return to_workload(cells)

    def _is_groupable(self) -> Bools:
        """Return which rows are valid and of a kind that can be predicted together."""
        sorts = (*SORTS, None)  # None: no such network
        sort = np.array([sorts.index(None if ready is None else ready.sort) for ready in self._ready_models])
        runs = [[ready is not None and name in ready.runs for name in sorts] for ready in self._ready_plans]
        lengths = [_length_given(cells) for cells in self._lengths.each]
        of_images = np.array([ready is not None and ready.of_images for ready in self._ready_models])
        right = np.array([[field in fields for fields in lengths] for field in _LENGTHS])
        valid: Bools = right[of_images[self._models.of].astype(np.intp), self._lengths.of]
        valid &= np.array(runs)[self._plans.of, sort[self._models.of]]
        # Formats of a configuration are part of a run, not of its sizes.
        formats = np.array([ready is not None and ready.has_formats for ready in self._ready_models])
        without_dtype = np.array([ready is not None and ready.workload.dtype is None for ready in self._ready_plans])
        valid &= ~(formats[self._models.of] & without_dtype[self._plans.of])
        return valid & self._is_divisible(valid)

    def _is_divisible(self, rows: Bools) -> Bools:
        """Return which rows have a batch that their plan can split; checked once per pair."""
        count = len(self._batches.each)
        pair, where = np.unique(self._plans.of * count + self._batches.of, return_inverse=True)
        needed = np.zeros(len(pair), dtype=np.bool_)
        needed[where[rows]] = True
        held = [
            is_needed and self._splits(*divmod(number, count))
            for is_needed, number in zip(needed, pair.tolist(), strict=True)
        ]
        divisible: Bools = np.array(held)[where]
        return divisible

    def _splits(self, plan: int, batch: int) -> bool:
        ready = self._ready_plans[plan]
        assert ready is not None
        try:
            sent = to_workload(self._batches.each[batch])
            to_run(structs.replace(ready.workload, batch=sent.batch), dtype=workload_dtype(ready.workload, None))
        except BadInput:
            return False
        return True

    def _is_measured(self, measured: Sequence[Hashable]) -> Bools:
        """Return which rows are networks measured as a whole, with that batch and length."""
        mask = np.zeros(len(self._models.of), dtype=np.bool_)
        if not measured:
            return mask
        runs: dict[Hashable, set[Run]] = {}
        for key in measured:
            network, run, _ = cast(tuple[Hashable, Run, bool], key)
            runs.setdefault(network, set()).add(run)
        for number, model in enumerate(self._ready_models):
            for run in runs.get(model.key, ()) if model else ():
                length = run.image_size if model.of_images else run.sequence
                mask |= (self._models.of == number) & (self._batch == run.batch) & (self._length == length)
        return mask


def _length_given(cells: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which length the cells give: a sequence, an image (optional), or none if invalid."""
    if _none_if_refused(to_workload, cells) is None:
        return ()
    return tuple(cells) if len(cells) == 1 else () if cells else ("image_size",)


def _numbers(values: Values, name: str, default: float) -> Floats:
    """Return a column of numbers, NaN for other cells."""
    cells = [cells.get(name, default) for cells in values.each]
    return np.array([cell if isinstance(cell, int | float) else np.nan for cell in cells], dtype=np.float64)[values.of]


def _none_if_refused(read: Callable[..., Any], *cells: Mapping[str, Any]) -> Any:
    """Return None if the cells are refused."""
    try:
        return read(*cells)
    except BadInput:
        return None


def _plan(cells: Mapping[str, Any]) -> GroupPlan:
    workload = to_workload(cells)
    sample = structs.replace(workload, batch=_divisible(workload))
    ways: Mapping[Sort, Callable[[], Run]] = {
        "convnet": lambda: convnet_run(sample, "a ConvNet"),
        "tokens": lambda: transformer_run(structs.replace(sample, sequence=1.0), of_images=False),
        "images": lambda: transformer_run(sample, of_images=True),
    }
    runs = {sort: _none_if_refused(way) for sort, way in ways.items()}
    return GroupPlan(workload, {sort: run for sort, run in runs.items() if run is not None})


def _divisible(workload: ModelWorkload) -> float:
    """Return a batch that the workload's parallelism can split."""
    split = workload.parallelism
    return split.data * split.attention_data * split.microbatches * workload.gradient_accumulation


# Sorts of networks, whose runs are given in different fields.
Sort = Literal["convnet", "tokens", "images"]
SORTS: tuple[Sort, ...] = ("convnet", "tokens", "images")


class Model(NamedTuple):
    """A network split into structure and sizes: networks of one `form` differ only by their sizes.

    key           the key of its Network
    architecture  None for a ConvNet
    side          default image side in pixels of networks for images; NaN for those that take sequences
    has_formats   whether its configuration has formats of its own, which decide where no dtype is given
    """

    form: Hashable
    key: Hashable
    sizes: tuple[int, ...] = ()
    architecture: Architecture | None = None
    side: float = np.nan
    has_formats: bool = False

    @property
    def of_images(self) -> bool:
        """Whether it takes images."""
        return not np.isnan(self.side)

    @property
    def sort(self) -> Sort:
        """Which sort of network it is."""
        if self.architecture is None:
            return "convnet"
        return "images" if self.of_images else "tokens"

    def network(self, sizes: Floats) -> Network:
        """Return networks of this form with `sizes`, [c, ...], as one."""
        if self.architecture is None:
            assert isinstance(self.form, str)
            return Network(self.key, partial(lower_convnet, self.form))
        architecture = with_sizes(self.architecture, sizes)

        def lower(run: Run) -> Workload:
            check(architecture, run)
            return write(architecture, run)

        return Network(self.key, lower)


def to_model(cells: Mapping[str, Any]) -> Model | None:
    """Return the model of a row's cells, or None if there is no such network."""
    workload = to_workload(cells)
    if workload.config is None and is_convnet(workload.name or ""):
        name = str(workload.name)
        return Model(name, ("convnet", name), side=float(default_image_size(name)))
    config = find_config(workload.name) if workload.name is not None else workload.config
    if config is None:
        return None
    form, sizes, architecture = split_sizes(hf.read(config))
    side = IMAGE_SIZE if "patch_size" in config else np.nan
    key = ("config", msgspec.json.encode(config, order="sorted"))
    own = has_formats(config) or published_dtype(config) == "float16"
    return Model(form, key, sizes, architecture, side, own)
