"""GET /accuracy: the errors on whole workloads, as recorded."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from app.bands.error_model import sources
from app.config import CHECKOUT
from app.dashboard.routes.accuracy import questions
from evaluation.render import marked, record_of
from evaluation.scorecard import MARKER, PAGE, typical
from evaluation.sources import STUDIES

RECORD = record_of("scorecard")


def test_the_page_shows_the_recorded_cells_worst_first(client: TestClient) -> None:
    text = client.get("/accuracy").text
    cells = json.loads(RECORD.read_text("utf-8"))["cells"]
    assert "The worst of whole workloads measured by others" in text
    assert text.count("<td>training mxfp8</td>") == sum(cell["mode"] == "training mxfp8" for cell in cells)
    factors = [cell["factor"] for cell in cells]
    assert factors == sorted(factors, reverse=True)


def test_the_page_begins_with_what_the_predictors_never_saw(client: TestClient) -> None:
    text = client.get("/accuracy").text
    rows = sources()
    title = f"On {sum(row['rows'] for row in rows):,} measured figures that the predictors never saw"
    assert text.index(title) < text.index("By question") < text.index('id="scorecard"') < text.index('id="card"')
    first = questions(None)[0]
    served = [row for row in rows if row["figure"] in ("tpot", "step")]
    assert first.rows == sum(row["rows"] for row in served)
    held = sum(row["held, %"] * row["rows"] for row in served) / first.rows
    assert first.unknown_held == pytest.approx(held)
    below = sum(row["rows"] for row in served if row["error at first, %"] < first.unknown)
    assert (
        below
        < first.rows / 2
        <= below + sum(row["rows"] for row in served if row["error at first, %"] == first.unknown)
    )


def test_runs_of_the_scorecard_are_kept() -> None:
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["history"] and record["history"][-1]["commit"] == record["commit"]
    assert {name: record["history"][-1][name] for name in ("asked", "median", "held")} == typical(record["cells"])


def test_the_documentation_shows_every_source_with_its_assumptions() -> None:
    page = PAGE.read_text("utf-8")
    assert marked(MARKER)[0] in page
    for study in STUDIES:
        assert f"**{study.name}**: {study.title}" in page
        assert all(line in page for line in study.assumptions)
    assert json.loads(RECORD.read_text("utf-8"))["commit"] in page
    assert RECORD.parent == CHECKOUT / "evaluation" / "records"
