"""Training of a candidate version on kernels, operators or both, on top of the shipped version.

Everything that the shipped version learned from other rows is kept: its operators when only kernels are trained and
vice versa, its intervals of other groups, and its card's rows of other cells. A gate compares the held-out errors of
a candidate's operators with those of the served version.

Only some operators may be trained (`joined`). What is learned of an operator depends on its own rows alone, except that
collectives share sizes and that residuals are pooled by interval group. So operators of an interval group are trained
together, in all dtypes, and all others are the same as if all had been trained: their cells, intervals, held-out errors
and rows of the card are taken over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bands.conformal import LEAST_RESIDUALS, Intervals
from app.errors import BadInput, NotTrained
from app.ops import OP_CODE, OPS
from app.predictors import BY_NAME, capabilities
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements, OperatorRuns
from app.training.fit import FAMILY, LEAST_ROWS, Trained, few, gate, software, train, worse
from app.training.operator_start import Start, any_holds, learned_from, learned_rows
from app.training.operator_validation import (
    CONFIGURATION_HELD_OUT,
    GPU_HELD_OUT,
    SPLITS,
    HeldOut,
    answers,
    card_rows,
    held_out,
)
from app.training.schemas import schema_of

# Family and GPU of the card's rows over all kernels.
_KERNELS = (FAMILY, "all")


def with_new_gpus(start: Start, shipped_card: Mapping[str, Any], data: TrainingData, report: Report) -> Trained:
    """Return the shipped version of `start` with the operators of GPUs that it does not know, the only ones of `data`.

    What it learned of other GPUs, models of all GPUs among them, stays as it is; so do rows of the card over all GPUs.
    Held-out errors are pooled by interval group.
    """
    before, validation = start.payload, shipped_card["validation"]
    assert before is not None
    new = candidate(start, data, validation, target_gpu=None, report=report)
    held = new.held_out
    assert held is not None
    operators = new.trained.payload["operators"]
    parts = (before["operators"]["held_out"], operators["held_out"])
    operators = {**operators, "held_out": {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}}
    intervals = start.intervals().pooled(held.intervals()).state()
    payload = {**new.trained.payload, "operators": operators, "intervals": intervals}
    known = {(row["split"], row["family"], row["gpu"]) for row in validation}
    rows = [row for row in card_rows(held, data.gpus) if (row["split"], row["family"], row["gpu"]) not in known]
    on = shipped_card["trained_on"]
    trained_on = {"rows": on["rows"] + data.rows, "gpus": sorted({*on["gpus"], *data.gpu_ids})}
    card = {**new.trained.card, "trained_on": trained_on, "validation": [*validation, *rows]}
    return Trained({**payload, "out_of_fold": before["out_of_fold"]}, card)


def remembered(held: HeldOut) -> dict[str, Any]:
    """Return what a version stores of its held-out answers, 7 bytes each.

    key    uint32 [n], the upper half of the row's key
    split  uint8 [n]
    error  float16 [n], absolute log error
    """
    return {
        "key": (held.key >> np.uint64(32)).astype(np.uint32),
        "split": held.split.astype(np.uint8),
        "error": np.minimum(np.abs(held.log_ratio), 1e3).astype(np.float16),
    }


def operator_gate(
    held: HeldOut, served: Mapping[str, Any], runs: Sequence[OperatorRuns], gpus: GpuTable, tolerance: float
) -> str | None:
    """Return why the candidate must not replace the served version; None if it may.

    Rows held out of both are compared by their held-out errors. Rows that the served version did not learn from are
    compared by its plain answers: held-out configurations, and GPUs unknown to the served version. On either, the
    candidate may be worse by at most the relative `tolerance`.
    """
    for (mine, theirs), what in (
        (_held_out_of_both(held, served), "rows held out of both"),
        (_new_to_served(held, served, runs, gpus), "new rows"),
    ):
        note = "".join(f" ({text})" for text in few(len(mine)).values())
        if reason := worse(mine, theirs, tolerance, f"{what}{note}"):
            return reason
    return None


def _held_out_of_both(held: HeldOut, served: Mapping[str, Any]) -> tuple[Floats, Floats]:
    theirs = (served.get("operators") or {}).get("held_out")
    if theirs is None:
        return np.empty(0), np.empty(0)
    mine = remembered(held)
    _, here, there = np.intersect1d(_code(mine), _code(theirs), return_indices=True)
    return mine["error"][here].astype(np.float64), theirs["error"][there].astype(np.float64)


def _code(held: Mapping[str, Any]) -> NDArray[np.uint64]:
    code: NDArray[np.uint64] = (held["split"].astype(np.uint64) << np.uint64(32)) | held["key"]
    return code


def _new_to_served(
    held: HeldOut, served: Mapping[str, Any], runs: Sequence[OperatorRuns], gpus: GpuTable
) -> tuple[Floats, Floats]:
    """Return the errors of the candidate and of the served version on rows that are new to it and that both answer."""
    known, rows = learned_from(served)
    elsewhere = np.array([gpu not in known for gpu in gpus.ids], dtype=np.bool_)[held.gpu]
    counted = (held.split == CONFIGURATION_HELD_OUT) | ((held.split == GPU_HELD_OUT) & elsewhere)
    counted &= ~any_holds(rows, held.key)
    predictor: Any = BY_NAME[served["predictor"]]
    ready = predictor.from_state(served["state"])
    mine, theirs = [np.empty(0)], [np.empty(0)]
    for table in np.unique(held.cell[counted]).tolist():
        for split in (CONFIGURATION_HELD_OUT, GPU_HELD_OUT):
            here = held.take(counted & (held.cell == table) & (held.split == split))
            answer = answers(ready, runs, gpus, table, here.row, split)
            both, ours, other = np.intersect1d(here.row, answer.row, return_indices=True)
            if len(both):
                mine.append(np.abs(here.log_ratio[ours]))
                theirs.append(np.abs(answer.log_ratio[other]))
    return np.concatenate(mine), np.concatenate(theirs)


Report = Callable[[str], None]
Card = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Training rows, whose GPUs are rows of `gpus`; `kernel_ids` are the ids of the kernel rows."""

    gpus: GpuTable
    kernels: Measurements
    kernel_ids: Sequence[str]
    operators: Sequence[OperatorRuns]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.kernel_ids) + sum(len(run) for run in self.operators)

    @property
    def gpu_ids(self) -> list[str]:
        """Ids of GPUs with rows, in the order of the table."""
        on = [np.unique(self.kernels.gpu), *(np.unique(run.rows.gpu) for run in self.operators)]
        return [self.gpus.ids[gpu] for gpu in np.unique(np.concatenate(on)).tolist()]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trained version, and the held-out answers of its operators; None if it learned none."""

    trained: Trained
    held_out: HeldOut | None


def candidate(
    start: Start, data: TrainingData, shipped_card: Card, *, target_gpu: str | None, report: Report
) -> Candidate:
    """Fit and validate a candidate; raises NotTrained if there are too few rows.

    What kernels teach is left as it ships where none can be held out, as long as operators were measured.
    """
    trained = held = None
    too_few: list[str] = []
    try:
        trained = _with_kernels(start, data, target_gpu, report)
    except NotTrained as error:
        too_few.append(error.detail)
    if capabilities(start.name).learns_operators and data.operators:
        try:
            trained, held = _with_operators(start, trained, data, target_gpu, report)
        except NotTrained as error:
            too_few.append(error.detail)
    if trained is None:
        kernels = f"{len(data.kernel_ids)} kernel measurements are too few for {start.name}: at least {LEAST_ROWS}."
        raise NotTrained(" ".join(too_few) or kernels)
    new = trained.card["validation"]
    card = {
        "trained_on": {"rows": data.rows, "gpus": data.gpu_ids},
        "validation": [*_others(shipped_card, new), *new],
        "software": software(),
    }
    payload = {**trained.payload, "schema": schema_of(trained.payload).state()}
    return Candidate(Trained(payload, card), held)


def _with_kernels(start: Start, data: TrainingData, target_gpu: str | None, report: Report) -> Trained | None:
    can, few = capabilities(start.name), len(data.kernel_ids) < LEAST_ROWS
    if not can.learns_launches or (few and start.payload is not None):
        return None
    if few and can.learns_operators and data.operators:
        return None
    report(f"{len(data.kernel_ids)} kernel measurements")
    kernels = train(start.name, data.kernels, data.gpus, data.kernel_ids, target_gpu=target_gpu, base=start.base())
    intervals = _merged(start.intervals(), Intervals.from_state(kernels.payload["intervals"]))
    carried = {"operators": start.payload["operators"]} if start.payload and "operators" in start.payload else {}
    return Trained({**kernels.payload, "intervals": intervals.state(), **carried}, kernels.card)


def _with_operators(
    start: Start, kernels: Trained | None, data: TrainingData, target_gpu: str | None, report: Report
) -> tuple[Trained, HeldOut]:
    """Learn operators on top of the trained kernels."""
    runs, gpus = data.operators, data.gpus
    rows = sum(len(run) for run in runs)
    report(f"{rows:,} operator measurements in {len(runs)} cells")
    base: Any = start.base() if kernels is None else _ready(start.name, kernels.payload)
    state = base.fit_operators(runs, gpus).state()
    held = held_out(start, runs, gpus, report)
    if target_gpu is not None:
        held = held.take(np.array([gpus.ids[gpu] == target_gpu for gpu in held.gpu], dtype=np.bool_))
    before = start.intervals() if kernels is None else Intervals.from_state(kernels.payload["intervals"])
    payload = {
        "predictor": start.name,
        "state": state,
        "intervals": _merged(before, held.intervals()).state(),
        "out_of_fold": {} if kernels is None else kernels.payload["out_of_fold"],
        "operators": {
            "gpus": sorted({*start.gpus, *(gpus.ids[gpu] for run in runs for gpu in np.unique(run.rows.gpu))}),
            "rows": [one.bits for one in (*start.rows, learned_rows(runs, base.learned_cells(state)))],
            "held_out": remembered(held),
        },
    }
    card = [] if kernels is None else kernels.card["validation"]
    return Trained(payload, {"validation": [*card, *card_rows(held, gpus)]}), held


def _ready(name: str, payload: Mapping[str, Any]) -> Any:
    predictor: Any = BY_NAME[name]
    return predictor.from_state(payload["state"])


def _merged(before: Intervals, now: Intervals) -> Intervals:
    """Return the intervals of groups with new residuals, and the earlier ones of the others."""
    return Intervals({**before.residuals, **now.residuals}, {**before.units, **now.units}, {**before.gpus, **now.gpus})


def _others(before: Card, now: Card) -> list[Mapping[str, Any]]:
    """Return the earlier card's rows of other splits, families or GPUs."""
    new = {(row["split"], row["family"], row["gpu"]) for row in now}
    return [row for row in before if (row["split"], row["family"], row["gpu"]) not in new]


def kept_back(
    new: Candidate, served: Mapping[str, Any] | None, data: TrainingData, tolerance: float, most_error: float
) -> str | None:
    """Return why the candidate must not replace the served version; None if it may.

    Of no split may the mean error of held-out kernels, or of held-out operators, be over `most_error`, percent.
    """
    if reason := _too_wrong(new, most_error):
        return reason
    if served is None:
        return None
    if new.trained.payload["out_of_fold"]:
        args = (data.kernels, data.gpus, data.kernel_ids, tolerance)
        if reason := gate(new.trained, served, *args):
            return reason
    if new.held_out is None:
        return None
    return operator_gate(new.held_out, served, data.operators, data.gpus, tolerance)


def _too_wrong(new: Candidate, most_error: float) -> str | None:
    card = new.trained.card["validation"]
    errors = [
        (row["split"], "kernels", row["n"], row["mape"]) for row in card if (row["family"], row["gpu"]) == _KERNELS
    ]
    if new.held_out is not None:
        error = 100.0 * np.abs(np.expm1(-new.held_out.log_ratio))
        by_split = [(split, error[new.held_out.split == code]) for code, split in enumerate(SPLITS)]
        errors += [(split, "operators", len(own), float(own.mean())) for split, own in by_split if len(own)]
    for split, what, rows, mape in errors:
        if rows >= LEAST_RESIDUALS and mape > most_error:
            return f"kept back: mean error {mape:.0f} % on {rows} {what} held out ({split}), over {most_error:g} %"
    return None


def trained_together(names: Collection[str]) -> tuple[str, ...]:
    """Return the operators `names` with all of their interval groups, in the order of OPS. BadInput: unknown names."""
    if unknown := [name for name in names if name not in OP_CODE or name == OPS[0].name]:
        raise BadInput(f"Unknown operator {unknown[0]!r}: use one of {', '.join(op.name for op in OPS[1:])}.")
    groups = {OPS[OP_CODE[name]].interval_group for name in names}
    return tuple(op.name for op in OPS[1:] if op.interval_group in groups)


def row_hashes(runs: Sequence[OperatorRuns]) -> dict[str, str]:
    """Return a SHA-256 of the set of each operator's rows, by its name."""
    digests = {run.op: hashlib.sha256() for run in runs}
    for run in runs:
        digests[run.op].update(run.dtype.encode())
        digests[run.op].update(np.sort(run.key).tobytes())
    return {op: digest.hexdigest() for op, digest in digests.items()}


def changed_rows(kept: Mapping[str, str], runs: Sequence[OperatorRuns]) -> list[str]:
    """Return the operators of `runs` whose rows are not those that an artefact was trained on, by `kept` row hashes."""
    return [op for op, digest in row_hashes(runs).items() if kept.get(op) != digest]


def joined(
    shipped: Mapping[str, Any], card: Mapping[str, Any], new: Trained, runs: Sequence[OperatorRuns], ops: Sequence[str]
) -> Trained:
    """Return the shipped version with operators `ops` as trained in `new`.

    card  the shipped version's
    new   a candidate trained on the rows of `ops` only, from scratch
    runs  the rows of all operators
    """
    mine = new.payload
    state = {**shipped["state"], "operators": _cells(shipped["state"], mine["state"], runs, ops)}
    before = shipped["operators"]
    learner: Any = BY_NAME[shipped["predictor"]]
    operators = {
        "gpus": sorted({*before["gpus"], *mine["operators"]["gpus"]}),
        "rows": [learned_rows(runs, learner.learned_cells(state)).bits],
        "held_out": _joined_held_out(before["held_out"], mine["operators"]["held_out"], runs, ops),
    }
    intervals = _intervals(shipped["intervals"], mine["intervals"], ops)
    payload = {**shipped, "state": state, "intervals": intervals, "operators": operators}
    payload["schema"] = schema_of(payload).state()
    kernels = {key.split(" ", 1)[1] for key in shipped["out_of_fold"]}
    gpus = {*card["trained_on"]["gpus"], *new.card["trained_on"]["gpus"]}
    trained_on = {"rows": len(kernels) + sum(len(run) for run in runs), "gpus": sorted(gpus)}
    return Trained(payload, {**card, "trained_on": trained_on, "validation": _joined_card(card, new, runs, ops)})


def _cells(before: Mapping[str, Any], new: Mapping[str, Any], runs: Sequence[OperatorRuns], ops: Sequence[str]) -> Any:
    """Return the cells in the order of `runs`, as a whole training has them; those without rows come first."""
    kept = {key: cell for key, cell in before["operators"].items() if key.split(" ")[0] not in ops}
    every = {**kept, **new["operators"]}
    order = {f"{run.op} {run.dtype}": k for k, run in enumerate(runs)}
    return {key: every[key] for key in sorted(every, key=lambda key: order.get(key, -1))}


def _intervals(before: Mapping[str, Any], new: Mapping[str, Any], ops: Sequence[str]) -> dict[str, Any]:
    """Return the residuals by part and group: those of the groups of `ops` are the new ones."""
    lines = {OPS[OP_CODE[op]].interval_group for op in ops}
    return {
        part: {**{name: of for name, of in groups.items() if name.split("/")[0] not in lines}, **new[part]}
        for part, groups in before.items()
    }


def _joined_held_out(
    before: Mapping[str, Any], new: Mapping[str, Any], runs: Sequence[OperatorRuns], ops: Sequence[str]
) -> dict[str, Any]:
    """Return the held-out errors, of rows of `ops` the new ones (app.training.candidate.remembered)."""
    mine = np.concatenate([run.key for run in runs if run.op in ops]) >> np.uint64(32)
    kept = ~np.isin(before["key"], mine.astype(np.uint32))
    return {name: np.concatenate([column[kept], new[name]]) for name, column in before.items()}


def _joined_card(
    card: Mapping[str, Any], new: Trained, runs: Sequence[OperatorRuns], ops: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return the rows of the card as a whole training orders them: kernels', then by split, operator and dtype."""
    order = {f"{run.op}/{run.dtype}": k for k, run in enumerate(runs)}
    before = card["validation"]
    kernels = [row for row in before if row["family"] == FAMILY]
    kept = [row for row in before if row["family"].split("/")[0] not in (FAMILY, *ops)]
    every = sorted(
        [*kept, *new.card["validation"]],
        key=lambda row: (SPLITS.index(row["split"]), order.get(row["family"], -1)),
    )
    return [*kernels, *every]
