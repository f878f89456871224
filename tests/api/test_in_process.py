"""`import gpucast` answers what the service answers, without one and without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import gpucast
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
