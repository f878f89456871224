"""The figures that README and docs show are those of the last recorded run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import BadInput
from app.services.evaluation.operator_goals import GOALS, published
from app.services.evaluation.operator_report import BEGIN, END, RECORD, markdown, tables, with_table


def test_pages_show_what_was_recorded() -> None:
    run = json.loads(RECORD.read_text("utf-8"))
    assert run["version"] and run["commit"]
    for page, table in tables(run).items():
        text = page.read_text("utf-8")
        assert with_table(text, table) == text, f"{page.name}: run gpucast evaluate operators --readme"
        assert len(table) > 20


def result(predictor: str, mape: float) -> dict[str, Any]:
    where = GOALS[0].where._asdict()
    figures = {"mape": mape, "coverage_80": 79.6, "goal": 9.0 if predictor == "auto" else None}
    return {**where, "predictor": predictor, "whole": True, "op": "linear", **figures}


def test_a_figure_that_reaches_its_goal_is_bold() -> None:
    assert markdown([result("auto", 9.04), result("tilewave", 8.0)], GOALS)[-3:] == [
        "| MAPE, %: NeuSight's GPUs, its test dimensions (convolutions: a fifth of the rows held out) | goal | `auto` "
        "| `tilewave` | held, % |",
        "|---|---|---|---|---|",
        "| linear FP32, without P4 | 9 | **9.0** | 8.0 | 80 |",
    ]
    assert markdown([result("auto", 9.06)], GOALS)[-1].endswith("| 9 | 9.1 | 80 |")


def test_a_table_goes_between_its_markers() -> None:
    assert with_table(f"a\n{BEGIN}\nold\n{END}\nb", ["new"]) == f"a\n{BEGIN}\nnew\n{END}\nb"
    with pytest.raises(BadInput, match="no place for the table"):
        with_table("a", ["new"])


def test_every_goal_is_about_another_cell() -> None:
    assert len({goal.where for goal in GOALS}) == len(GOALS)
    assert published()["tilewave", "unseen", "linear"] == 13.9
