"""Routes are worked out before the first request, which would stop all others for it."""

from __future__ import annotations

import time

from fastapi import FastAPI

from app.config import Settings
from app.main import _prepare, create_app


def longest_match_s(app: FastAPI) -> float:
    """Return the longest time that a router takes to say that it has no such route."""

    def match_s(route: object) -> float:
        began = time.thread_time()
        route.matches({"type": "http", "method": "GET", "path": "/nothing", "headers": []})  # type: ignore[attr-defined]
        return time.thread_time() - began

    return max(map(match_s, app.routes))


def test_a_prepared_application_looks_for_a_route_at_once() -> None:
    app = create_app(Settings())
    _prepare(app)
    assert longest_match_s(app) < 0.003
