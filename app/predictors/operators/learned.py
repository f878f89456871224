"""`auto` for deep-learning operators: physics, and what measurements taught about where it errs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.ops import OP_CODE, OPS
from app.ops.kinds import kinds_of
from app.predictors.compiled import compiled
from app.predictors.intervals import (
    S_CALIBRATED,
    S_MEASURED,
    S_SEEN,
    S_SEEN_OUTSIDE,
    S_SIBLING,
    S_UNSEEN,
    S_UNSEEN_OUTSIDE,
    S_UNTRAINED,
    SUPPORT_OF_SITUATION,
    operator_codes,
)
from app.predictors.operators.boosting import BLOCK, NO_TREES, add_trees
from app.predictors.operators.cells import MOST_KIN, Cell, Model, Samples, calibrated, kernels_of, learn
from app.predictors.operators.constants import FACTORS, scaled_s, scaled_work_s
from app.predictors.operators.features import (
    EAGER,
    FEATURES,
    SHAPE_FEATURES,
    fill_features,
    shape_features,
)
from app.predictors.operators.priors import IS_LINEAR
from app.predictors.operators.process import Places, View, expected
from app.predictors.operators.smooth import Smooth, add_smooth
from app.predictors.operators.time import (
    LIMIT,
    TERMS,
    Devices,
    Traits,
    bound_of,
    composed,
    devices_of,
    fill_terms,
    products_of,
    traits_of,
)
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.tables.predictions import MEASURED, Estimate

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.intp]

CellKey = tuple[str, str]

# Formats of the same pipe: what was learned in one serves the other where nothing better is known.
_LIKE = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8"}
MEMBERS = MOST_KIN + 1
# Dimensions of an operator that a smooth part may depend on.
SMOOTH_COLUMNS = max(len(op.fields) for op in OPS[1:])
# How fast what was learned fades out of the range it was learned in, per factor of e.
FADING = 0.1
# An answer further out of the range learned from errs more: its interval grows by this part per factor of e.
STRETCH = 0.25

# Cards that are fed by their slot alone run long products at a clock that their temperature decides: NeuSight's T4 and
# P4 ran training rows, test rows and whole models at rates up to 1.7 and 4 times apart. For products launched otherwise
# than those measured one by one, as in whole models, half way to the physics is best (docs/accuracy.md).
UNSTEADY_W, UNSTEADY_TRUST = 75.0, 0.5


class Packed(NamedTuple):
    """All models of all cells in few arrays.

    feature, threshold, value  as in app.predictors.operators.boosting.Trees, of all models
    first, stop, mean          of every model: its trees, and what it adds to them
    column, scale              of every model's smooth part, [models, SMOOTH_COLUMNS]; scale 0 where it has fewer
    point, weight              of all smooth parts, [points, SMOOTH_COLUMNS] and [points]
    begin, end                 of every model: its points
    low, high                  range of shape features per cell, float64 [cells, SHAPE_FEATURES]
    """

    feature: NDArray[np.int16]
    threshold: Singles
    value: Singles
    first: Ints
    stop: Ints
    mean: Floats
    column: NDArray[np.int16]
    scale: Singles
    point: Singles
    weight: Singles
    begin: Ints
    end: Ints
    low: Floats
    high: Floats


class Recipes(NamedTuple):
    """Per cell and GPU: factors, models, weights, situation, trust; `cell` [kinds, dtypes] is a cell's row, -1 none."""

    factors: Floats
    member: Ints
    weight: Floats
    situation: Ints
    trust: Floats
    cell: Ints


@dataclass(frozen=True, eq=False)
class Learned:
    """Cells by operator and dtype."""

    cells: Mapping[CellKey, Cell] = field(default_factory=dict)

    def estimate(self, ops: OpTable, gpus: GpuTable, i: Ints, j: Ints) -> Estimate:
        """Operator row `i[q]` on GPU row `j[q]`."""
        kinds = kinds_of(ops)
        products = products_of(kinds)
        traits = traits_of(ops, kinds, products)
        shape = shape_features(kinds, products, len(ops))
        recipes, n = self._recipes(gpus), len(i)
        order = np.arange(n) if _alike(ops, j) else np.lexsort((ops.dtype[i], ops.kind[i], j))
        terms, latency, stretch = np.empty((TERMS, n)), np.empty(n), np.empty(n)
        bound, situation = np.empty(n, dtype=np.intp), np.empty(n, dtype=np.intp)
        devices = devices_of(gpus)
        asked = (i, j, order)
        _fill(shape, traits, devices, asked, terms, self._packed, recipes, (latency, stretch), (bound, situation))
        self._step_back(situation, ops, i)
        group = operator_codes(ops.kind[i], ops.dtype[i], situation)
        return Estimate(latency, bound, SUPPORT_OF_SITUATION[situation], group, stretch, terms[LIMIT])

    def _step_back(self, situation: Ints, ops: OpTable, i: Ints) -> None:
        """Rows corrected by what was learned of other rows are no better known than such: their intervals say so."""
        known = (situation == S_SEEN) | (situation == S_CALIBRATED)
        situation[known & self._lent[ops.kind, ops.dtype][i]] = S_SIBLING
        situation[_unlike(ops)[i]] = S_UNTRAINED

    @cached_property
    def _models(self) -> list[Model]:
        return [
            model
            for cell in self.cells.values()
            for model in (*cell.own.values(), *(() if cell.shared is None else (cell.shared,)))
        ]

    @cached_property
    def _packed(self) -> Packed:
        trees = [NO_TREES, *(model.trees for model in self._models)]
        stop = np.cumsum([len(part.feature) for part in trees[1:]], dtype=np.intp)
        joined: list[Any] = [np.concatenate([part[k] for part in trees]) for k in range(len(NO_TREES))]
        ranges = [np.array([getattr(cell, end) for cell in self.cells.values()]) for end in ("low", "high")]
        low, high = (part.reshape(-1, SHAPE_FEATURES).astype(np.float64) for part in ranges)
        mean = np.array([model.mean for model in self._models], dtype=np.float64)
        first = np.append(0, stop)[:-1].astype(np.intp)
        smooth: list[Any] = _packed_smooth([model.smooth for model in self._models])
        parts: list[Any] = [*joined, first, stop, mean, *smooth, low, high]
        return Packed(*parts)

    @cached_property
    def _number(self) -> dict[int, int]:
        return {id(model): number for number, model in enumerate(self._models)}

    @cached_property
    def _cell_of(self) -> Ints:
        rows = {key: row for row, key in enumerate(self.cells)}
        cell = np.full((len(OPS), len(DTYPES)), -1)
        for name, kind in OP_CODE.items():
            for dtype, code in DTYPE_CODE.items():
                cell[kind, code] = rows.get((name, dtype), rows.get((name, _LIKE.get(dtype, dtype)), -1))
        return cell

    @cached_property
    def _lent(self) -> NDArray[np.bool_]:
        """Whether what was learned of another dtype answers, bool [kinds, dtypes]."""
        lent = self._cell_of >= 0
        for (name, dtype), cell in self.cells.items():
            lent[OP_CODE[name], DTYPE_CODE[dtype]] = cell.lent
        return lent

    def cell_of(self, kind: int, dtype: int) -> CellKey | None:
        """The operator and dtype whose cell answers for these codes; None where nothing was learned."""
        row = int(self._cell_of[kind, dtype])
        return None if row < 0 else list(self.cells)[row]

    def _recipes(self, gpus: GpuTable) -> Recipes:
        """Recipes of every GPU of a table, put together once per table."""
        key = ("recipes", self)
        if key not in gpus.memo:
            gpus.memo[key] = self._stacked(gpus)
        known: Recipes = gpus.memo[key]
        return known

    def _stacked(self, gpus: GpuTable) -> Recipes:
        makes = gpus.architectures or ("",) * len(gpus)
        rows = [self._recipe_row(gpu, make) for gpu, make in zip(gpus.ids, makes, strict=True)]
        factors, member, weight, situation = (np.stack(part, axis=1) for part in zip(*rows, strict=True))
        kind = np.array([OP_CODE[op] for op, _ in self.cells], dtype=np.intp)
        trust = trusted(kind[:, None], situation, gpus.column("board_power_w"))
        return Recipes(factors, member, weight, situation, trust, self._cell_of)

    @cached_property
    def _recipe_row(self) -> Callable[[str, str], tuple[Floats, Ints, Floats, Ints]]:
        """`_recipe_row_of`, remembered for the GPUs asked last; goes with what was learned."""
        return lru_cache(maxsize=1024)(self._recipe_row_of)

    def _recipe_row_of(self, gpu: str, make: str) -> tuple[Floats, Ints, Floats, Ints]:
        """Factors [cells, FACTORS], models [cells, MEMBERS], weights alike and situations [cells] for one GPU."""
        factors, member = np.ones((len(self.cells), FACTORS)), np.full((len(self.cells), MEMBERS), -1)
        weight, situation = np.zeros((len(self.cells), MEMBERS)), np.empty(len(self.cells), dtype=np.intp)
        for row, cell in enumerate(self.cells.values()):
            recipe = cell.recipe(gpu, make)
            factors[row], situation[row] = recipe.factors, recipe.situation
            for k, (model, share) in enumerate(recipe.members[:MEMBERS]):
                member[row, k], weight[row, k] = self._number[id(model)], share
        return factors, member, weight, situation

    def fit(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Learned:
        """With what `runs` teach; what is known of other operators, dtypes and GPUs stays."""
        cells = dict(self.cells)
        for run in runs:
            usual = usual_rows(run)
            if len(usual):
                key = (run.op, run.dtype)
                cells[key] = learn(samples(usual.rows, gpus), SHAPE_FEATURES, cells.get(key))
        return Learned(cells)

    def with_measured(self, runs: Sequence[OperatorRuns], gpus: GpuTable) -> Learned:
        """Corrected for GPUs of which `runs` hold some rows, at once; GPUs with a model of their own keep it."""
        cells = dict(self.cells)
        for run in runs:
            usual = usual_rows(run)
            key = (run.op, run.dtype)
            if len(usual):
                cells[key] = calibrated(samples(usual.rows, gpus), self._taught(OP_CODE[run.op], DTYPE_CODE[run.dtype]))
        return Learned(cells)

    def expected(self, rows: Measurements, gpus: GpuTable) -> Floats | None:
        """Covariance of the errors of these rows, of one operator, dtype and GPU, while none is measured, [n, n].

        Their times are not looked at. None where the GPU has a model of its own, which few rows do not change.
        """
        found, gpu = samples(rows, gpus), int(rows.gpu[0])
        cell = self._taught(int(rows.ops.kind[0]), int(rows.ops.dtype[0]))
        name, make = found.names[gpu], found.makes[gpu]
        if name in cell.own and cell.own[name].alone:
            return None
        kernels = kernels_of(cell.shared)
        view = View.of(found.features, found.places, kernels)
        return expected(view, found.terms, cell.others(name, make).factors, kernels)

    def _taught(self, kind: int, dtype: int) -> Cell:
        """What rows of an operator and dtype add to: its own cell, that of a dtype like it as lent, or nothing."""
        key = self.cell_of(kind, dtype)
        if key is None:
            return Cell.empty(SHAPE_FEATURES)
        cell = self.cells[key]
        return cell if key[1] == DTYPES[dtype] else replace(cell, lent=True)

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
        return cls(cells)


def _packed_smooth(parts: Sequence[Smooth]) -> list[Any]:
    """Smooth parts side by side, as Packed has them."""
    count, end = len(parts), np.cumsum([len(part.weight) for part in parts], dtype=np.intp)
    column, scale = np.zeros((count, SMOOTH_COLUMNS), np.int16), np.zeros((count, SMOOTH_COLUMNS), np.float32)
    point = np.zeros((int(end[-1]) if count else 0, SMOOTH_COLUMNS), np.float32)
    begin = np.append(0, end)[:-1].astype(np.intp)
    for k, part in enumerate(parts):
        used = len(part.column)
        column[k, :used], scale[k, :used] = part.column, part.scale
        point[begin[k] : end[k], :used] = part.point
    weight = np.concatenate([np.empty(0, np.float32), *(part.weight for part in parts)])
    return [column, scale, point, weight, begin, end]


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


def _unlike(ops: OpTable) -> NDArray[np.bool_]:
    """Rows of a phase or run state that no model has seen: backward, or on a cool card, bool [n]."""
    unlike: NDArray[np.bool_] = (ops.column("backward") > 0.0) | (ops.column("burst") > 0.0)
    return unlike


def usual_rows(run: OperatorRuns) -> OperatorRuns:
    """Forward rows on busy cards of each GPU's most frequent software stack, eager and not: others would blur these."""
    eager, plain = run.rows.ops.column("eager"), ~_unlike(run.rows.ops)
    kept = [np.empty(0, dtype=np.intp)]
    for gpu in np.unique(run.rows.gpu):
        for mode in (plain & (eager > 0.0), plain & ~(eager > 0.0)):
            rows = np.flatnonzero((run.rows.gpu == gpu) & mode)
            if len(rows):
                stack = np.bincount(run.software[rows]).argmax()
                kept.append(rows[run.software[rows] == stack])
    return run.take(np.concatenate(kept))


def samples(rows: Measurements, gpus: GpuTable) -> Samples:
    """Features and residuals of measured rows of one operator in one dtype."""
    i = np.arange(len(rows))
    kinds = kinds_of(rows.ops)
    products = products_of(kinds)
    traits = traits_of(rows.ops, kinds, products)
    devices = devices_of(gpus)
    terms, features = np.empty((TERMS, len(i))), np.empty((FEATURES, len(i)), dtype=np.float32)
    fill_terms(traits, devices, i, rows.gpu, terms)
    fill_all(shape_features(kinds, products, len(i)), traits, devices.figures, rows.gpu, terms, features)
    places = Places.of(int(rows.ops.kind[0]), product=products[0] is not None)
    names, makes = gpus.ids, gpus.architectures or ("",) * len(gpus)
    streams = OPS[int(rows.ops.kind[0])].group == "elementwise"
    return Samples(features, terms, rows.latency_s, rows.gpu, names, makes, places, streams)


def trusted(kind: Ints, situation: Ints | int, power_w: Floats) -> Floats:
    """How much of what a GPU's own rows taught holds for operators launched otherwise; all of these broadcast."""
    unsteady = IS_LINEAR[kind] & (situation == S_SEEN) & (power_w <= UNSTEADY_W)
    return np.where(unsteady, UNSTEADY_TRUST, 1.0)


@compiled
def fill_all(shape: Singles, traits: Traits, figures: Floats, gpu: Ints, terms: Floats, features: Singles) -> None:
    """Fill `features` float32 [FEATURES, n] for row q on GPU row `gpu[q]`, with the terms in column q."""
    for q in range(len(gpu)):
        fill_features(shape, traits, figures, q, gpu[q], terms, q, features, q)


@compiled
def _fill(  # noqa: PLR0913, PLR0917  (compiled code takes arrays, not tables)
    shape: Singles,
    traits: Traits,
    devices: Devices,
    asked: tuple[Ints, Ints, Ints],
    terms: Floats,
    packed: Packed,
    recipes: Recipes,
    times: tuple[Floats, Floats],
    codes: tuple[Ints, Ints],
) -> None:
    """Queries in `order`, as many of one cell and GPU at once as there are; their physics go into `terms`."""
    i, j, order = asked
    bound, situation = codes
    fill_terms(traits, devices, i, j, terms)
    total, neutral, first = np.empty(BLOCK), np.ones(FACTORS), 0
    while first < len(order):
        row, gpu = i[order[first]], j[order[first]]
        cell, count = recipes.cell[traits.kind[row], traits.dtype[row]], 0
        while first + count < len(order) and count < BLOCK:
            q = order[first + count]
            if j[q] != gpu or traits.kind[i[q]] != traits.kind[row] or traits.dtype[i[q]] != traits.dtype[row]:
                break
            count += 1
        block = order[first : first + count]
        features = np.empty((FEATURES, count), dtype=np.float32)  # in one piece, to be read as vectors
        total[:count] = 0.0
        if cell >= 0:
            for k in range(count):
                fill_features(shape, traits, devices.figures, i[block[k]], gpu, terms, block[k], features, k)
            for k in range(MEMBERS):
                model = recipes.member[cell, gpu, k]
                if model >= 0:
                    weight = recipes.weight[cell, gpu, k]
                    total[:count] += weight * packed.mean[model]
                    trees = (packed.feature, packed.threshold, packed.value)
                    span = (packed.first[model], packed.stop[model])
                    add_trees(features, trees, span, weight, total[:count])
                    points = slice(packed.begin[model], packed.end[model])
                    smooth = (packed.column[model], packed.scale[model], packed.point[points], packed.weight[points])
                    add_smooth(features, smooth, weight, total[:count])
        for k in range(count):
            q = block[k]
            bound[q], situation[q], far = bound_of(terms, q), S_UNTRAINED, 0.0
            times[1][q] = 1.0
            if cell >= 0:
                situation[q] = recipes.situation[cell, gpu]
                far = beyond(shape, i[q], packed.low[cell], packed.high[cell])
                if far > 0.0:
                    times[1][q] = 1.0 + STRETCH * far
                    if situation[q] == S_SEEN or situation[q] == S_CALIBRATED:
                        situation[q] = S_SEEN_OUTSIDE
                    elif situation[q] == S_UNSEEN:
                        situation[q] = S_UNSEEN_OUTSIDE
            factors = recipes.factors[cell, gpu] if cell >= 0 else neutral
            alike = cell < 0 or packed.low[cell, EAGER] <= shape[EAGER, i[q]] <= packed.high[cell, EAGER]
            trust = 1.0 if alike else recipes.trust[cell, gpu]
            factors = factors if alike else factors**trust
            times[0][q] = corrected_s(terms, q, factors, trust * total[k] * np.exp(-FADING * far), alike)
        first += count


@compiled
def beyond(shape: Singles, row: int, low: Floats, high: Floats) -> float:
    """How far the row's shape is out of the range learned from, as a logarithm; 0 inside."""
    far = 0.0
    for f in range(EAGER):
        far = max(far, low[f] - shape[f, row], shape[f, row] - high[f])
    return float(far) if far > 1e-3 else 0.0


@compiled
def corrected_s(terms: Floats, q: int, factors: Floats, correction: float, alike: bool) -> float:
    """Seconds by physics under `factors` and a correction in log space; `alike`: launched as what was learned from."""
    if alike:
        return float(max(scaled_s(terms, q, factors) * np.exp(correction), terms[LIMIT, q]))
    # Launched in another way than the measurements: only what concerns the work carries over.
    work = scaled_work_s(terms, q, factors)
    work *= np.exp(correction * min(work / scaled_s(terms, q, factors), 1.0))
    return composed(terms, q, work)
