"""`Learned`: the trained operator models of `auto`, and which cell and GPU models answer a query.

Training: app.predictors.auto.operators.learning.learn. Inference: app.predictors.auto.operators.inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import compress
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.bands.groups import S_CALIBRATED, S_SEEN, S_UNTRAINED, SUPPORT_OF_SITUATION
from app.coefficients import Coefficients
from app.ops import OP_CODE, OPS, kinds_of
from app.predictors.auto.operators.cell_choice import CellChoice, CellKey, emulating
from app.predictors.auto.operators.inference import fill_answers
from app.predictors.auto.operators.models.features import DEVICES, LIBRARY, Rows, shape_features
from app.predictors.auto.operators.models.packed import (
    EMPTY,
    MOST_NUMBERS,
    NO_TREE_ARRAYS,
    GpuModels,
    Packed,
    Prepared,
    TreeArena,
    packed,
)
from app.predictors.auto.operators.models.per_operator import Cell, GpuModel, Model
from app.predictors.auto.operators.models.training_samples import architecture_keys
from app.predictors.auto.operators.queries import MEMBERS, UNTRACED, Answers, Queries, Trace
from app.predictors.auto.operators.transfer import donors_of, with_fallbacks
from app.predictors.links import by_link
from app.predictors.physics.analytic_model import ANY_TILE, LIMIT, TERMS, devices_of
from app.predictors.physics.operator_features import operator_features, products_of
from app.predictors.physics.physics_fit import FACTORS, OF_WORK
from app.predictors.priors import IS_COLLECTIVE, IS_LINEAR
from app.runtime.fields_only import fields_only
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.tables.predictions import Estimate

_FITTED = Coefficients("learning")

# A GPU, its architecture keys for operators and for collectives, the slowed and the emulating GPUs (_gpu_model_row).
RowKey = tuple[str, tuple[str, str], frozenset[str], frozenset[str]]
# Factors [rows, FACTORS], models and weights [rows, MEMBERS], situation, tile, devices and library [rows, ...].
GpuModelRow = tuple[Floats, Ints, Floats, Ints, Ints, Floats, Floats]
# Fields of GpuModels that these are stacked to.
_OF_ROW = ("factors", "member", "weight", "situation", "tile", "devices", "library")

# Stands for every GPU that no cell was trained on: its row follows from its architecture.
_UNTRAINED = ""
# Most rows of GPUs that are kept.
_MOST_ROWS = 1024

# Most board power of slot-powered cards, and the part of their measured correction that is kept. Their clock on
# long products depends on temperature, so measured rows show one state out of several. Such an answer counts as
# calibrated.
UNSTEADY_W, UNSTEADY_TRUST = _FITTED.each("unsteady_w", "unsteady_trust")


class Traced(NamedTuple):
    """Answers and their terms; query q runs on row `gpu[q]` of `gpus`, extended by GPUs linked over their slots."""

    estimate: Estimate
    trace: Trace
    rows: Rows
    gpu_models: GpuModels
    gpus: GpuTable
    gpu: Ints


@dataclass(frozen=True, eq=False)
class Learned:
    """Cells by operator and dtype; `tree_arena` holds the trees of loaded models."""

    cells: Mapping[CellKey, Cell] = field(default_factory=dict)
    tree_arena: TreeArena = EMPTY

    __getstate__ = fields_only

    def estimate(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Estimate:
        """Times and their support, [n], of operator row `i[q]` on GPU row `j[q]`."""
        return self.traced(ops, gpus, i, j, UNTRACED).estimate

    def traced(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, trace: Trace) -> Traced:
        """The same as `estimate`, with the terms of each answer in `trace`."""
        n, kinds = len(i), kinds_of(ops)
        collective = any(kind.op.pattern is not None for kind in kinds)
        if collective:
            gpus, j = by_link(ops, gpus, i, j)
        queries = Queries(i, j, np.lexsort((ops.dtype[i], ops.kind[i], j)), np.arange(n), np.arange(n), np.zeros(n))
        gpu_models, products = self._gpu_models(gpus), products_of(kinds)
        shape = shape_features(kinds, products, ops.kind.size)
        if collective:
            ops, queries = with_fallbacks(ops, shape, queries, self._packed, gpu_models)
            if ops.kind.size > shape.shape[1]:
                kinds = kinds_of(ops)
                products = products_of(kinds)
                shape = shape_features(kinds, products, len(ops))
        terms = np.empty((TERMS, len(queries.row)))
        answers = Answers(*np.empty((2, n)), *np.empty((3, n), dtype=np.intp))
        rows = Rows(shape, operator_features(ops, kinds, products), devices_of(gpus), terms)
        fill_answers(rows, self._packed, gpu_models, queries, answers, trace)
        support, limit_s = SUPPORT_OF_SITUATION[answers.situation], terms[LIMIT, :n]
        estimate = Estimate(answers.latency_s, answers.bound, support, answers.group, answers.stretch, limit_s)
        return Traced(estimate, trace, rows, gpu_models, gpus, j)

    def source_cells(self, traced: Traced) -> list[CellKey | None]:
        """Operator and dtype of the cell behind each answer, None where there is none."""
        keys = [*self.choice.keys, None]
        return [keys[row] for row in traced.trace.cell.tolist()]

    @cached_property
    def _homes(self) -> dict[int, tuple[Model, str | None]]:
        """Every model by its id, once, as a cell that lends and one that borrows share some; and `home_of_model`."""
        cells = self.cells.values()
        own = ((model, gpu) for cell in cells for gpu, model in (*cell.lenders.items(), *cell.own.items()))
        shared = ((cell.shared, None) for cell in cells if cell.shared is not None)
        return {id(model): (model, gpu) for model, gpu in (*own, *shared)}

    @cached_property
    def _models(self) -> list[Model]:
        return [model for model, _ in self._homes.values()]

    @cached_property
    def _packed(self) -> Packed:
        return packed(self._models, [self.cells[key] for key in self.choice.keys], self.tree_arena)

    @cached_property
    def _number(self) -> dict[int, int]:
        return {key: number for number, key in enumerate(self._homes)}

    @cached_property
    def home_of_model(self) -> list[str | None]:
        """The GPU that each model was trained on; None if on several."""
        return [gpu for _, gpu in self._homes.values()]

    @cached_property
    def choice(self) -> CellChoice:
        """The cells that can answer for every operator and dtype."""
        return CellChoice.among(self.cells)

    def gpu_model(
        self, key: CellKey, gpu: str, architecture: str, slowed: frozenset[str], without: frozenset[str] = frozenset()
    ) -> GpuModel:
        """The models of cell `key` for a GPU, excluding those of the GPUs `without`.

        `slowed`: GPUs whose clock depends on their temperature. Their products do not carry over to a sibling of more
        power: a GTX 1080 Ti would lose half of its rate at large sizes, as the P4 did.
        """
        cell, product = self.cells[key], bool(IS_LINEAR[OP_CODE[key[0]]])
        if product and gpu not in slowed:
            without |= slowed
        if not without.isdisjoint(cell.own):
            cell = replace(cell, own={name: model for name, model in cell.own.items() if name not in without})
        usual = cell.gpu_model(gpu, architecture)
        if gpu not in slowed or usual.situation != S_SEEN or not product:
            return usual
        members = tuple((model, UNSTEADY_TRUST * weight) for model, weight in usual.members)
        factors = usual.factors ** np.where(OF_WORK, UNSTEADY_TRUST, 1.0)
        return GpuModel(factors, members, S_CALIBRATED, usual.tile)

    def ran_on(self, gpu: str) -> NDArray[np.bool_]:
        """Whether each operator and dtype was measured on a GPU, bool [kinds, dtypes]; borrowed cells do not count."""
        ran = np.zeros((len(OPS), len(DTYPES)), dtype=np.bool_)
        for (op, dtype), cell in self.cells.items():
            ran[OP_CODE[op], DTYPE_CODE[dtype]] = gpu in cell.own and not cell.borrowed
        return ran

    def _gpu_models(self, gpus: GpuTable) -> GpuModels:
        """GpuModels of every GPU of a table, stacked once per table."""
        known: GpuModels | None = gpus.memo_of.get(self)
        if known is None:
            known = gpus.memo_of[self] = self._stacked(gpus)
        return known

    def prepared(self, gpus: GpuTable) -> Prepared:
        """Return what answers on these GPUs need, for `with_prepared`: takes 0.2 s."""
        return Prepared(self._packed._replace(trees=NO_TREE_ARRAYS), self._gpu_models(gpus))

    def with_prepared(self, prepared: Prepared, before: Learned, gpus: GpuTable) -> Self:
        """Return itself with what `prepared` returned for the same cells and GPUs; `before` has the same arena."""
        models = prepared.gpu_models
        parts = [np.moveaxis(getattr(models, name), 1, 0) for name in _OF_ROW]
        self._rows.update(zip(self._row_keys(gpus), zip(*parts, strict=True), strict=True))
        self.__dict__["_packed"] = prepared.packed._replace(trees=before._packed.trees)  # a cached property
        gpus.memo_of[self] = models
        return self

    def _row_keys(self, gpus: GpuTable) -> list[RowKey]:
        """Return the arguments of `_gpu_model_row` for every GPU of a table; equal ones where rows are equal."""
        architectures = zip(*(architecture_keys(gpus, collective=sends) for sends in (False, True)), strict=True)
        trained = {name for cell in self.cells.values() for name in cell.own}
        emulate, slowed = emulating(gpus) & trained, unsteady(gpus)
        named = slowed.union(trained, *(cell.lenders for cell in self.cells.values()))
        return [
            (gpu if gpu in named else _UNTRAINED, architecture, slowed & {gpu, *trained}, emulate)
            for gpu, architecture in zip(gpus.ids, architectures, strict=True)
        ]

    def _stacked(self, gpus: GpuTable) -> GpuModels:
        rows = [self._row(key) for key in self._row_keys(gpus)]
        parts: dict[str, Any] = {
            name: np.stack(part, axis=1) for name, part in zip(_OF_ROW, zip(*rows, strict=True), strict=True)
        }
        dtype = np.array([DTYPE_CODE[of] for _, of in self.choice.keys], dtype=np.intp)
        donor, ratio = donors_of(gpus, parts["member"], parts["situation"], self.home_of_model)
        parts |= {"donor": donor, "bandwidth_ratio": ratio}
        return GpuModels(cell=self.choice.cell, borrowed=self.choice.borrowed, dtype=dtype, **parts)

    @cached_property
    def _rows(self) -> dict[RowKey, GpuModelRow]:
        """Rows that `_gpu_model_row` returned, here or in another process."""
        return {}

    def _row(self, key: RowKey) -> GpuModelRow:
        if (row := self._rows.get(key)) is None:
            if len(self._rows) >= _MOST_ROWS:
                self._rows.clear()
            row = self._rows[key] = self._gpu_model_row(*key)
        return row

    def _gpu_model_row(
        self, gpu: str, architectures: tuple[str, str], slowed: frozenset[str], emulate: frozenset[str]
    ) -> GpuModelRow:
        """The row of GpuModels of one GPU, whose `architectures` are its keys for operators and for collectives."""
        n = len(self.choice.rows) + 1  # the last has learned nothing
        factors, member, weight = np.ones((n, FACTORS)), np.full((n, MEMBERS), -1), np.zeros((n, MEMBERS))
        situation, tile = np.full(n, S_UNTRAINED), np.full(n, ANY_TILE)
        devices, library = np.full((n, MOST_NUMBERS), np.inf), np.tile([-np.inf, np.inf], (n, 1))
        for row, (query, key) in enumerate(self.choice.rows.items()):
            architecture = architectures[int(IS_COLLECTIVE[OP_CODE[key[0]]])]
            without = emulate if query != key else frozenset()
            gpu_model = self.gpu_model(key, gpu, architecture, slowed, without)
            factors[row], situation[row], tile[row] = gpu_model.factors, gpu_model.situation, gpu_model.tile
            models = tuple(self._number[id(model)] for model, _ in gpu_model.members)
            member[row, : len(models)], weight[row, : len(models)] = models, [share for _, share in gpu_model.members]
            if IS_COLLECTIVE[OP_CODE[key[0]]]:
                devices[row], library[row] = self._measured(key, models)
        return factors, member, weight, situation, tile, devices, library

    @cached_property
    def _measured(self) -> Callable[[CellKey, tuple[int, ...]], tuple[Floats, Floats]]:
        """`_measured_by`, cached: most GPUs have the same models."""
        return cache(self._measured_by)

    def _measured_by(self, key: CellKey, numbers: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Measured numbers of devices (logarithms) [MOST_NUMBERS] and libraries [2] of a collective, as in GpuModels.

        Those of the answering models, given by their numbers; if they have none, those of all GPUs of the cell.
        """
        smooth = [self._models[number].smooth for number in numbers]
        if not any(len(part.measured(DEVICES)) for part in smooth):
            smooth = [model.smooth for model in self.cells[key].own.values()]
        devices, libraries = (
            np.unique(np.concatenate([np.empty(0), *(part.measured(column) for part in smooth)]))
            for column in (DEVICES, LIBRARY)
        )
        if len(devices) > MOST_NUMBERS:
            devices = devices[np.linspace(0, len(devices) - 1, MOST_NUMBERS).round().astype(np.intp)]
        padded = np.append(devices, np.full(MOST_NUMBERS - len(devices), np.inf))
        return padded, np.array([libraries[0], libraries[-1]]) if len(libraries) else np.array([-np.inf, np.inf])

    def state(self) -> dict[str, Any]:
        """As plain containers of arrays."""
        return {f"{op} {dtype}": cell.state() for (op, dtype), cell in self.cells.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        cells = {}
        for key, cell in state.items():
            op, dtype = key.split(" ")
            cells[op, dtype] = Cell.from_state(cell)
        models = cls(cells)._models
        tree_arena = TreeArena.of([model.trees for model in models])
        stored = {id(model): model._replace(trees=part) for model, part in zip(models, tree_arena.parts, strict=True)}
        return cls({key: cell.with_models(stored) for key, cell in cells.items()}, tree_arena)


def unsteady(gpus: GpuTable) -> frozenset[str]:
    """GPUs whose clock on long products depends on their temperature; none of unknown board power."""
    return frozenset(compress(gpus.ids, gpus.column("board_power_w") <= UNSTEADY_W))
