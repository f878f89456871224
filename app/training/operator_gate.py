"""Gate for a candidate's operators: its held-out errors against those of the served version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.predictors import BY_NAME
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.operator_start import any_holds, learned_from
from app.training.operator_validation import CONFIGURATION_HELD_OUT, GPU_HELD_OUT, HeldOut, answers
from app.training.validate import few


def remembered(found: HeldOut) -> dict[str, Any]:
    """Return what a version stores of its held-out answers, 7 bytes each.

    key    uint32 [n], the upper half of the row's key
    split  uint8 [n]
    error  float16 [n], absolute log error
    """
    return {
        "key": (found.key >> np.uint64(32)).astype(np.uint32),
        "split": found.split.astype(np.uint8),
        "error": np.minimum(np.abs(found.log_ratio), 1e3).astype(np.float16),
    }


def operator_gate(
    found: HeldOut, served: Mapping[str, Any], runs: Sequence[OperatorRuns], gpus: GpuTable, tolerance: float
) -> str | None:
    """Return why the candidate must not replace the served version; None if it may.

    Rows held out of both are compared by their held-out errors. Rows that the served version did not learn from are
    compared by its plain answers: held-out configurations, and GPUs unknown to the served version. On either, the
    candidate may be worse by at most the relative `tolerance`.
    """
    for (mine, theirs), what in (
        (_held_out_of_both(found, served), "rows held out of both"),
        (_new_to_served(found, served, runs, gpus), "new rows"),
    ):
        if not len(mine):
            continue
        new, old = 100.0 * float(mine.mean()), 100.0 * float(theirs.mean())
        if new > old * (1.0 + tolerance) + 1e-6:
            return (
                f"kept back: mean held-out log error {new:.2f} % against {old:.2f} % of the served version"
                f" on {len(mine)} {what}{_few_rows_note(len(mine))}"
            )
    return None


def _few_rows_note(rows: int) -> str:
    return f" ({few(rows)['note']})" if few(rows) else ""


def _held_out_of_both(found: HeldOut, served: Mapping[str, Any]) -> tuple[Floats, Floats]:
    theirs = (served.get("operators") or {}).get("held_out")
    if theirs is None:
        return np.empty(0), np.empty(0)
    mine = remembered(found)
    _, here, there = np.intersect1d(_code(mine), _code(theirs), return_indices=True)
    return mine["error"][here].astype(np.float64), theirs["error"][there].astype(np.float64)


def _code(held: Mapping[str, Any]) -> NDArray[np.uint64]:
    code: NDArray[np.uint64] = (held["split"].astype(np.uint64) << np.uint64(32)) | held["key"]
    return code


def _new_to_served(
    found: HeldOut, served: Mapping[str, Any], runs: Sequence[OperatorRuns], gpus: GpuTable
) -> tuple[Floats, Floats]:
    """Return the errors of the candidate and of the served version on rows that are new to it and that both answer."""
    known, rows = learned_from(served)
    elsewhere = np.array([gpu not in known for gpu in gpus.ids], dtype=np.bool_)[found.gpu]
    asked = (found.split == CONFIGURATION_HELD_OUT) | ((found.split == GPU_HELD_OUT) & elsewhere)
    asked &= ~any_holds(rows, found.key)
    predictor: Any = BY_NAME[served["predictor"]]
    ready = predictor.from_state(served["state"])
    mine, theirs = [np.empty(0)], [np.empty(0)]
    for table in np.unique(found.cell[asked]).tolist():
        for split in (CONFIGURATION_HELD_OUT, GPU_HELD_OUT):
            here = found.take(asked & (found.cell == table) & (found.split == split))
            answer = answers(ready, runs, gpus, table, here.row, split)
            both, ours, other = np.intersect1d(here.row, answer.row, return_indices=True)
            if len(both):
                mine.append(np.abs(here.log_ratio[ours]))
                theirs.append(np.abs(answer.log_ratio[other]))
    return np.concatenate(mine), np.concatenate(theirs)
