"""Held-out validation of predictors that learn operators: errors, intervals and accuracy card.

Three splits give each situation of an answer its own residuals:

gpu_held_out            one GPU's rows are not trained on, but tested (`sibling`, `unseen`)
few_measured            the same after calibration to FEW rows of each operator and dtype (`calibrated`)
configuration_held_out  a fifth of the configurations is held out on every GPU (`seen`); of few rows, each fifth in turn

Every GPU has about equally many residuals.

The shipped version below (app.training.operator_start) is used only for tests on what it never saw. Rows of GPUs that
it knows, and rows that it was trained on, test a predictor trained on the given rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import LEAST_RESIDUALS, Intervals
from app.bands.coverage import COVERAGE
from app.bands.groups import of_other_gpus
from app.errors import NotTrained
from app.predictors.fitted_once import fitted_once
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, OperatorRuns
from app.training.fit import covered, summary
from app.training.operator_start import Start, any_holds
from app.training.row_hashes import configurations, dimensions, fifths, mixed
from app.training.row_limits import MOST_LEARNED

Report = Callable[[str], None]

SPLITS = ("gpu_held_out", "few_measured", "configuration_held_out")
GPU_HELD_OUT, FEW_MEASURED, CONFIGURATION_HELD_OUT = range(3)
FEW = 32
# With fewer configurations, rows are held out by dimensions instead.
LEAST_CONFIGURATIONS = 20
# Rows per operator, dtype and GPU that are tested.
MOST_TESTED = 256
MOST_OF_CONFIGURATIONS = 10_000
# Residuals stored per interval group, at evenly spaced ranks.
MOST_KEPT = 401
_FIFTHS = 5


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out answers, n of them.

    row        int [n], of the cell's table
    key        uint64 [n], the row's
    cell       int [n], code into `cells`: operator/dtype
    gpu        int [n], row of the GpuTable
    group      int [n], residual group of the answer
    split      int [n], code into SPLITS
    log_ratio  float64 [n], log(measured / predicted)
    """

    cells: tuple[str, ...]
    row: Ints
    key: NDArray[np.uint64]
    cell: Ints
    gpu: Ints
    group: Ints
    split: Ints
    log_ratio: Floats

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def together(cls, cells: tuple[str, ...], parts: Sequence[HeldOut]) -> Self:
        """Return the concatenation of held-out answers."""
        none = np.empty(0, dtype=np.intp)
        every = [cls(cells, none, none.astype(np.uint64), none, none, none, none, np.empty(0)), *parts]
        return cls(cells, *(np.concatenate([getattr(part, name) for part in every]) for name in _COLUMNS))

    def take(self, rows: Ints | Bools) -> HeldOut:
        """Return the given answers."""
        columns = (getattr(self, name)[rows] for name in _COLUMNS)
        return HeldOut(self.cells, *columns)

    def intervals(self) -> Intervals:
        """Return the conformal intervals of groups with enough residuals."""
        residuals, units, gpus = {}, {}, {}
        for group in np.unique(self.group).tolist():
            ordered = np.sort(self.log_ratio[self.group == group])
            if len(ordered) >= LEAST_RESIDUALS:
                kept = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_KEPT)).round().astype(np.intp)
                residuals[group], units[group] = ordered[kept], len(ordered)
                if of_other_gpus(group):
                    gpus[group] = len(np.unique(self.gpu[self.group == group]))
        return Intervals(residuals, units, gpus)


_COLUMNS = tuple(name for name in HeldOut.__dataclass_fields__ if name != "cells")


class _Query(NamedTuple):
    """Rows to test: a table of the data set and its rows."""

    table: int
    rows: Ints


def held_out(start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, report: Report) -> HeldOut:
    """Return the answers on all possible splits."""
    cells = tuple(f"{run.op}/{run.dtype}" for run in runs)
    parts: list[HeldOut] = []
    with fitted_once():
        for fold in _by_gpu(start, runs, gpus, report):
            parts += fold
    parts += _by_configuration(start, runs, gpus, report)
    return HeldOut.together(cells, parts)


def _by_gpu(start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, report: Report) -> Iterator[list[HeldOut]]:
    """Yield the answers with each GPU held out; only its measured operators are learned."""
    every = np.unique(np.concatenate([run.rows.gpu for run in runs])).tolist()
    for number, gpu in enumerate(every):
        report(f"GPU {number + 1} of {len(every)} held out: {gpus.ids[gpu]}")
        here = [k for k, run in enumerate(runs) if (run.rows.gpu == gpu).any()]
        train = [runs[k].take(_few(runs[k], runs[k].rows.gpu != gpu, MOST_LEARNED)) for k in here]
        fitted = _fitted(start, gpus.ids[gpu] in start.gpus, train, gpus)
        if fitted is None:
            continue
        query = [_Query(k, _few(runs[k], runs[k].rows.gpu == gpu, MOST_TESTED)) for k in here]
        yield [_answers_to(fitted, runs, gpus, query, GPU_HELD_OUT), *_few_given(fitted, runs, gpus, query)]


def _few_given(fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, query: Sequence[_Query]) -> list[HeldOut]:
    """Return the answers after calibration to a few rows of the GPU; none of a predictor without calibration."""
    if not fitted.can.takes_measured:
        return []
    calibrated = fitted.with_measured([runs[one.table].take(one.rows[:FEW]) for one in query], gpus)
    rest = [_Query(one.table, one.rows[FEW:]) for one in query]
    return [_answers_to(calibrated, runs, gpus, rest, FEW_MEASURED)]


def _by_configuration(start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, report: Report) -> Iterator[HeldOut]:
    """Yield the answers with a fifth of each operator's configurations held out; of few rows, every fifth in turn."""
    report("configurations held out")
    fifth = [_fifth_of(run) for run in runs]
    small = [k for k, part in enumerate(fifth) if np.count_nonzero(part == 0) < LEAST_RESIDUALS]
    for number in range(_FIFTHS):
        turn = small if number else range(len(runs))
        yield from _configurations_out(start, runs, gpus, {k: _others_seen(runs[k], fifth[k] == number) for k in turn})


def _others_seen(run: OperatorRuns, out: Bools) -> Bools:
    """Return True for rows of `out` whose GPU still has training rows, bool [n]."""
    return out & np.isin(run.rows.gpu, run.rows.gpu[~out])


def _configurations_out(
    start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, out: Mapping[int, Bools]
) -> Iterator[HeldOut]:
    """Yield answers to the rows `out`, bool [n] by table, of a predictor trained on the tables' other rows."""
    train = [runs[k].take(_few(runs[k], ~held, MOST_OF_CONFIGURATIONS)) for k, held in out.items()]
    for own in (False, True):
        known = {k: any_holds(start.rows, runs[k].key) for k in out}
        query = [_Query(k, _few(runs[k], held & (known[k] == own), MOST_TESTED)) for k, held in out.items()]
        if not any(len(one.rows) for one in query):
            continue
        fitted = _fitted(start, own, train, gpus)
        if fitted is not None:
            yield _answers_to(fitted, runs, gpus, query, CONFIGURATION_HELD_OUT)


def _fifth_of(run: OperatorRuns) -> Ints:
    """Return the fifth of each row, 0 to 4, int [n], by configuration, or by dimensions if configurations are few."""
    configuration = configurations(run)
    few = len(np.unique(configuration)) < LEAST_CONFIGURATIONS
    return fifths(mixed(dimensions(run) if few else configuration, np.uint64(7)))


def _fitted(start: Start, alone: bool, train: Sequence[OperatorRuns], gpus: GpuTable) -> Any:
    """Return a predictor fitted from scratch (`alone`) or on top of the shipped version; None if neither knows any."""
    base, rows = start.fresh() if alone else start.base(), [run for run in train if len(run)]
    untaught = None if alone or start.payload is None else base
    try:
        return base.fit_operators(rows, gpus) if rows else untaught
    except NotTrained:
        return untaught


def _few(run: OperatorRuns, among: Bools, most: int) -> Ints:
    """Return at most `most` rows of each GPU, ordered by a hash of their keys: stable as rows are added."""
    parts = [np.empty(0, dtype=np.intp)]
    for gpu in np.unique(run.rows.gpu[among]):
        rows = np.flatnonzero(among & (run.rows.gpu == gpu))
        parts.append(rows[np.argsort(mixed(run.key[rows], np.uint64(0)), kind="stable")[:most]])
    return np.concatenate(parts)


def _answers_to(
    fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, query: Sequence[_Query], split: int
) -> HeldOut:
    """Return the answers to the rows of `query`, without unsupported ones."""
    parts = [answers(fitted, runs, gpus, one.table, one.rows, split) for one in query if len(one.rows)]
    return HeldOut.together(tuple(f"{run.op}/{run.dtype}" for run in runs), parts)


def answers(
    predictor: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, table: int, rows: Ints, split: int
) -> HeldOut:
    """Return a predictor's answers to rows of one table, without evidence and without unsupported rows."""
    run = runs[table].take(rows)
    i, gpu = np.arange(len(rows)), run.rows.gpu
    nothing = Evidence(run.rows.take(i[:0]), i[:0])
    estimate = predictor.predict(run.rows.ops, gpus, i, gpu, evidence=nothing)
    floor = hardware_limit(run.rows.ops, gpus, i, gpu).latency_s
    log_ratio = np.log(run.rows.latency_s / np.maximum(estimate.latency_s, floor))
    cells = tuple(f"{one.op}/{one.dtype}" for one in runs)
    held = HeldOut(cells, rows, run.key, i * 0 + table, gpu, estimate.group, i * 0 + split, log_ratio)
    return held.take(np.isfinite(log_ratio))


def card_rows(held: HeldOut, gpus: GpuTable) -> list[dict[str, Any]]:
    """Return the accuracy card: per split and operator/dtype, a row over all GPUs and one per GPU."""
    inside = covered(held, COVERAGE)
    rows = []
    for split, name in enumerate(SPLITS):
        for cell, family in enumerate(held.cells):
            these = (held.split == split) & (held.cell == cell)
            for gpu in [None, *np.unique(held.gpu[these])]:
                mine = these if gpu is None else these & (held.gpu == gpu)
                if mine.any():
                    on = "all" if gpu is None else gpus.ids[gpu]
                    rows.append(
                        {"split": name, "family": family, "gpu": on, **summary(held.log_ratio[mine], inside[mine])}
                    )
    return rows
