"""Render every failure as RFC 9457 `application/problem+json`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.errors import MAX_ERRORS, FieldError, GpucastError, TooMany, Unauthorized, Unavailable

log = logging.getLogger(__name__)

# Longest texts of an answer, characters: a caller's own names may be megabytes.
_MOST_TEXT, _MOST_NAME = 4_000, 200
MEDIA_TYPE = "application/problem+json"
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457), and for bad input which fields.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:gpucast:problem:<code>, stable"},
        "title": {"type": "string", "description": "Kind of problem, in words"},
        "status": {"type": "integer", "description": "HTTP status"},
        "detail": {"type": "string", "description": "The problem, and what to do about it"},
        "errors": {
            "description": "Wrong fields: `loc` is the path, `msg` what to send instead",
            "type": "array",
            "items": {
                "type": "object",
                "required": ["loc", "msg"],
                "properties": {
                    "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
                    "msg": {"type": "string"},
                },
            },
        },
    },
}


def install(app: FastAPI, routes: Sequence[BaseRoute], missing: Callable[[Request], Response]) -> None:
    """Answer every exception of the application in this form, but to browsers the page `missing` for an unknown path.

    `routes` give the methods of each path.
    """
    app.state.routes = tuple(route for route in routes if isinstance(route, Route))
    app.state.missing = missing
    app.add_exception_handler(GpucastError, _ours)
    app.add_exception_handler(HTTPException, _theirs)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _unexpected)


def error_response(error: GpucastError) -> Response:
    """Return one of our errors as a response, with Retry-After or WWW-Authenticate where it applies."""
    headers = {}
    if isinstance(error, Unavailable | TooMany):
        headers["Retry-After"] = str(error.retry_after_s)
    elif isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return problem(error.status, error.code, error.title, error.detail, errors=error.errors, headers=headers)


def problem(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    errors: Sequence[FieldError] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """Return a response in the form of PROBLEM_SCHEMA."""
    body: dict[str, Any] = {
        "type": f"urn:gpucast:problem:{code}",
        "title": title,
        "status": status,
        "detail": _printable(detail),
    }
    if errors:
        body["errors"] = [{"loc": [_part(p) for p in e.loc], "msg": _printable(e.msg)} for e in errors]
    return Response(orjson.dumps(body), status, headers, MEDIA_TYPE)


def _part(part: str | int) -> str | int:
    return _printable(part[:_MOST_NAME]) if isinstance(part, str) else part


def _printable(text: str) -> str:
    """Return the text, shortened, with lone surrogates, which JSON cannot encode, as escapes."""
    return text[:_MOST_TEXT].encode("utf-8", "backslashreplace").decode()


def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, GpucastError)
    if error.status >= 500 and not isinstance(error, Unavailable):
        log.error("%s %s: %s", request.method, request.url.path, error.detail)
    return error_response(error)


def _theirs(request: Request, error: Exception) -> Response:
    """Render Starlette's errors: unknown path, wrong method, a body that FastAPI could not parse."""
    assert isinstance(error, HTTPException)
    is_browser = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if error.status_code == HTTPStatus.NOT_FOUND and is_browser:
        page: Response = request.app.state.missing(request)
        return page
    phrase = HTTPStatus(error.status_code).phrase
    detail = error.detail if error.detail != phrase else f"{phrase}: {request.method} {request.url.path}"
    code = phrase.lower().replace(" ", "-")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    return problem(error.status_code, code, phrase, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """Return all methods of the path; Starlette lists only those of its first route."""
    here = [route for route in request.app.state.routes if route.path_regex.match(request.scope["path"])]
    methods = {method for route in here for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _validation(request: Request, error: Exception) -> Response:
    """Render validation errors of parameters and body fields; a body that is not JSON is 400."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    if any(item["type"] == "json_invalid" for item in details):
        return problem(400, "malformed", "Malformed body", f"The body is not valid JSON: {details[0]['ctx']['error']}.")
    errors = [FieldError(tuple(item["loc"][1:]) or tuple(item["loc"]), item["msg"]) for item in details[:MAX_ERRORS]]
    where = ".".join(str(part) for part in errors[0].loc)
    return problem(422, "invalid-input", "Invalid input", f"{where}: {errors[0].msg}", errors=errors)


def _unexpected(request: Request, error: Exception) -> Response:
    return defect_response()


def defect_response() -> Response:
    """Return a response for a defect. The server logs the traceback; the caller gets no details."""
    return problem(500, "internal", "Internal error", "This is a defect of the service; its log has the details.")
