"""GET /docs: the HTTP interface, generated from /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.dashboard.routes.shell import page

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def show(request: Request) -> Response:
    """All operations with their schemas, and a form to try them."""
    return page(request, "docs.html")
