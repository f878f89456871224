"""GET /accuracy: the errors on whole workloads, as recorded."""

from __future__ import annotations

import json

from fastapi.testclient import TestClient

from app.config import CHECKOUT
from evaluation.render import marked, record_of
from evaluation.scorecard import MARKER, PAGE
from evaluation.sources import STUDIES

RECORD = record_of("scorecard")


def test_the_page_shows_the_recorded_cells_worst_first(client: TestClient) -> None:
    text = client.get("/accuracy").text
    cells = json.loads(RECORD.read_text("utf-8"))["cells"]
    assert "Whole workloads measured by others" in text
    assert text.count("<td>training mxfp8</td>") == sum(cell["mode"] == "training mxfp8" for cell in cells)
    factors = [cell["factor"] for cell in cells]
    assert factors == sorted(factors, reverse=True)


def test_the_documentation_shows_every_source_with_its_assumptions() -> None:
    page = PAGE.read_text("utf-8")
    assert marked(MARKER)[0] in page
    for study in STUDIES:
        assert f"**{study.name}**: {study.title}" in page
        assert all(line in page for line in study.assumptions)
    assert json.loads(RECORD.read_text("utf-8"))["commit"] in page
    assert RECORD.parent == CHECKOUT / "evaluation" / "records"
