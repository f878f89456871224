"""The OpenAPI document against the code: what is in it is true, and what is true is in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from app.api.predict import PredictRoute
from app.main import ROUTERS
from app.services.prediction_form import PREDICT_EXAMPLE


def document(client: TestClient) -> dict[str, Any]:
    return dict(client.get("/openapi.json").json())


def test_every_route_is_documented_and_nothing_else(client: TestClient) -> None:
    routes = {
        (route.path, method.lower())
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    told = {(path, method) for path, item in document(client)["paths"].items() for method in item}
    assert told == routes | {(PredictRoute.path, "post")}


def test_the_contract_is_there(client: TestClient) -> None:
    told = {f"{method.upper()} {path}" for path, item in document(client)["paths"].items() for method in item}
    assert told >= {
        "POST /predict",
        "GET /gpus",
        "POST /gpus",
        "GET /gpus/{name}",
        "PATCH /gpus/{name}",
        "DELETE /gpus/{name}",
        "POST /measurements",
        "GET /measurements",
        "POST /retrain",
        "GET /jobs/{job_id}",
        "GET /predictors",
        "POST /predictors/{name}/rollback",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    }


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere(client: TestClient) -> None:
    told = document(client)
    known = {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    assert set(references(told)) <= known


def test_every_operation_has_words_and_problem_answers(client: TestClient) -> None:
    for item in document(client)["paths"].values():
        for operation in item.values():
            assert operation["summary"] and operation["description"] and operation["tags"]
            problems = [answer for status, answer in operation["responses"].items() if not status.startswith("2")]
            assert problems
            assert all(list(answer["content"]) == ["application/problem+json"] for answer in problems)


def test_the_examples_are_answered(client: TestClient) -> None:
    assert client.post("/predict", json=PREDICT_EXAMPLE).status_code == 200
    told = document(client)["paths"]
    example = told["/gpus"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client.post("/gpus", json=example).status_code == 201
