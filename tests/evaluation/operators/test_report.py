"""Report of operators and of calibration: the results page matches the records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import BadInput
from evaluation import render
from evaluation.operators.calibration import ROW, summary
from evaluation.operators.goals import GOALS, published
from evaluation.operators.report import FIGURES, MARKER, heading, page_lines, report, short_table
from evaluation.render import RESULTS, marked, record_of, with_summary, with_table

RECORD = record_of("operators")


def test_the_results_page_shows_the_recorded_operators() -> None:
    run = json.loads(RECORD.read_text("utf-8"))
    assert all(cell["version"] and cell["commit"] for cell in run["cells"])
    text = RESULTS.read_text("utf-8")
    assert with_table(text, MARKER, page_lines(run)) == text, "run gpucast evaluate operators --results"
    assert len(page_lines(run)) > 20


def test_the_results_page_summarises_the_recorded_calibration() -> None:
    cells = json.loads(record_of("calibration").read_text("utf-8"))["cells"]
    text = RESULTS.read_text("utf-8")
    assert with_summary(text, ROW, summary(cells)) == text, "run gpucast evaluate calibration --results"


def calibrated(family: str, none: float, plan: float, random: float) -> dict[str, Any]:
    figures = {how: {"mape": mape} for how, mape in (("none", none), ("plan", plan), ("random", random))}
    return {"family": family, "dtype": "fp32", "gpu": "all", **figures}


def test_summary_of_a_calibration_counts_goals_and_names_misses() -> None:
    cells = [calibrated("a", 10, 2, 3), calibrated("b", 10, 6, 7), calibrated("c", 10, 7, 8), calibrated("d", 10, 6, 5)]
    goals = "0.20 to 0.60 in 2 of 4 families (at most 0.67); missed: c fp32 0.70, d fp32 0.60"
    assert summary(cells) == f"{goals}; less than with random rows in 3"
    assert summary(cells[2:3]).startswith("goal reached in 0 of 1")


def result(predictor: str, mape: float) -> dict[str, Any]:
    where = GOALS[0].where._asdict()
    figures = {"mape": mape, "coverage_80": 79.6, "goal": 9.0 if predictor == "auto" else None}
    return {**where, "predictor": predictor, "whole": True, "op": "linear", **figures}


def test_errors_that_reach_their_goal_are_bold() -> None:
    assert short_table([result("auto", 9.04), result("tilewave", 8.0)], GOALS)[-3:] == [
        "| MAPE, %: GPUs seen, NeuSight's test dimensions (convolutions: a fifth of the rows held out) | goal | `auto` "
        "| `tilewave` | held, % |",
        "|---|---|---|---|---|",
        "| linear FP32, without P4 † | 9 | **9.0** | 8.0 | 80 |",
    ]
    renewed = [result("tilewave", 8.0), result("auto", 9.04)]  # what is evaluated again comes last
    assert short_table(renewed, GOALS) == short_table(renewed[::-1], GOALS)
    assert short_table([result("auto", 9.06)], GOALS)[-1].endswith("| 9 | 9.1 | 80 |")


def test_results_that_are_not_evaluated_again_stay_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "RECORDS", tmp_path)
    (tmp_path / "results.md").write_text("\n".join(marked(MARKER)))
    limits = {"test_rows": 4000, "rows": None, "intervals": True}
    for version, cells in (("1", [result("auto", 9.0), result("tilewave", 8.0)]), ("2", [result("auto", 7.0)])):
        made_by = {"version": version, "commit": "c", "limits": limits, **dict.fromkeys((*FIGURES, "published"), 1.0)}
        replace(report([{**made_by, **cell} for cell in cells]), page=tmp_path / "results.md").publish()
    recorded = json.loads((tmp_path / "operators.json").read_text())["cells"]
    assert {(cell["predictor"], cell["mape"], cell["version"]) for cell in recorded} == {
        ("tilewave", 8.0, "1"),
        ("auto", 7.0, "2"),
    }
    page = (tmp_path / "results.md").read_text()
    assert "version 1, commit" in page and "version 2, commit" in page


def test_in_sample_errors_are_marked() -> None:
    assert heading("auto-untrained") == "`auto-untrained` (in-sample)"
    assert heading("auto") == "`auto`"
    text = "\n".join(page_lines(json.loads(RECORD.read_text("utf-8"))))
    assert "| linear FP32, without P4 † |" in text and "| element-wise FP32 | 1 |" in text
    assert "†: partly in-sample." in text


def test_a_table_replaces_the_text_between_its_markers() -> None:
    begin, end = marked(MARKER)
    assert with_table(f"a\n{begin}\nold\n{end}\nb", MARKER, ["new"]) == f"a\n{begin}\nnew\n{end}\nb"
    with pytest.raises(BadInput, match="no place for the table"):
        with_table("a", MARKER, ["new"])


def test_no_two_goals_are_about_the_same_result() -> None:
    assert len({goal.where for goal in GOALS}) == len(GOALS)
    assert published()["tilewave", "unseen", "linear"] == 13.9
