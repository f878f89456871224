"""The OpenAPI document: FastAPI's, with the structs of the hot routes and the problem schema added."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.access import OPEN, role_for
from app.api.problems import MEDIA_TYPE, PROBLEM_SCHEMA
from app.tables.complete import REQUIRED
from app.tables.gpu_fields import KINDS, MEANINGS, NUMBERS, PROVENANCES
from app.tables.gpus import PIPES, GpuSpec
from app.wire.graph_form import GRAPH_REQUEST_EXAMPLE, GraphRequest
from app.wire.kernel_workload import KernelWorkload
from app.wire.measurement_form import MeasuredModel
from app.wire.network_form import MODEL_EXAMPLE, ModelRequest
from app.wire.operator_forms import (
    OPERATOR_TABLE_EXAMPLE,
    OPERATORS_EXAMPLE,
    ROW_FORMS,
    OperatorsRequest,
    OperatorTableRequest,
    TableResponse,
)
from app.wire.prediction_form import PREDICT_EXAMPLE, PredictRequest, PredictResponse
from app.wire.serving_form import SERVING_EXAMPLE, ServingRequest, ServingResponse

_RATE = {"type": ["number", "null"], "minimum": 1e6, "maximum": 1e21}
_TEXT = {"type": ["string", "null"], "maxLength": 200}


def gpu() -> dict[str, Any]:
    """Return the schema of a whole specification."""
    _, components = msgspec.json.schema_components([GpuSpec], ref_template="#/components/schemas/{name}")
    schema: dict[str, Any] = components["GpuSpec"]
    schema["title"] = "Gpu"
    return _described(schema)


def partial_gpu(*, required: bool) -> dict[str, Any]:
    """Return the schema of a partial description. Null means not given, and in `peak_flops` an unsupported pipe."""
    properties: dict[str, Any] = {
        "id": {"type": ["string", "null"], "pattern": "^[a-z0-9]+([.-][a-z0-9]+)*$", "maxLength": 100},
        **dict.fromkeys(("name", "vendor", "architecture", "memory_type", "link_type"), _TEXT),
        "source": {**_TEXT, "maxLength": 2000},
        "note": {**_TEXT, "maxLength": 2000},
        "kind": {"enum": [*KINDS, None]},
        "compute_capability": {"type": ["string", "null"], "pattern": r"^\d{1,2}\.\d$"},
        "aliases": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1, "maxLength": 200}},
        "peak_flops": {
            "type": ["object", "null"],
            "properties": dict.fromkeys(PIPES, _RATE),
            "additionalProperties": False,
        },
        "provenance": {"type": ["object", "null"], "additionalProperties": {"enum": list(PROVENANCES)}},
    }
    for name, allowed in NUMBERS.items():
        properties[name] = {
            "type": ["integer" if allowed.whole else "number", "null"],
            "minimum": allowed.low,
            "maximum": allowed.high,
        }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return _described({**schema, "required": list(REQUIRED)} if required else schema)


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    properties = {name: {"description": MEANINGS[name], **kind} for name, kind in schema["properties"].items()}
    return {**schema, "properties": properties}


# Structs that routes read and answer with, by name: those that they refer to.
_STRUCTS: dict[str, type[Struct]] = {struct.__name__: struct for struct in (KernelWorkload, MeasuredModel)}
REF = "#/components/schemas/{name}"
BINARY = {"type": "string", "format": "binary"}

# Groups of operations, in the order of the document.
TAGS = [
    {"name": "Prediction", "description": "Times of kernels, operators, networks and served models; saved answers."},
    {"name": "Deciding", "description": "Compare GPUs, plan jobs, prices, and what schedulers and gateways ask."},
    {"name": "GPUs", "description": "The catalogue, and what to measure next on a GPU."},
    {"name": "Graphs", "description": "Stored networks, as JSON, ONNX or archives of torch.export."},
    {"name": "Measurements", "description": "Upload, list, confirm and delete measured times."},
    {"name": "Learning", "description": "Predictors, their versions, and retrainings."},
    {"name": "Access", "description": "API keys and what was done to them."},
    {"name": "Operations", "description": "Whether the service works, and its metrics."},
]
_KEY = "ApiKey"
_KEY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "`Authorization: Bearer KEY`, where the service requires API keys.",
}
_SPELT = {"gpu": "GPU", "gpus": "GPUs", "pdf": "PDF"}
_REPLACED = ("HTTPValidationError", "ValidationError")
_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}}}
_PROBLEMS = {
    "400": "The body cannot be parsed",
    "401": "API key missing or invalid; only if keys are required",
    "403": "The key's role does not allow this; only if keys are required",
    "404": "Not found; the detail lists close names",
    "409": "The request conflicts with the current state",
    "413": "The body is too large",
    "415": "Unsupported media type",
    "422": "A field is wrong; `errors` lists which",
    "429": "Too much of one caller; see Retry-After",
    "503": "The database or queue is unavailable; see Retry-After",
    "504": "The request took too long",
}


def ref(shape: type[Struct] | str) -> dict[str, str]:
    """Return a reference to a component: a struct, or by its name one that this document describes itself."""
    if not isinstance(shape, str):
        shape = _STRUCTS.setdefault(shape.__name__, shape).__name__
    return {"$ref": REF.format(name=shape)}


def any_of(structs: Sequence[type[Struct]]) -> dict[str, Any]:
    """Return the schema of one of several structs."""
    return ref(structs[0]) if len(structs) == 1 else {"anyOf": [ref(struct) for struct in structs]}


def json_body(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads its JSON body itself."""
    media = {"schema": schema, "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}


def json_answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of a route's `responses`: a JSON body of that schema."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def json_route(request: type[Struct], example: Any, meaning: str, *answers: type[Struct]) -> dict[str, Any]:
    """Return the arguments of a route that reads a struct and answers with one, of this `meaning`."""
    return {
        "openapi_extra": json_body(ref(request), example),
        "response_class": Response,
        "responses": {200: json_answer(meaning, any_of(answers))},
    }


def install(app: FastAPI) -> None:
    """Serve this document at /openapi.json; built once, on first use, in a thread: it takes half a second."""
    one_at_a_time = Lock()  # FastAPI's generator changes what routes share: two at once may fail

    def document() -> dict[str, Any]:
        with one_at_a_time:
            if app.openapi_schema is None:
                app.openapi_schema = _document(app)
            return app.openapi_schema

    @lru_cache(maxsize=4)
    def text(prefix: str) -> bytes:
        return msgspec.json.encode(document() | {"servers": [{"url": prefix}]})

    def answer(request: Request) -> Response:
        return Response(text(request.scope.get("root_path", "").rstrip("/") or "/"), media_type="application/json")

    app.openapi = document  # type: ignore[method-assign]
    app.router.routes.append(Route("/openapi.json", answer, include_in_schema=False))


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        tags=app.openapi_tags,
        servers=[{"url": "/"}],
        routes=app.routes,
    )
    predict = _predict()  # refers to structs
    _, structs = msgspec.json.schema_components(_STRUCTS.values(), ref_template=REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for row in ROW_FORMS.values():  # the tag of a struct has no description of its own
        tag = structs[row.__name__]["properties"]["op"]
        structs[row.__name__]["properties"]["op"] = {"description": "The operator's name", **tag}
    schemas.update(structs)
    schemas.update(
        Problem=PROBLEM_SCHEMA, Gpu=gpu(), GpuIn=partial_gpu(required=True), GpuChanges=partial_gpu(required=False)
    )
    for name in _REPLACED:
        schemas.pop(name, None)
    document["paths"] = {"/predict": {"post": predict}, **document["paths"]}
    document["components"]["securitySchemes"] = {_KEY: _KEY_SCHEME}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            operation["summary"] = _title(operation["operationId"])
            operation["security"] = [] if role_for(method.upper(), path) is OPEN else [{_KEY: []}, {}]
            _add_problems(operation)
    return document


def _title(name: str) -> str:
    """Return the name of an operation in words."""
    first, *others = (_SPELT.get(word, word) for word in name.split("_"))
    return " ".join([first[:1].upper() + first[1:], *others])


def _predict() -> dict[str, Any]:
    forms = PredictRequest, OperatorsRequest, OperatorTableRequest, ModelRequest, GraphRequest, ServingRequest
    request, answer = any_of(forms), any_of((PredictResponse, TableResponse, ServingResponse))
    by_kind = {
        "kernel": PREDICT_EXAMPLE,
        "operators": OPERATORS_EXAMPLE,
        "operator_table": OPERATOR_TABLE_EXAMPLE,
        "model": MODEL_EXAMPLE,
        "graph": GRAPH_REQUEST_EXAMPLE,
        "serving": SERVING_EXAMPLE,
    }
    examples = {kind: {"value": example} for kind, example in by_kind.items()}
    return {
        "tags": ["Prediction"],
        "description": "Predict the time of a workload on one GPU, several, or all of the catalogue.",
        "operationId": "predict",
        "requestBody": {"required": True, "content": {"application/json": {"schema": request, "examples": examples}}},
        "responses": {"200": json_answer("One entry per GPU, in request order", answer)},
    }


def _add_problems(operation: dict[str, Any]) -> None:
    """Add the problem schema for every failure."""
    for status, meaning in _PROBLEMS.items():
        operation["responses"][status] = {"description": meaning, **_PROBLEM}
    operation["responses"]["default"] = {"description": "Any other failure", **_PROBLEM}
