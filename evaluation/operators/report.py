"""Report of the errors of operators: a line per family, and the short table of docs/reference/results.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.coefficients import set_on
from evaluation.operators.evaluate import contenders
from evaluation.operators.folds import MOST_ELSEWHERE
from evaluation.operators.goals import GOALS, IN_SAMPLE, PARTS, Where
from evaluation.operators.scores import ALL
from evaluation.render import Block, Report, Table, bold, markdown, record_of, shown
from evaluation.study import Goal, Result, grouped

STUDY, MARKER = "operators", "operators: operators --results"
FIGURES = ("n", "mape", "median_ape", "p95_ape", "median_ratio", "coverage_80", "width_80", "answered")
TITLES = {place: part["title"] for place, part in PARTS.items()}
PUBLISHED = "published: NeuSight's errors of a family's total time in whole models, another protocol than rows here"
# Accepted coverage of 80 % intervals, percent, per family on left-out GPUs, and of held-out configurations.
COVERED, COVERED_SEEN = (72.0, 88.0), (74.0, 86.0)
MARK = "†"
MARKED = (
    f"{MARK}: partly in-sample. Constants of `auto` for this family alone were set while looking at rows of this data"
    " (`set_on` and `families` in seed_data/coefficients). The column `auto-untrained` is in-sample throughout."
)


def report(results: Sequence[Result]) -> Report:
    """Return a line per family, dtype, GPU and predictor, by protocol; only the JSON has single operators.

    The record has the results of the short table; those of other protocols, families and predictors stay as recorded.
    """
    of_part = grouped((result for result in results if result["whole"]), _part)
    columns = {"family": "", "dtype": "", "gpu": "", "predictor": "", **dict.fromkeys((*FIGURES, *_BESIDE), "g")}
    tables = [
        Table(title, columns, [[result[name] for name in columns] for result in sorted(of_part[part], key=_order)])
        for part, title in TITLES.items()
        if part in of_part
    ]
    blocks: list[Block] = [f"gpucast {cell['version']}. {_limits(cell['limits'])}." for cell in results[:1]]
    blocks += [*tables, "", PUBLISHED, "", *short_table(results, GOALS)]
    run = {"study": STUDY, "cells": [*recorded(results), *short(results)]}
    return Report(
        blocks=blocks,
        body={"study": STUDY, "cells": list(results)},
        record=run,
        pages={MARKER: page_lines(run)},
    )


_BESIDE = ("goal", "published")


def recorded(results: Sequence[Result]) -> list[Result]:
    """Return the recorded results that the short table shows and that are not among `results`."""
    path, new = record_of(STUDY), {_key(result) for result in results}
    before: list[Result] = json.loads(path.read_text("utf-8"))["cells"] if path.exists() else []
    return [result for result in short(before) if _key(result) not in new]


def _part(result: Result) -> tuple[str, str]:
    return result["protocol"], result["part"]


def _order(result: Result) -> tuple[str, ...]:
    """Return the sort key of a result; pooled results come first."""
    gpu = result["gpu"]
    return result["family"], result["dtype"], "" if gpu.startswith(ALL) else gpu, gpu


def short(results: Sequence[Result]) -> list[Result]:
    """Return the results that the short table shows: they pool all operators of their family."""
    places = {goal.where for goal in GOALS}
    return [result for result in results if result["whole"] and _where(result) in places]


def _where(result: Result) -> Where:
    return Where(*(result[name] for name in Where._fields))


def _key(result: Result) -> tuple[Where, str]:
    return _where(result), result["predictor"]


def short_table(results: Sequence[Result], goals: Sequence[Goal[Where]]) -> list[str]:
    """Return the short table in Markdown: MAPE of every predictor, and the goal and the coverage of `auto`."""
    places: dict[Where, dict[str, Result]] = {}
    for result in short(results):
        places.setdefault(_where(result), {})[result["predictor"]] = result
    known = {result["predictor"] for result in results}
    names = [contender.name for contender in contenders() if contender.name in known]
    lines = []
    for part, title in TITLES.items():
        rows = [
            (
                _label(goal),
                goal.most,
                *(_mape(places[goal.where].get(name)) for name in names),
                _coverage(places[goal.where].get("auto")),
            )
            for goal in goals
            if (goal.where.protocol, goal.where.part) == part and goal.where in places
        ]
        if rows:
            heads = [f"MAPE, %: {title}", "goal", *map(heading, names), "held, %"]
            lines += ["", *markdown(Table("", dict.fromkeys(heads, "g"), rows))]
    return lines[1:]


def heading(predictor: str) -> str:
    """Return the column title of a predictor, marked if its constants were set on the rows that it is judged on."""
    return f"`{predictor}` (in-sample)" if predictor in IN_SAMPLE else f"`{predictor}`"


def _label(goal: Goal[Where]) -> str:
    """Return the label of a goal, marked if the result is partly in-sample."""
    where = goal.where
    data = PARTS[where.protocol, where.part]["data"]
    return f"{goal.label} {MARK}" if any(set_on(name, where.family) for name in data) else goal.label


def _mape(result: Result | None) -> str | None:
    """Return the MAPE; bold if it reaches the predictor's goal."""
    if result is None:
        return None
    text = shown(result["mape"], ".1f")
    return bold(text, result["goal"] is not None and float(text) <= result["goal"])


def _coverage(result: Result | None) -> str | None:
    """Return the coverage in percent; bold if it is within the goal of its protocol."""
    if result is None:
        return None
    goals = {"leave_one_gpu_out": COVERED, "configurations": COVERED_SEEN}
    low, high = goals.get(result["protocol"], (100.0, 0.0))
    return bold(f"{result['coverage_80']:.0f}", low <= result["coverage_80"] <= high)


def page_lines(run: Mapping[str, Any]) -> list[str]:
    """Return the lines between the markers of the results page, from a record."""
    made_by = grouped(run["cells"], _made_by)
    sources = [
        f"`{'`, `'.join(dict.fromkeys(result['protocol'] for result in alike))}`: {text}"
        for text, alike in made_by.items()
    ]
    return [*short_table(run["cells"], GOALS), "", MARKED, *(line for text in sources for line in ("", text))]


def _made_by(result: Result) -> str:
    return f"{_limits(result['limits'])}; version {result['version']}, commit {result['commit']}."


def _limits(limits: Mapping[str, Any]) -> str:
    """Return a sentence on the limits of rows."""
    trained = f" and {limits['rows']:,} training rows" if limits["rows"] else ""
    documented = "" if limits["intervals"] else "; documented intervals"
    elsewhere = "" if limits["rows"] else f"; {MOST_ELSEWHERE:,} training rows where a GPU is left out, else all"
    return f"At most {limits['test_rows']:,} test rows{trained} per operator, dtype and GPU{elsewhere}{documented}"
