"""`auto` for deep-learning operators: physics, and what measurements taught about where it errs.

What answers, on which GPU, by which cell. How it is learned: app.predictors.auto.operators.learning.learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OP_CODE, OPS
from app.ops.kinds import kinds_of
from app.predictors.auto.operators.collectives.extrapolation import stand_ins, with_stand_ins
from app.predictors.auto.operators.inference import fill_answers
from app.predictors.auto.operators.models.features import DEVICES, LIBRARY, shape_features
from app.predictors.auto.operators.models.packed import EMPTY, MOST_NUMBERS, GpuModels, Packed, TreeArena, packed
from app.predictors.auto.operators.models.per_operator import Cell, GpuModel, Model
from app.predictors.auto.operators.models.sibling_transfer import donors_of
from app.predictors.auto.operators.models.training_samples import architecture_keys
from app.predictors.auto.operators.physics.analytic_model import LIMIT, TERMS, devices_of
from app.predictors.auto.operators.physics.operator_features import operator_features, products_of
from app.predictors.auto.operators.physics.physics_fit import FACTORS, OF_WORK
from app.predictors.auto.operators.queries import MEMBERS, UNTRACED, Answers, Queries, Rows, Trace
from app.predictors.intervals.groups import S_CALIBRATED, S_MEASURED, S_SEEN, SUPPORT_OF_SITUATION, operator_codes
from app.predictors.links import by_link
from app.predictors.priors import IS_COLLECTIVE, IS_LINEAR
from app.predictors.roofline import peaks
from app.tables.arrays import Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable, concatenate
from app.tables.predictions import MEASURED, Estimate

CellKey = tuple[str, str]

# Formats of the same pipe: what was learned in one serves the other where nothing better is known.
_LIKE = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8"}
# The one that GPUs have which lack the other: an Arc runs FP8 on its vector units, and INT8 on its matrix units.
_LENT_WITH_CARE = "int8"

# Cards that are fed by their slot alone run long products at a clock that their temperature decides, so measured rows
# tell of one state out of several: whole models on NeuSight's T4 and P4 ran up to 1.4 and 1.8 times as fast as products
# measured one by one say, and half way from these to the physics is best, whichever way products are launched
# (docs/reference/results.md, "In-sample figures"). Such an answer is no better known than one that few rows correct.
UNSTEADY_W, UNSTEADY_TRUST = 75.0, 0.5


class Traced(NamedTuple):
    """Answers and their terms; query q is on row `gpu[q]` of `gpus`, which has GPUs over their slots too."""

    estimate: Estimate
    trace: Trace
    rows: Rows
    gpu_models: GpuModels
    gpus: GpuTable
    gpu: Ints


@dataclass(frozen=True, eq=False)
class Learned:
    """Cells by operator and dtype; `tree_arena` where the trees of models that were loaded stand."""

    cells: Mapping[CellKey, Cell] = field(default_factory=dict)
    tree_arena: TreeArena = EMPTY

    def estimate(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Estimate:
        """Operator row `i[q]` on GPU row `j[q]`."""
        return self._answered(ops, gpus, i, j, UNTRACED).estimate

    def traced(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Traced:
        """The same with the terms of each answer."""
        return self._answered(ops, gpus, i, j, Trace.of(len(i)))

    def _answered(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints, trace: Trace) -> Traced:
        n, kinds = len(i), kinds_of(ops)
        collective = any(kind.op.link_bytes is not None for kind in kinds)
        if collective:
            gpus, j = by_link(ops, gpus, i, j)
        order = np.arange(n) if _alike(ops, j) else np.lexsort((ops.dtype[i], ops.kind[i], j))
        twin, gpu_models, products = np.arange(n), self._gpu_models(gpus), products_of(kinds)
        other, share = twin, np.zeros(n)
        shape = shape_features(kinds, products, len(ops))
        if collective:
            held = stand_ins(shape, (ops.kind, ops.dtype), (i, j), self._packed, gpu_models)
            if len(held.query):
                twin, other = (np.where(at < 0, twin, n + at) for at in (held.one, held.other))
                share, place = held.share, len(ops) + np.arange(len(held.query))
                rows = with_stand_ins(ops, i[held.query], held)
                ops, i, j = concatenate([ops, rows]), np.append(i, place), np.append(j, j[held.query])
                kinds = kinds_of(ops)
                products = products_of(kinds)
                shape = shape_features(kinds, products, len(ops))
        op_features = operator_features(ops, kinds, products)
        asked = Rows(shape, op_features, devices_of(gpus), np.empty((TERMS, len(i))))
        answers = Answers.of(n)
        fill_answers(asked, self._packed, gpu_models, Queries(i, j, order, twin, other, share), answers, trace)
        support, limit_s = SUPPORT_OF_SITUATION[answers.situation], asked.terms[LIMIT, :n]
        estimate = Estimate(answers.latency_s, answers.bound, support, answers.group, answers.stretch, limit_s)
        return Traced(estimate, trace, asked, gpu_models, gpus, j[:n])

    def cells_behind(self, found: Traced) -> list[CellKey | None]:
        """Operator and dtype of the cell behind each answer, None where nothing was learned."""
        keys = [*self.cell_rows.values(), None]
        return [keys[row] for row in found.trace.cell.tolist()]

    @cached_property
    def _models(self) -> list[Model]:
        every = (
            model
            for cell in self.cells.values()
            for model in (*cell.lenders.values(), *cell.own.values(), *(() if cell.shared is None else (cell.shared,)))
        )
        return list({id(model): model for model in every}.values())  # a cell that lends and one that borrows share some

    @cached_property
    def _packed(self) -> Packed:
        return packed(self._models, [self.cells[key] for key in self.cell_rows.values()], self.tree_arena)

    @cached_property
    def _number(self) -> dict[int, int]:
        return {id(model): number for number, model in enumerate(self._models)}

    @cached_property
    def home_of_model(self) -> list[str | None]:
        """The GPU that each model is of; None of those of several."""
        home = {
            id(model): gpu for cell in self.cells.values() for gpu, model in (*cell.lenders.items(), *cell.own.items())
        }
        return [home.get(id(model)) for model in self._models]

    @cached_property
    def cell_rows(self) -> dict[CellKey, CellKey]:
        """The cell behind each row of what answers: every one, and those that lend without some of their GPUs."""
        lending = {(op, _LENT_WITH_CARE): (op, _LIKE[_LENT_WITH_CARE]) for op, _ in self.cells}
        apart = {key: of for key, of in lending.items() if of in self.cells and key not in self.cells}
        return {key: key for key in self.cells} | apart

    @cached_property
    def cell_of(self) -> Ints:
        """Rows of the cells that may answer, the usual one first, int [kinds, dtypes, most]; of most one at most."""
        rows = {key: row for row, key in enumerate(self.cell_rows)}
        cell = np.full((len(OPS), len(DTYPES), len(DTYPES)), -1)
        for name, kind in OP_CODE.items():
            most = len(DTYPES) if IS_COLLECTIVE[kind] else 1
            for dtype, code in DTYPE_CODE.items():
                alike = [(name, dtype), (name, _LIKE.get(dtype, dtype)), *self._of_any_dtype(name)]
                able = [rows[key] for key in dict.fromkeys(alike) if key in rows][:most]
                cell[kind, code, : len(able)] = able
        return cell

    def _of_any_dtype(self, op: str) -> list[CellKey]:
        """The cells of a collective, which moves bytes whatever they hold; none of any other operator."""
        return [key for key in self.cells if key[0] == op] if IS_COLLECTIVE[OP_CODE[op]] else []

    @cached_property
    def _borrowed(self) -> NDArray[np.bool_]:
        """Whether what was learned of another dtype answers, bool [kinds, dtypes]."""
        borrowed = self.cell_of[:, :, 0] >= 0
        for (name, dtype), cell in self.cells.items():
            borrowed[OP_CODE[name], DTYPE_CODE[dtype]] = cell.borrowed
        return borrowed

    def emulating(self, gpus: GpuTable) -> frozenset[str]:
        """GPUs that ran a format which they lack: how long it took them says nothing of one that they have."""
        lacking = np.isnan(peaks(gpus)[DTYPE_CODE[_LIKE[_LENT_WITH_CARE]]]).tolist()
        return frozenset(gpu for gpu, lacks in zip(gpus.ids, lacking, strict=True) if lacks)

    def gpu_model(
        self, key: CellKey, gpu: str, architecture: str, slowed: frozenset[str], without: frozenset[str] = frozenset()
    ) -> GpuModel:
        """What cell `key` answers on a GPU with, `without` what some GPUs taught.

        `slowed`: GPUs whose clock their temperature decides. How they ran products says nothing of a sibling of more
        power: a GTX 1080 Ti would lose at large sizes half of its rate, as the P4 did.
        """
        cell, product = self.cells[key], bool(IS_LINEAR[OP_CODE[key[0]]])
        if product and gpu not in slowed:
            without |= slowed
        if not without.isdisjoint(cell.own):
            cell = replace(cell, own={name: model for name, model in cell.own.items() if name not in without})
        found = cell.gpu_model(gpu, architecture)
        if gpu not in slowed or found.situation != S_SEEN or not product:
            return found
        members = tuple((model, UNSTEADY_TRUST * weight) for model, weight in found.members)
        factors = found.factors ** np.where(OF_WORK, UNSTEADY_TRUST, 1.0)
        return GpuModel(factors, members, S_CALIBRATED, found.tile)

    def ran_on(self, gpu: str) -> NDArray[np.bool_]:
        """Which operators and dtypes were measured on a GPU, bool [kinds, dtypes]; not what they lend one another."""
        ran = np.zeros((len(OPS), len(DTYPES)), dtype=np.bool_)
        for (op, dtype), cell in self.cells.items():
            ran[OP_CODE[op], DTYPE_CODE[dtype]] = gpu in cell.own and not cell.borrowed
        return ran

    def _gpu_models(self, gpus: GpuTable) -> GpuModels:
        """GpuModels of every GPU of a table, put together once per table."""
        key = ("gpu_models", self)
        if key not in gpus.memo:
            gpus.memo[key] = self._stacked(gpus)
        known: GpuModels = gpus.memo[key]
        return known

    def _stacked(self, gpus: GpuTable) -> GpuModels:
        architectures = zip(*(architecture_keys(gpus, collective=sends) for sends in (False, True)), strict=True)
        taught = {name for cell in self.cells.values() for name in cell.own}
        emulating, slowed = self.emulating(gpus) & taught, unsteady(gpus)
        rows = [
            self._gpu_model_row(gpu, architecture, slowed & {gpu, *taught}, emulating)
            for gpu, architecture in zip(gpus.ids, architectures, strict=True)
        ]
        factors, member, weight, situation, tile, devices, library = (
            np.stack(part, axis=1) for part in zip(*rows, strict=True)
        )
        dtype = np.array([DTYPE_CODE[of] for _, of in self.cell_rows.values()], dtype=np.intp)
        donor, bandwidth_ratio = donors_of(gpus, member, situation, self.home_of_model)
        told = (factors, member, weight, donor, bandwidth_ratio, situation, tile)
        return GpuModels(*told, self.cell_of, self._borrowed, dtype, devices, library)

    @cached_property
    def _gpu_model_row(
        self,
    ) -> Callable[
        [str, tuple[str, str], frozenset[str], frozenset[str]], tuple[Floats, Ints, Floats, Ints, Ints, Floats, Floats]
    ]:
        """`_recipe_row_of`, remembered for the GPUs asked last; goes with what was learned."""
        return lru_cache(maxsize=1024)(self._recipe_row_of)

    def _recipe_row_of(
        self, gpu: str, architectures: tuple[str, str], slowed: frozenset[str], emulating: frozenset[str]
    ) -> tuple[Floats, Ints, Floats, Ints, Ints, Floats, Floats]:
        """Factors [rows, FACTORS], models [rows, MEMBERS], weights alike, the rest of GpuModels [rows], for one GPU.

        `architectures`: its make, and the same as collectives see it.
        """
        n = len(self.cell_rows)
        factors, member = np.ones((n, FACTORS)), np.full((n, MEMBERS), -1)
        weight = np.zeros((n, MEMBERS))
        situation, tile = (np.empty(n, dtype=np.intp) for _ in range(2))
        devices, library = np.full((n, MOST_NUMBERS), np.inf), np.tile([-np.inf, np.inf], (n, 1))
        for row, (asked, key) in enumerate(self.cell_rows.items()):
            architecture = architectures[int(IS_COLLECTIVE[OP_CODE[key[0]]])]
            without = emulating if lent_with_care(key, asked[1]) else frozenset()
            gpu_model = self.gpu_model(key, gpu, architecture, slowed, without)
            factors[row], situation[row], tile[row] = gpu_model.factors, gpu_model.situation, gpu_model.tile
            if IS_COLLECTIVE[OP_CODE[key[0]]]:
                devices[row], library[row] = _measured(self.cells[key], gpu_model)
            for k, (model, share) in enumerate(gpu_model.members[:MEMBERS]):
                member[row, k], weight[row, k] = self._number[id(model)], share
        return factors, member, weight, situation, tile, devices, library

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
        tree_arena = EMPTY.joined([model.trees for model in models])
        standing = {id(model): model._replace(trees=part) for model, part in zip(models, tree_arena.parts, strict=True)}
        return cls({key: cell.with_models(standing) for key, cell in cells.items()}, tree_arena)


def _measured(cell: Cell, gpu_model: GpuModel) -> tuple[Floats, Floats]:
    """Devices (logarithms) and libraries that a collective was measured with, as GpuModels has them.

    By those who answer; where these tell nothing, by every GPU of the cell.
    """
    models = [model for model, _ in gpu_model.members]
    if not any(len(model.smooth.measured(DEVICES)) for model in models):
        models = list(cell.own.values())
    numbers, libraries = (
        np.unique(np.concatenate([np.empty(0), *(model.smooth.measured(column) for model in models)]))
        for column in (DEVICES, LIBRARY)
    )
    if len(numbers) > MOST_NUMBERS:
        numbers = numbers[np.linspace(0, len(numbers) - 1, MOST_NUMBERS).round().astype(np.intp)]
    devices = np.append(numbers, np.full(MOST_NUMBERS - len(numbers), np.inf))
    return devices, np.array([libraries[0], libraries[-1]]) if len(libraries) else np.array([-np.inf, np.inf])


def lent_with_care(key: CellKey | None, dtype: str) -> bool:
    """Whether the cell answers for a dtype that GPUs may run on other units than its own."""
    return key is not None and dtype == _LENT_WITH_CARE != key[1]


def with_hits(estimate: Estimate, ops: OpTable, i: Ints, evidence: Evidence) -> Estimate:
    """The estimate with measured times where `evidence` holds the very operator asked for, on the GPU asked for."""
    hits = evidence.query
    if not len(hits):
        return estimate
    estimate.latency_s[hits], estimate.support[hits] = evidence.rows.latency_s, MEASURED
    estimate.group[hits] = operator_codes(ops.kind[i[hits]], ops.dtype[i[hits]], S_MEASURED)
    if estimate.stretch is not None:
        estimate.stretch[hits] = 1.0
    return estimate


def _alike(ops: OpTable, j: Ints) -> bool:
    """Whether all queries are of one cell and GPU."""
    if len(j) <= 1:
        return True
    return bool((j == j[0]).all()) and bool((ops.kind == ops.kind[0]).all() and (ops.dtype == ops.dtype[0]).all())


def unsteady(gpus: GpuTable) -> frozenset[str]:
    """GPUs whose clock on a long product is up to their temperature; of an unknown power none."""
    slowed = (gpus.column("board_power_w") <= UNSTEADY_W).tolist()
    return frozenset(gpu for gpu, slow in zip(gpus.ids, slowed, strict=True) if slow)
