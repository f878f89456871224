"""Train some operators of a predictor that ships; the others are taken over from its artefact (app.training.partial).

They are taken over only if a whole training would learn them again from the same rows. The artefact's manifest has a
SHA-256 of every operator's rows. One from before that has a SHA-256 of all rows together, which is compared instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from app import __version__
from app.engine.shipped import Shipped
from app.errors import BadInput
from app.services.learning.training_data import set_hash
from app.tables.operator_runs import OperatorRuns
from app.training import operator_start
from app.training.candidate import TrainingData, candidate
from app.training.fit import Trained
from app.training.partial import changed_rows, joined, row_hashes, trained_together

Report = Callable[[str], None]
Parts = Mapping[str, Mapping[str, str]]


class Start(NamedTuple):
    """A predictor of which some operators are to be trained.

    name     the predictor's
    shipped  its version, which has the others
    ops      operators to train
    """

    name: str
    shipped: Shipped
    ops: tuple[str, ...]


def start_of(name: str, shipped: Shipped | None, operators: Sequence[str]) -> Start:
    """Return the start of a training of `operators`, with all that are trained together with them.

    BadInput: unknown operators; a predictor without artefact, or one whose operators depend on one another.
    """
    if name != "auto":
        raise BadInput(f"{name} learns its operators together: train it without --operator.")
    if shipped is None:
        raise BadInput(f"No artefact of {name} has the other operators: train it without --operator.")
    return Start(name, shipped, trained_together(operators))


def train_operators(start: Start, data: TrainingData, report: Report) -> Trained:
    """Return the shipped version with the operators of `start` trained anew on their rows in `data`."""
    mine = [run for run in data.operators if run.op in start.ops]
    _refuse_changes(start, data.operators)
    others = start.shipped.payload(start.ops)
    report(f"{start.name}: training {', '.join(dict.fromkeys(run.op for run in mine))}; others are kept")
    some = TrainingData(data.gpus, data.kernels, [], mine)
    new = candidate(operator_start.Start.on(start.name), some, [], target_gpu=None, report=report)
    return joined(others, start.shipped.card, new.trained, data.operators, start.ops)


def trained_parts(runs: Sequence[OperatorRuns], start: Start | None = None) -> Parts:
    """Return when, with which code and on which rows each operator was trained; `start`: only some were trained now."""
    now = {"trained": f"{datetime.now(UTC):%Y-%m-%d}", "code_version": __version__}
    parts = {op: {"rows_sha256": digest, **now} for op, digest in row_hashes(runs).items()}
    if start is None:
        return parts
    before = start.shipped.manifest
    unknown = {"trained": "unknown", "code_version": before["code_version"]}
    kept = before.get("operators", {})
    return {op: part if op in start.ops else {**part, **unknown, **kept.get(op, {})} for op, part in parts.items()}


def _refuse_changes(start: Start, runs: Sequence[OperatorRuns]) -> None:
    """Raise BadInput if an operator that would be kept was trained on other rows."""
    others = [run for run in runs if run.op not in start.ops]
    known = start.shipped.manifest.get("operators")
    if known:
        changed = changed_rows({op: part["rows_sha256"] for op, part in known.items()}, others)
    else:
        learned = start.shipped.manifest["schema"]["operators"]
        changed = [run.op for run in others if run.op not in learned]
        if set_hash([run for run in runs if run.op in learned]) != start.shipped.manifest["training_set_sha256"]:
            changed = changed or ["some operators"]
    if changed:
        raise BadInput(
            f"The rows of {', '.join(changed)} are not those that {start.name} ships trained on: train it without "
            "--operator, or these too."
        )
