"""Scorecard: whole workloads that others measured, predicted by the shipped `auto` as POST /predict does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from app import __version__
from app.coefficients import set_on
from app.config import CHECKOUT
from app.engine.snapshot import Snapshot
from app.errors import NotFound
from app.stacks.registry import facts_set_on
from evaluation.render import NOTHING, Report, Table, bold, commit, dumped, markdown, record_of
from evaluation.study import Answers, Case, Errors, Progress, Result, Row, Study, grouped

FOLDER = "whole_models"
PAGE = CHECKOUT / "docs" / "reference" / "scorecard.md"
MARKER = "scorecard: scorecard --docs"
# Share of measured times that 80 % intervals hold, percent; and largest median factor of a cell of LEAST_ROWS or more.
COVERED = (70.0, 90.0)
FACTOR, LEAST_ROWS = 2.0, 10
_WORST = 40
# Runs that an installation keeps: those of a year of nights.
_MOST_RUNS = 366
_CELL = ("source", "gpu", "model", "mode")
_COLUMNS = {"cases": "d", "asked": "d", "median": ".1f", "bias": "+.1f", "held": ".0f", "factor": ".2f"}


def file_of(folder: Path, study: Study) -> Path:
    """Return the file of a study's rows."""
    return folder / FOLDER / f"{study.name}.parquet"


def read_rows(folder: Path, study: Study) -> list[Row]:
    """Return the rows of a study's file. Raises NotFound without the file."""
    path = file_of(folder, study)
    if not path.is_file():
        raise NotFound(f"No {FOLDER}/{study.name}.parquet in {folder}.")
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def evenly(cases: Sequence[Case], most: int) -> list[Case]:
    """Return every case that cannot be asked, and of the others at most `most`, evenly spaced."""
    with_parts = [k for k, case in enumerate(cases) if case.parts]
    if len(with_parts) > most:
        positions = np.linspace(0, len(with_parts) - 1, most).round().astype(int)
        with_parts = [with_parts[k] for k in dict.fromkeys(positions.tolist())]
    kept = set(with_parts)
    return [case for k, case in enumerate(cases) if k in kept or not case.parts]


def evaluate(folder: Path, study: Study, snapshot: Snapshot, most: int, progress: Progress) -> list[Result]:
    """Return the results of a study, of at most `most` of its cases."""
    every = list(study.cases(read_rows(folder, study)))
    cases, answers = evenly(every, most), Answers(snapshot)
    requested, with_parts = (sum(bool(case.parts) for case in some) for some in (cases, every))
    progress(f"{study.name}: {len(every)} cases, {with_parts} can be asked, {requested} are")
    return [{"source": study.name, **answers.result(case)} for case in cases]


def report(results: Sequence[Result], studies: Sequence[Study], kept: Path | None = None) -> Report:
    """Return the tables, worst cells first; the record has the errors of cells, not the times that others measured.

    kept  file of the runs before this one; None: those of the repository
    """
    head = {"study": "scorecard", "version": __version__, "commit": commit()}
    cells = [
        dict(zip(_CELL, cell, strict=True))
        | {"cases": errors.cases, "asked": errors.answered}
        | {name: round(getattr(errors, name), 2) for name in ("median", "bias", "held", "factor")}
        for cell, errors in worst_first(results)
    ]
    run = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **head, **typical(cells)}
    return Report(
        blocks=list(_blocks(results, studies)),
        body=head | {"cases": [_rounded(result) for result in results]},
        record=head | {"cells": cells, "history": [*history(kept or record_of("scorecard")), run]},
        pages={MARKER: table(results, studies)},
        page=PAGE,
    )


def typical(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the cases of cells, the median of their median errors and the share inside, by cases, percent."""
    ordered = sorted(cells, key=lambda cell: cell["median"])
    counts = np.array([cell["asked"] for cell in ordered])
    middle = ordered[int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))]
    held = float(np.average([cell["held"] for cell in ordered], weights=counts))
    return {"asked": int(counts.sum()), "median": middle["median"], "held": round(held, 1)}


def keep(record: Mapping[str, Any], file: Path) -> None:
    """Write an installation's runs, of a day the last, for pages that may read them meanwhile."""
    of_days = {run["date"]: run for run in record["history"]}
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(".new")
    written.write_text(dumped({**record, "history": [*of_days.values()][-_MOST_RUNS:]}), "utf-8")
    written.replace(file)


def history(record: Path) -> list[dict[str, Any]]:
    """Return the runs that are recorded, the latest last."""
    runs: list[dict[str, Any]] = json.loads(record.read_text("utf-8")).get("history", []) if record.is_file() else []
    return runs


def _rounded(result: Result) -> Result:
    return {**result, "error": round(result["error"], 2)} if "error" in result else result


def _cell(result: Result) -> tuple[str, ...]:
    return tuple(result[name] for name in _CELL)


def worst_first(results: Sequence[Result]) -> list[tuple[tuple[str, ...], Errors]]:
    """Return the source, GPU, model and mode of all cells with an answer, the largest median factor first."""
    cells = [(cell, Errors.of(alike)) for cell, alike in grouped(results, _cell).items()]
    return sorted((pair for pair in cells if pair[1].answered), key=lambda pair: -pair[1].factor)


def goal_cells(results: Sequence[Result], studies: Sequence[Study]) -> Iterator[tuple[str, Errors, float]]:
    """Yield the name, the errors and the goal's median of each study and goal."""
    for study in studies:
        for goal in study.goals:
            alike = [item for item in results if item["source"] == study.name and item["mode"].startswith(goal.where)]
            if alike and goal.most is not None:
                yield f"{study.name} {goal.label}".strip(), Errors.of(alike), goal.most


def in_sample(name: str) -> int:
    """Return how many constants of the code, and of its stacks, were chosen with the source of a goal in view."""
    source = name.partition(" ")[0]
    return len(set_on(source)) + len(facts_set_on(source))


def _blocks(results: Sequence[Result], studies: Sequence[Study]) -> Iterator[str | Table]:
    """Yield what the command prints."""
    yield f"gpucast {__version__}. Whole workloads measured by others; nothing of them was learned. Errors in percent."
    yield _table("cell", [(" | ".join(cell), errors) for cell, errors in worst_first(results)])
    parts: dict[str, Callable[[Result], str]] = {
        "source and GPU": lambda result: f"{result['source']} | {result['gpu']}",
        "source and mode": lambda result: f"{result['source']} | {result['mode']}",
    }
    for title, by in parts.items():
        yield _table(title, [(name, Errors.of(alike)) for name, alike in grouped(results, by).items()])
    cells = goal_cells(results, studies)
    goals = [(name, *_figures(errors), most, in_sample(name)) for name, errors, most in cells]
    yield Table("", {"sources": "", **_COLUMNS, "goal": "g", "set on it": "d"}, goals)
    yield Table("", {"cases": "d", "cannot be asked": ""}, [(count, reason) for reason, count in _reasons(results)])


def _table(title: str, cells: Sequence[tuple[str, Errors]]) -> Table:
    return Table("", {title: "", **_COLUMNS}, [(name, *_figures(errors)) for name, errors in cells])


def _figures(errors: Errors) -> tuple[float, ...]:
    return errors.cases, errors.answered, errors.median, errors.bias, errors.held, errors.factor


def _reasons(results: Sequence[Result]) -> list[tuple[str, int]]:
    return Counter(f"{result['source']}: {result['reason']}" for result in results if "reason" in result).most_common()


def table(results: Sequence[Result], studies: Sequence[Study]) -> list[str]:
    """Return the lines between the markers of the page."""
    goals = []
    for name, errors, most in goal_cells(results, studies):
        median, held = (NOTHING if np.isnan(value) else f"{value:.1f}" for value in (errors.median, errors.held))
        median = f"{bold(median, errors.median <= most)} ({most:g})"
        held = bold(held, COVERED[0] <= errors.held <= COVERED[1])
        goals.append((name, errors.cases, errors.answered, median, f"{errors.bias:+.1f}", held, in_sample(name)))
    worst = []
    for cell, errors in worst_first(results)[:_WORST]:
        mark = " †" if errors.answered >= LEAST_ROWS and errors.factor > FACTOR else ""
        worst.append((*cell, errors.answered, f"{errors.median:.1f}{mark}", errors.bias, errors.held))
    columns = dict.fromkeys(("median error, % (goal)", "bias, %", "held, %"), "") | {"constants set on it": "d"}
    lines = [
        *markdown(Table("", {"source": "", "cases": "d", "asked": "d", **columns}, goals)),
        *("", f"The {_WORST} worst cells:", ""),
        *markdown(Table("", dict(zip(_WORST_COLUMNS, ("", "", "", "", "d", "", "+.1f", ".0f"), strict=True)), worst)),
        *("", f"†: {LEAST_ROWS} cases or more beyond a factor of {FACTOR:g}.", ""),
        *markdown(Table("", {"cannot be asked": "", "cases": "d"}, _reasons(results))),
    ]
    for study in studies:
        lines += ["", f"**{study.name}**: {study.title}. Assumed:", "", *(f"- {line}" for line in study.assumptions)]
    return [*lines, "", f"Version {__version__}, commit {commit()}."]


_WORST_COLUMNS = ("source", "GPU", "model", "mode", "cases", "median error, %", "bias, %", "held, %")
