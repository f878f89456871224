"""The OpenAPI document describes the code completely and correctly."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from jsonschema_rs import validator_for

from app.api import openapi
from app.api.predict import PredictRoute
from app.config import Settings
from app.main import ROUTERS, create_app
from app.wire.prediction_form import PREDICT_EXAMPLE


def document(client: TestClient) -> dict[str, Any]:
    return dict(client.get("/openapi.json").json())


def test_the_document_is_built_once_and_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    built, build, main = list[int](), openapi._document, threading.get_ident()

    def slow(app: FastAPI) -> dict[str, Any]:
        built.append(threading.get_ident())
        time.sleep(0.1)
        return build(app)

    monkeypatch.setattr(openapi, "_document", slow)

    async def statuses() -> set[int]:
        transport = httpx.ASGITransport(create_app(Settings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(8)))
        return {answer.status_code for answer in answers}

    assert asyncio.run(statuses()) == {200}
    assert len(built) == 1 and built[0] != main


def test_every_route_is_documented_and_nothing_else(client: TestClient) -> None:
    routes = {
        (route.path_format, method.lower())
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods
    }
    told = {(path, method) for path, item in document(client)["paths"].items() for method in item}
    assert told == routes | {(PredictRoute.path, "post")}


def test_the_contract_is_documented(client: TestClient) -> None:
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
        "DELETE /measurements",
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


def test_every_reference_resolves(client: TestClient) -> None:
    told = document(client)
    known = {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    assert set(references(told)) <= known


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_operations_are_named_by_what_they_do(client: TestClient) -> None:
    told = document(client)
    names = [operation["operationId"] for _, _, operation in operations(told)]
    assert len(set(names)) == len(names)
    assert [
        name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name) or re.search("post|patch", name)
    ] == []
    titles = {operation["operationId"]: operation["summary"] for _, _, operation in operations(told)}
    assert (titles["predict"], titles["list_gpus"], titles["store_graph"]) == ("Predict", "List GPUs", "Store graph")
    tags = {tag for _, _, operation in operations(told) for tag in operation["tags"]}
    assert {tag["name"]: bool(tag["description"]) for tag in told["tags"]} == dict.fromkeys(tags, True)


def test_the_document_declares_keys_licence_and_server(client: TestClient) -> None:
    told = document(client)
    (scheme,) = told["components"]["securitySchemes"]
    assert {"type": "http", "scheme": "bearer"}.items() <= told["components"]["securitySchemes"][scheme].items()
    open_to_all = [path for path, _, operation in operations(told) if operation["security"] == []]
    assert sorted(open_to_all) == ["/healthz", "/livez", "/readyz"]
    others = [operation["security"] for path, _, operation in operations(told) if path not in open_to_all]
    assert others == [[{scheme: []}, {}]] * len(others)
    assert (told["info"]["license"]["identifier"], told["servers"]) == ("Apache-2.0", [{"url": "/"}])


def test_every_schema_is_used_and_every_example_valid(client: TestClient) -> None:
    told = document(client)
    assert {f"#/components/schemas/{name}" for name in told["components"]["schemas"]} == set(references(told))
    bodies = [operation.get("requestBody", {}).get("content", {}) for _, _, operation in operations(told)]
    media = [one for body in bodies for one in body.values()]
    examples = [(one["schema"], one["example"]) for one in media if "example" in one]
    examples += [(one["schema"], each["value"]) for one in media for each in one.get("examples", {}).values()]
    assert len(examples) > 15
    for schema, example in examples:
        validator_for({**schema, "components": told["components"]}).validate(example)


def test_every_operation_has_a_summary_and_problem_responses(client: TestClient) -> None:
    for item in document(client)["paths"].values():
        for operation in item.values():
            assert operation["summary"] and operation["description"] and operation["tags"]
            problems = [answer for status, answer in operation["responses"].items() if not status.startswith("2")]
            assert problems
            assert all(list(answer["content"]) == ["application/problem+json"] for answer in problems)


def test_every_field_and_parameter_has_a_description(client: TestClient) -> None:
    told = document(client)
    fields = {
        f"{form}.{field}": kind.get("description")
        for form, schema in told["components"]["schemas"].items()
        for field, kind in schema.get("properties", {}).items()
    }
    parameters = {
        f"{path}.{one['name']}": one.get("description") or one["schema"].get("description")
        for path, item in told["paths"].items()
        for operation in item.values()
        for one in operation.get("parameters", ())
    }
    assert len(fields) > 1000 and len(parameters) > 30
    assert [name for name, words in (fields | parameters).items() if not words] == []


def test_the_examples_are_answered(client: TestClient) -> None:
    assert client.post("/predict", json=PREDICT_EXAMPLE).status_code == 200
    told = document(client)["paths"]
    example = told["/gpus"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client.post("/gpus", json=example).status_code == 201
