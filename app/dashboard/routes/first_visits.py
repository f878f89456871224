"""Show each page of the menu to nobody after a start: first visitors would wait until what it needs is read."""

from __future__ import annotations

import asyncio
import logging

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.types import Message, Scope

from app.dashboard.routes.shell import VIEWS

LOG = logging.getLogger(__name__)


def show_to_nobody(app: FastAPI) -> None:
    """Answer each page, past keys, limits and counts; one that fails does not stop a start: the log has it."""
    asyncio.run(_show(app))


async def _show(app: FastAPI) -> None:
    answer = AsyncExitStackMiddleware(app.router)
    for path, *_ in VIEWS:
        try:
            await answer(_visit(app, path), _no_body, _drop)
        except Exception:
            LOG.exception("%s could not be shown", path)


def _visit(app: FastAPI, path: str) -> Scope:
    address = {"scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    versions = {"version": "3.0", "spec_version": "2.4"}
    return {
        "type": "http",
        "asgi": versions,
        "http_version": "1.1",
        "method": "GET",
        "headers": [(b"host", b"localhost")],
        "server": ("localhost", 80),
        "app": app,
        **address,
    }


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _drop(message: Message) -> None:
    """Send what is answered to nobody."""
