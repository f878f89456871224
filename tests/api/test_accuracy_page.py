"""GET /accuracy: the errors on whole workloads, as recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.bands.error_model import sources
from app.config import CHECKOUT, Settings
from app.dashboard.routes.accuracy import questions
from evaluation.commands import command
from evaluation.render import marked, record_of
from evaluation.scorecard import FOLDER, MARKER, PAGE, typical
from evaluation.sources import STUDIES
from tests.evaluation.test_scorecard import ROW

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


def test_runs_of_a_nightly_job_are_kept_and_drawn(client: TestClient, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    pq.write_table(pa.Table.from_pylist([ROW, ROW | {"batch": 24}]), tmp_path / FOLDER / "torchvision_convnets.parquet")

    def run() -> list[dict[str, Any]]:
        options = ["scorecard", "--keep", "--data", str(tmp_path)]
        done = CliRunner().invoke(command, options, env=settings.environment())
        assert done.exit_code == 0, done.output
        return list(json.loads(settings.scorecard_file.read_text("utf-8"))["history"])

    try:
        (first,) = run()
        assert first["asked"] == 2
        assert len(run()) == 1  # of one day
        record = json.loads(settings.scorecard_file.read_text("utf-8"))
        record["history"][0]["date"] = "2026-01-01"
        settings.scorecard_file.write_text(json.dumps(record), "utf-8")
        assert [one["date"] for one in run()] == ["2026-01-01", first["date"]]
        text = client.get("/accuracy").text
        table = text.split('<table id="history">', 1)[1].split("</table>", 1)[0]
        assert table.index("2026-01-01") < table.index(first["date"])
        assert 'data-table="history"' in text and "Predicted by auto as it answers here" in text
        assert text.split('<table id="scorecard"', 1)[1].split("</table>", 1)[0].count("torchvision_convnets") == 1
    finally:
        settings.scorecard_file.unlink(missing_ok=True)


def test_the_documentation_shows_every_source_with_its_assumptions() -> None:
    page = PAGE.read_text("utf-8")
    assert marked(MARKER)[0] in page
    for study in STUDIES:
        assert f"**{study.name}**: {study.title}" in page
        assert all(line in page for line in study.assumptions)
    assert json.loads(RECORD.read_text("utf-8"))["commit"] in page
    assert RECORD.parent == CHECKOUT / "evaluation" / "records"
