"""Training of some operators of a shipped predictor; what it knows of the others is kept.

What is learned of an operator depends on its own rows alone, except that collectives share sizes and that residuals are
pooled by interval group. So operators of an interval group are trained together, in all dtypes, and all others are the
same as if all had been trained: their cells, intervals, held-out errors and rows of the card are taken over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from app.errors import BadInput
from app.ops import OP_CODE, OPS
from app.predictors import BY_NAME
from app.tables.operator_runs import OperatorRuns
from app.training.fit import FAMILY, Trained
from app.training.operator_start import learned_rows
from app.training.operator_validation import SPLITS
from app.training.schemas import schema_of


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
        "held_out": _held_out(before["held_out"], mine["operators"]["held_out"], runs, ops),
    }
    intervals = _intervals(shipped["intervals"], mine["intervals"], ops)
    payload = {**shipped, "state": state, "intervals": intervals, "operators": operators}
    payload["schema"] = schema_of(payload).state()
    kernels = {key.split(" ", 1)[1] for key in shipped["out_of_fold"]}
    gpus = {*card["trained_on"]["gpus"], *new.card["trained_on"]["gpus"]}
    trained_on = {"rows": len(kernels) + sum(len(run) for run in runs), "gpus": sorted(gpus)}
    return Trained(payload, {**card, "trained_on": trained_on, "validation": _card(card, new, runs, ops)})


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


def _held_out(
    before: Mapping[str, Any], new: Mapping[str, Any], runs: Sequence[OperatorRuns], ops: Sequence[str]
) -> dict[str, Any]:
    """Return the held-out errors, of rows of `ops` the new ones (app.training.candidate.remembered)."""
    mine = np.concatenate([run.key for run in runs if run.op in ops]) >> np.uint64(32)
    kept = ~np.isin(before["key"], mine.astype(np.uint32))
    return {name: np.concatenate([column[kept], new[name]]) for name, column in before.items()}


def _card(
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
