"""`import gpucast` answers what the service answers, without one and without a database."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import gpucast
from app.config import CHECKOUT
from app.wire.compare_form import COMPARE_EXAMPLE
from app.wire.graph_form import GRAPH_REQUEST_EXAMPLE
from app.wire.job_plan_form import PLAN_EXAMPLE
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.operator_forms import OPERATOR_TABLE_EXAMPLE, OPERATORS_EXAMPLE
from app.wire.prediction_form import PREDICT_EXAMPLE
from app.wire.serving_form import SERVING_EXAMPLE

pytestmark = pytest.mark.slow

PREDICTED = (
    PREDICT_EXAMPLE,
    OPERATORS_EXAMPLE,
    OPERATOR_TABLE_EXAMPLE,
    MODEL_EXAMPLE,
    GRAPH_REQUEST_EXAMPLE,
    SERVING_EXAMPLE,
)
FUNCTIONS = [
    *(("/predict", gpucast.predict, example) for example in PREDICTED),
    ("/compare", gpucast.compare, COMPARE_EXAMPLE),
    ("/plan", gpucast.plan, PLAN_EXAMPLE),
]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No database can be reached, and no folder made."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("GPUCAST_DATA_DIR", str(tmp_path / "none"))


@pytest.mark.parametrize(("path", "function", "request_"), FUNCTIONS)
def test_answers_are_those_of_the_service(
    client: TestClient, tmp_path: Path, path: str, function: Any, request_: dict[str, Any]
) -> None:
    assert function(request_) == client.post(path, json=request_).raise_for_status().json()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("kind", "changes", "place"),
    [
        (gpucast.BadInput, {"coverage": 2}, ("coverage",)),
        (gpucast.NotFound, {"gpu": "no such GPU"}, ("gpu",)),
        (gpucast.BadInput, {"save": True}, ("save",)),
        (gpucast.BadInput, {"workload": {"kind": "model", "name": "gpt2", "batch": 0}}, ("workload", "batch")),
    ],
)
def test_errors_name_the_field(kind: type[gpucast.GpucastError], changes: dict[str, Any], place: Any) -> None:
    with pytest.raises(kind) as raised:
        gpucast.predict(PREDICT_EXAMPLE | changes)
    assert place in [error.loc for error in raised.value.errors]
    assert str(raised.value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(gpucast.BadInput, match="cannot be written as JSON"):
        gpucast.plan({"workload": object()})


def test_the_notebook_of_the_docs_runs_and_shows_tables_and_pictures() -> None:
    notebook = json.loads((CHECKOUT / "docs/how-to/answers-in-a-notebook.ipynb").read_text("utf-8"))
    known: dict[str, Any] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            *lines, last = ast.parse("".join(cell["source"])).body
            assert isinstance(last, ast.Expr)
            exec(compile(ast.Module(lines, []), "cell", "exec"), known)
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), known))
    ranking, served, times = shown
    for answer, head in ((ranking, "<th>GPU</th>"), (served, "<th>TTFT, ms</th>")):
        html = answer._repr_html_()
        assert head in html and "<svg" in html and html.count("<tr>") == 1 + len(answer.rows)
    assert [ms for ms, _ in times] == sorted(ms for ms, _ in times)


def test_rows_that_nothing_draws_are_shown_as_a_table() -> None:
    html = gpucast.predict(OPERATOR_TABLE_EXAMPLE)._repr_html_()
    assert "<table>" in html and "<svg" not in html


def test_to_pandas_says_what_it_needs() -> None:
    answer = gpucast.predict(PREDICT_EXAMPLE)
    if find_spec("pandas") is None:
        with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
            answer.to_pandas()
    else:
        assert list(answer.to_pandas()["latency_ms"]) == [row["latency_ms"] for row in answer.rows]
