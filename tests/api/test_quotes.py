"""Saved predictions: recomputed from their versions, with changed and deleted inputs reported."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.services.quotes.reproduce import differences
from app.store.session import Database
from app.wire.compare_form import COMPARE_EXAMPLE
from app.wire.graph_form import GRAPH_EXAMPLE
from app.wire.job_plan_form import PLAN_EXAMPLE
from app.wire.network_form import MODEL_EXAMPLE
from app.wire.operator_forms import OPERATOR_TABLE_EXAMPLE, OPERATORS_EXAMPLE
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.api.test_snapshot import GOOD, serve
from tests.learning import workload

INLINE = {
    "name": "Tomorrow 1",
    "compute_capability": "10.0",
    "sm_count": 160,
    "boost_clock_hz": 2.0e9,
    "memory_bytes": 309237645312,
    "memory_bandwidth_bytes_per_s": 1.0e13,
}


def save(client: TestClient, request: dict[str, Any], path: str = "/predict") -> dict[str, Any]:
    answer = client.post(path, json={**request, "save": True})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def again(client: TestClient, saved: dict[str, Any]) -> dict[str, Any]:
    answer = client.get(f"/predictions/{saved['id']}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/predict", PREDICT_EXAMPLE),
        ("/predict", {**PREDICT_EXAMPLE, "gpu": None, "gpus": "all"}),
        ("/predict", {**PREDICT_EXAMPLE, "gpu": INLINE}),
        ("/predict", {**OPERATORS_EXAMPLE, "detail": True}),
        ("/predict", OPERATOR_TABLE_EXAMPLE),
        ("/predict", MODEL_EXAMPLE),
        ("/predict", {"gpu": "nvidia-l4", "workload": {"kind": "graph", "graph": GRAPH_EXAMPLE}}),
        ("/compare", COMPARE_EXAMPLE),
        ("/plan", PLAN_EXAMPLE),
        ("/compare", {**COMPARE_EXAMPLE, "gpus": "all", "prices": {}, "rank_by": "energy"}),
    ],
)
def test_saved_predictions_are_recomputed(client: TestClient, path: str, request_: dict[str, Any]) -> None:
    asked = {name: value for name, value in request_.items() if value is not None}
    saved = save(client, asked, path)
    plain = client.post(path, json=asked).json()
    assert {name: value for name, value in saved.items() if name != "id"} == plain
    found = again(client, saved)
    assert (found["unchanged"], found["differences"], found["gone"], found["since"]) == (True, [], [], [])
    assert found["answer"] == plain
    assert found["kind"] == path[1:]
    assert found["workload"] == found["request"]["workload"]["kind"]
    page = client.get(f"/predictions/{saved['id']}.pdf")
    assert page.headers["content-type"] == "application/pdf"
    assert page.content.startswith(b"%PDF") and page.content.count(b"/Type /Page\n") <= 2


def test_without_save_nothing_is_stored(client: TestClient, database: Database) -> None:
    before = client.get("/predictions").json()
    assert "id" not in client.post("/predict", json=PREDICT_EXAMPLE).json()
    assert client.get("/predictions").json() == before


def test_pages_list_the_newest_first(client: TestClient) -> None:
    saved = [save(client, PREDICT_EXAMPLE)["id"] for _ in range(3)]
    first = client.get("/predictions", params={"limit": 2}).json()
    assert [item["id"] for item in first["items"]] == saved[:0:-1]
    second = client.get("/predictions", params={"limit": 1, "after": first["next"]}).json()
    assert [item["id"] for item in second["items"]] == saved[:1]


@pytest.mark.parametrize(("name", "status"), [("999999", 404), ("0", 422), ("x", 422), (str(2**63), 422)])
def test_invalid_ids_are_rejected(client: TestClient, name: str, status: int) -> None:
    assert client.get(f"/predictions/{name}").status_code == status
    assert client.get(f"/predictions/{name}.pdf").status_code == status


def test_too_much_to_save_is_413(client: TestClient) -> None:
    table = {**OPERATOR_TABLE_EXAMPLE["workload"], "m": [1.5e3] * 60_000, "k": 1280}
    answer = client.post("/predict", json={"gpus": ["nvidia-l4"], "workload": table, "save": True})
    assert (answer.status_code, "saved" in answer.json()["detail"]) == (413, True), answer.text[:300]


def test_saved_gpu_figures_survive_changes_and_deletion(client: TestClient) -> None:
    mine = {**INLINE, "id": "mine", "name": "Mine"}
    assert client.post("/gpus", json=mine).status_code == 201
    saved = save(client, {**PREDICT_EXAMPLE, "gpu": None, "gpus": ["mine", "GeForce GTX 1660"]})
    assert client.patch("/gpus/mine", json={"memory_bandwidth_bytes_per_s": 1.0e12}).status_code == 200
    found = again(client, saved)
    assert (found["unchanged"], found["since"]) == (True, ["the catalogue figures of mine have changed"])
    assert client.delete("/gpus/mine").status_code == 204
    found = again(client, saved)
    assert (found["unchanged"], found["since"]) == (True, ["mine is no longer in the catalogue"])


def test_retired_versions_recompute_until_their_artefact_is_deleted(
    client: TestClient, database: Database, settings: Settings
) -> None:
    shipped = save(client, PREDICT_EXAMPLE)
    serve(database, settings, GOOD)
    client.get("/predictors").raise_for_status()  # looks
    saved = save(client, PREDICT_EXAMPLE)
    name = saved["predictions"][0]["predictor"]["version"]
    newer = serve(database, settings, GOOD | {"newer": 1})
    told = [f"auto answered with version {name} and now does with {newer}"]
    found = again(client, saved)
    assert (found["unchanged"], found["since"]) == (True, told), found["differences"]
    assert again(client, shipped)["unchanged"] is True
    for path in settings.models_dir.glob("*.joblib"):
        path.unlink()
    found = again(client, saved)
    assert (found["unchanged"], found["differences"], found["since"]) == (None, [], told)
    assert found["gone"] == [f"version {name} of auto is gone from the model store"]
    assert found["answer"]["predictions"] == saved["predictions"]
    assert client.get(f"/predictions/{saved['id']}.pdf").content.startswith(b"%PDF")


def test_saved_predictions_keep_their_prices(client: TestClient) -> None:
    saved = save(client, {**COMPARE_EXAMPLE, "prices": {}}, "/compare")
    price = {"gpu": "nvidia-l4", "usd_per_hour": 0.7, "source": "a list", "date": "2025-01-01"}
    assert client.post("/prices", json=[price]).status_code == 200
    assert again(client, saved)["unchanged"] is True
    rows = save(client, {**COMPARE_EXAMPLE, "prices": {}}, "/compare")["ranking"]
    assert {row["gpu"]: row["price_usd_per_hour"] for row in rows}["nvidia-l4"] == 0.7


def test_added_measurements_are_listed_as_changes(client: TestClient) -> None:
    asked = {"gpu": "rtx-4070", "workload": workload("matmul", 1024)}
    saved = save(client, asked)
    row = {"gpu": "rtx-4070", "software": "cuda", "source": "test", "workload": asked["workload"], "latency_ms": 2.0}
    assert client.post("/measurements", json=[row]).status_code == 200
    found = again(client, saved)
    assert (found["unchanged"], found["since"]) == (False, ["1 measurements have been added"])
    latency = next(one for one in found["differences"] if one["path"] == "predictions.0.latency_ms")
    assert latency["saved"] == found["answer"]["predictions"][0]["latency_ms"] != latency["now"] == pytest.approx(2.0)
    assert client.get(f"/predictions/{saved['id']}.pdf").status_code == 200
    measured = save(client, asked)
    assert client.delete("/measurements", params={"source": "test"}).json()["rows"] == 1
    assert again(client, measured)["since"] == ["1 fewer measurements are stored"]
    assert again(client, saved)["unchanged"] is True


def test_differences_name_their_field() -> None:
    then = {"a": [1.0, {"b": "x"}], "c": True, "id": 1, "d": [1]}
    now = {"a": [1.0 + 1e-12, {"b": "y"}], "c": 1, "d": [1, 2], "e": None}
    assert [tuple(one) for one in differences(then, now)] == [("a.1.b", "x", "y"), ("d", [1], [1, 2])]
