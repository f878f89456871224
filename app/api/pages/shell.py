"""What every page of the dashboard is made with: templates, headers, the state in its address, errors in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from fastapi import Depends, Request
from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from app import __version__
from app.services.pages import words
from app.services.pages.asked import Asked, curl

WEB = Path(__file__).resolve().parents[2] / "web"
STATIC = "/static"
# Whatever a page shows, it runs no script but ours and asks nothing of any other host.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# The views, in the order of the navigation; those of one workload keep it in their addresses.
VIEWS = (
    ("/", "Compare", True),
    ("/detail", "One GPU", True),
    ("/scaling", "Scaling", True),
    ("/accuracy", "Accuracy", False),
    ("/measured", "Measurements", False),
    ("/catalogue", "GPUs", False),
    ("/docs", "API", False),
)


class _Assets(StaticFiles):
    """Scripts and styles, which a browser checks again at each visit."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        response = super().file_response(*args, **more)
        response.headers.update(HEADERS)
        return response


def assets() -> StaticFiles:
    """The files under STATIC, as an ASGI application."""
    return _Assets(directory=WEB / "static")


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        name: getattr(words, name)
        for name in ("amount", "decimals", "number", "short", "data_size", "time", "percent", "spelled")
    }
    made.globals |= {"version": __version__, "views": VIEWS, "static": STATIC, "query": _query}
    return made


def _query(pairs: Sequence[tuple[str, str]], **changed: str) -> str:
    """A query string of these pairs, some in place of their namesakes."""
    kept = [(name, value) for name, value in pairs if name not in changed]
    return "?" + urlencode([*kept, *((name, value) for name, value in changed.items() if value)])


_ENVIRONMENT = _environment()


def page(request: Request, template: str, *, status: int = 200, **shown: Any) -> HTMLResponse:
    """A page; `shown` are the names that its template reads."""
    shown = {"path": request.url.path, "pairs": [], "error": None, "complaints": {}} | shown
    return HTMLResponse(_ENVIRONMENT.get_template(template).render(shown), status, HEADERS)


def as_json(answer: Any) -> Response:
    """What a page shows, as the API answers it."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


def command(request: Request, path: str, body: Mapping[str, Any]) -> str:
    """The curl line of what a page shows."""
    return curl(str(request.base_url).rstrip("/"), path, body)


def wants_json(request: Request) -> bool:
    """Whether the address asks for the API's answer in place of the page."""
    return request.query_params.get("format") == "json"


def _asked(request: Request) -> Asked:
    return Asked.of(request.query_params.multi_items())


AskedDep = Annotated[Asked, Depends(_asked)]
