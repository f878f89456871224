"""GET /docs: the HTTP interface, read from /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.pages.shell import page

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show(request: Request) -> Response:
    """Every operation with its schemas, and a way to try it."""
    return page(request, "docs.html")
