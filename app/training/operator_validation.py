"""Held-out validation of predictors that learn operators: errors, intervals and accuracy card.

Three splits, so that each situation of an answer has residuals of its own:
gpu_held_out            no row of one GPU is trained on; its rows are asked (`sibling`, `unseen`)
few_measured            the same, once the predictor was told FEW rows of each operator and dtype (`calibrated`)
configuration_held_out  a fifth of the configurations is held out on every GPU (`seen`), of few rows every fifth in turn

Every GPU has about as many residuals as any other.

What a version was learned on top of (app.training.operator_start) is used where it never saw what is asked: rows of
GPUs that it knows, and rows that it was trained on itself, are asked of a predictor made from the given rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from app.errors import NotTrained
from app.predictors.intervals.conformal import LEAST_RESIDUALS, Intervals
from app.predictors.intervals.groups import of_other_gpus
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools, Floats, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence
from app.tables.operator_runs import OperatorRuns
from app.training.operator_folds import configurations, fifths, hashed, mixed
from app.training.operator_start import Start
from app.training.row_limits import MOST_LEARNED
from app.training.validate import few

Report = Callable[[str], None]

SPLITS = ("gpu_held_out", "few_measured", "configuration_held_out")
GPU_HELD_OUT, FEW_MEASURED, CONFIGURATION_HELD_OUT = range(3)
FEW = 32
# With fewer configurations, rows are held out by their dimensions.
LEAST_CONFIGURATIONS = 20
# Rows of each operator, dtype and GPU that are asked.
MOST_ASKED = 256
MOST_OF_CONFIGURATIONS = 10_000
# Residuals that a group of intervals keeps, evenly over their order.
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
        """One after another; none without parts."""
        none = np.empty(0, dtype=np.intp)
        every = [cls(cells, none, none.astype(np.uint64), none, none, none, none, np.empty(0)), *parts]
        return cls(cells, *(np.concatenate([getattr(part, name) for part in every]) for name in _COLUMNS))

    def take(self, rows: Ints | Bools) -> HeldOut:
        """The answers given."""
        columns = (getattr(self, name)[rows] for name in _COLUMNS)
        return HeldOut(self.cells, *columns)

    def intervals(self) -> Intervals:
        """Conformal intervals of the groups with residuals enough."""
        residuals, units, gpus = {}, {}, {}
        for group in np.unique(self.group).tolist():
            found = np.sort(self.log_ratio[self.group == group])
            if len(found) >= LEAST_RESIDUALS:
                kept = np.linspace(0, len(found) - 1, min(len(found), MOST_KEPT)).round().astype(np.intp)
                residuals[group], units[group] = found[kept], len(found)
                if of_other_gpus(group):
                    gpus[group] = len(np.unique(self.gpu[self.group == group]))
        return Intervals(residuals, units, gpus)


_COLUMNS = tuple(name for name in HeldOut.__dataclass_fields__ if name != "cells")


class _Query(NamedTuple):
    """Rows of a data set to ask: per table, and which of its rows."""

    table: int
    rows: Ints


def held_out(start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, report: Report) -> HeldOut:
    """Answers on every split that can be asked."""
    cells = tuple(f"{run.op}/{run.dtype}" for run in runs)
    parts: list[HeldOut] = []
    for fold in _by_gpu(start, runs, gpus, report):
        parts += fold
    parts += _by_configuration(start, runs, gpus, report)
    return HeldOut.together(cells, parts)


def _by_gpu(start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, report: Report) -> Iterator[list[HeldOut]]:
    """Each GPU in turn; only operators that it was measured with are learned."""
    every = np.unique(np.concatenate([run.rows.gpu for run in runs])).tolist()
    for number, gpu in enumerate(every):
        report(f"GPU {number + 1} of {len(every)} held out: {gpus.ids[gpu]}")
        here = [k for k, run in enumerate(runs) if (run.rows.gpu == gpu).any()]
        train = [runs[k].take(_few(runs[k], runs[k].rows.gpu != gpu, MOST_LEARNED)) for k in here]
        fitted = _fitted(start, gpus.ids[gpu] in start.gpus, train, gpus)
        if fitted is None:
            continue
        query = [_Query(k, _few(runs[k], runs[k].rows.gpu == gpu, MOST_ASKED)) for k in here]
        yield [_asked(fitted, runs, gpus, query, GPU_HELD_OUT), *_told_few(fitted, runs, gpus, query)]


def _told_few(fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, query: Sequence[_Query]) -> list[HeldOut]:
    """The same GPU, a few of its rows told; nothing of a predictor that cannot be told."""
    if not fitted.can.takes_measured:
        return []
    told = fitted.with_measured([runs[one.table].take(one.rows[:FEW]) for one in query], gpus)
    rest = [_Query(one.table, one.rows[FEW:]) for one in query]
    return [_asked(told, runs, gpus, rest, FEW_MEASURED)]


def _by_configuration(start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, report: Report) -> Iterator[HeldOut]:
    """A fifth of each operator's; of one whose fifth is a handful of rows, every fifth in turn."""
    report("configurations held out")
    fifth = [_fifth_of(run) for run in runs]
    small = [k for k, part in enumerate(fifth) if np.count_nonzero(part == 0) < LEAST_RESIDUALS]
    for number in range(_FIFTHS):
        turn = small if number else range(len(runs))
        yield from _configurations_out(start, runs, gpus, {k: _others_seen(runs[k], fifth[k] == number) for k in turn})


def _others_seen(run: OperatorRuns, out: Bools) -> Bools:
    """Those of the rows `out` whose GPU keeps rows to learn from, bool [n]."""
    return out & np.isin(run.rows.gpu, run.rows.gpu[~out])


def _configurations_out(
    start: Start, runs: Sequence[OperatorRuns], gpus: GpuTable, out: Mapping[int, Bools]
) -> Iterator[HeldOut]:
    """Answers to the rows held out, bool [n] by the table, of a predictor of the other rows of these tables."""
    train = [runs[k].take(_few(runs[k], ~held, MOST_OF_CONFIGURATIONS)) for k, held in out.items()]
    for own in (False, True):
        known = {k: start.rows_known(runs[k].key) for k in out}
        query = [_Query(k, _few(runs[k], held & (known[k] == own), MOST_ASKED)) for k, held in out.items()]
        if not any(len(one.rows) for one in query):
            continue
        fitted = _fitted(start, own, train, gpus)
        if fitted is not None:
            yield _asked(fitted, runs, gpus, query, CONFIGURATION_HELD_OUT)


def _fifth_of(run: OperatorRuns) -> Ints:
    """Which fifth each row is in, 0 to 4, int [n]: of configurations, or of rows where there are few of these."""
    found = configurations(run)
    alike = len(np.unique(found)) < LEAST_CONFIGURATIONS
    return fifths(mixed(hashed(run.rows.ops) if alike else found, np.uint64(7)))


def _fitted(start: Start, alone: bool, train: Sequence[OperatorRuns], gpus: GpuTable) -> Any:
    """Fitted `alone` or on top of what ships; None where neither knows anything."""
    base, rows = start.fresh() if alone else start.base(), [run for run in train if len(run)]
    untaught = None if alone or start.payload is None else base
    try:
        return base.fit_operators(rows, gpus) if rows else untaught
    except NotTrained:
        return untaught


def _few(run: OperatorRuns, among: Bools, most: int) -> Ints:
    """At most `most` rows of each GPU, in the order of a hash of their keys: a sample that stays as rows come in."""
    parts = [np.empty(0, dtype=np.intp)]
    for gpu in np.unique(run.rows.gpu[among]):
        rows = np.flatnonzero(among & (run.rows.gpu == gpu))
        parts.append(rows[np.argsort(mixed(run.key[rows], np.uint64(0)), kind="stable")[:most]])
    return np.concatenate(parts)


def _asked(fitted: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, query: Sequence[_Query], split: int) -> HeldOut:
    """Answers to the rows of `query`; those without support are left out."""
    parts = [answers(fitted, runs, gpus, one.table, one.rows, split) for one in query if len(one.rows)]
    return HeldOut.together(tuple(f"{run.op}/{run.dtype}" for run in runs), parts)


def answers(
    predictor: Any, runs: Sequence[OperatorRuns], gpus: GpuTable, table: int, rows: Ints, split: int
) -> HeldOut:
    """Answers of a predictor to rows of one table, without evidence; those without support are left out."""
    run = runs[table].take(rows)
    i, gpu = np.arange(len(rows)), run.rows.gpu
    nothing = Evidence(run.rows.take(i[:0]), i[:0])
    estimate = predictor.predict(run.rows.ops, gpus, i, gpu, evidence=nothing)
    floor = hardware_limit(run.rows.ops, gpus, i, gpu).latency_s
    log_ratio = np.log(run.rows.latency_s / np.maximum(estimate.latency_s, floor))
    cells = tuple(f"{one.op}/{one.dtype}" for one in runs)
    found = HeldOut(cells, rows, run.key, i * 0 + table, gpu, estimate.group, i * 0 + split, log_ratio)
    return found.take(np.isfinite(log_ratio))


def covered(found: HeldOut, coverage: float) -> Bools:
    """Whether each answer lies in an interval made from the other GPUs' residuals only, bool [n]."""
    inside = np.zeros(len(found), dtype=np.bool_)
    for gpu in np.unique(found.gpu):
        mine = found.gpu == gpu
        low, high = found.take(~mine).intervals().log_offsets(coverage)
        group, error = found.group[mine], found.log_ratio[mine]
        inside[mine] = (error >= low[group]) & (error <= high[group])
    return inside


def card_rows(found: HeldOut, gpus: GpuTable) -> list[dict[str, Any]]:
    """Accuracy card: per split and operator/dtype, a row over all GPUs and one for each."""
    inside = covered(found, 0.8)
    rows = []
    for split, name in enumerate(SPLITS):
        for cell, family in enumerate(found.cells):
            these = (found.split == split) & (found.cell == cell)
            for gpu in [None, *np.unique(found.gpu[these])]:
                mine = these if gpu is None else these & (found.gpu == gpu)
                if mine.any():
                    on = "all" if gpu is None else gpus.ids[gpu]
                    rows.append(
                        {"split": name, "family": family, "gpu": on, **_summary(found.log_ratio[mine], inside[mine])}
                    )
    return rows


def _summary(log_ratio: Floats, inside: Bools) -> dict[str, float | int | str]:
    error = np.abs(np.expm1(-log_ratio))
    return {
        "mape": round(100.0 * float(error.mean()), 3),
        "median_ape": round(100.0 * float(np.median(error)), 3),
        "coverage_80": round(100.0 * float(inside.mean()), 1),
        "n": len(error),
    } | few(len(error))
