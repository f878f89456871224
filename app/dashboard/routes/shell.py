"""Shared by all pages: templates, headers, state in the address, errors at the controls, and signing in with a key."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends, Form, Query, Request
from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from app import __version__
from app.api.access import COOKIE
from app.api.deps import HolderDep, SettingsDep
from app.dashboard import format_figures
from app.dashboard.address import Address, curl, mends
from app.dashboard.charts.drawing import Drawing, as_svg
from app.engine.prices import today_utc
from app.errors import GpucastError
from app.services.compare.units import data_size, duration
from app.store.keys import digest

WEB = Path(__file__).resolve().parents[1] / "web"
STATIC = "/static"
T = TypeVar("T")
# Templates have it above what takes long to compute.
_MARK = "<!-- later -->"
# Level of gzip: higher ones take longer for a few bytes less.
_COMPRESSION = 6
# Pages run only our scripts and send no request to another host.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# The views in the order of the navigation; `True`: the view keeps the workload in its address.
VIEWS = (
    ("/plan", "Plan", True),
    ("/", "Compare", True),
    ("/detail", "One GPU", True),
    ("/scaling", "Scaling", True),
    ("/serving", "Serving", True),
    ("/accuracy", "Accuracy", False),
    ("/measured", "Measurements", False),
    ("/catalogue", "GPUs", False),
    ("/docs", "API", False),
)


class _Assets(StaticFiles):
    """Scripts and styles, which a browser revalidates at each visit."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        response = super().file_response(*args, **more)
        response.headers.update(HEADERS)
        return response


def assets() -> ASGIApp:
    """Return the files under STATIC, compressed, as an ASGI application."""
    return GZipMiddleware(_Assets(directory=WEB / "static"), compresslevel=_COMPRESSION)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"data_size": data_size, "time": duration}
    environment.filters |= {
        name: getattr(format_figures, name)
        for name in (
            "amount",
            "decimals",
            "number",
            "percent",
            "short",
            "spread",
            "workload_line",
        )
    }
    environment.globals |= {
        "version": __version__,
        "views": VIEWS,
        "static": STATIC,
        "query": _query,
        "today": today_utc,
    }
    return environment


def _query(pairs: Sequence[tuple[str, str]], **changed: str) -> str:
    """Return a query string of these pairs, with `changed` ones replaced."""
    kept = [(name, value) for name, value in pairs if name not in changed]
    return "?" + urlencode([*kept, *((name, value) for name, value in changed.items() if value)])


_ENVIRONMENT = _environment()


def page(request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
    """Return a page; `shown` are the variables of its template.

    With `later`, a function that the template calls behind the mark, what is above it is sent before.
    """
    here = {"path": request.url.path, "address": str(request.url)}
    shown = {**here, "pairs": [], "error": None, "complaints": {}, "mends": []} | shown
    parts = _parts(_ENVIRONMENT.get_template(template).generate(shown))
    first = next(parts)  # what is wrong with the request shows here
    headers = {**HEADERS, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    packed = _packed(chain([first], parts), gzipped="Content-Encoding" in headers)
    if "later" in shown:
        return StreamingResponse(packed, status, headers, media_type="text/html")
    return HTMLResponse(b"".join(packed), status, headers)


def or_else(compute: Callable[[], T], other: T) -> T:
    """Return what is computed, or `other` where it is refused: the part of a page that is sent stands."""
    try:
        return compute()
    except GpucastError:
        return other


def _parts(pieces: Iterable[str]) -> Iterator[bytes]:
    """Yield a page in the parts between its marks, each computed when it is taken."""
    held: list[str] = []
    for piece in pieces:
        before, mark, after = piece.partition(_MARK)
        held.append(before)
        if mark:
            yield "".join(held).encode()
            held = [after]
    yield "".join(held).encode()


def _packed(parts: Iterable[bytes], *, gzipped: bool) -> Iterator[bytes]:
    """Yield the parts, each complete for a browser that shows it before the next comes."""
    packer = zlib.compressobj(_COMPRESSION, wbits=31)
    for part in parts:
        yield packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) if gzipped else part
    if gzipped:
        yield packer.flush()


def refused(request: Request, template: str, address: Address, error: GpucastError, **shown: Any) -> Response:
    """Return a page with an error beside the controls of its address, and links that mend it."""
    shown = {"complaints": address.complaints(error), "mends": mends(address, error)} | shown
    return page(request, template, status=error.status, error=error, **shown)


def missing(request: Request) -> Response:
    """Return the page of an address that has none, status 404."""
    return page(request, "missing.html", status=404)


class Command(NamedTuple):
    """The request behind a page: as a curl line, and its path and body, with which the page saves the answer."""

    curl: str
    path: str
    body: str


def command(request: Request, path: str, body: Mapping[str, Any]) -> Command:
    """Return the request behind a page."""
    return Command(curl(str(request.base_url).rstrip("/"), path, body), path, msgspec.json.encode(body).decode())


def wants_json(request: Request) -> bool:
    """Return whether the address requests the API's answer instead of the page."""
    return request.query_params.get("format") == "json"


def wants_svg(request: Request) -> bool:
    """Return whether the address requests a chart of the answer instead of the page."""
    return request.query_params.get("format") == "svg"


def wants_answer(request: Request) -> bool:
    """Return whether the address requests anything but the page, so that errors are those of the API."""
    return wants_json(request) or wants_svg(request)


def as_picture(drawing: Drawing) -> Response:
    """Return a chart as an SVG file, which runs and loads nothing."""
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'"}
    return Response(as_svg(drawing), media_type="image/svg+xml", headers=headers)


def _address(request: Request) -> Address:
    return Address.of(request.query_params.multi_items())


AddressDep = Annotated[Address, Depends(_address)]


router = APIRouter(include_in_schema=False)

PAGE = WEB / "sign_in.html"
TOKEN = "gpucast_form"  # cookie of the form's token
_STALE = '<p role="alert">This form is no longer valid; please send it again.</p>'
_REFUSED = '<p role="alert">This key is not valid here.</p>'
_Next = Annotated[str, Query(alias="next")]


@router.get("/sign-in")
async def sign_in_page(request: Request) -> HTMLResponse:
    """A form for the key, with a token that only this page and the browser's cookie have."""
    return _form(request, "")


@router.post("/sign-in")
def sign_in(
    request: Request,
    holder: HolderDep,
    settings: SettingsDep,
    key: Annotated[str, Form()] = "",
    token: Annotated[str, Form()] = "",
    target: _Next = "/",
) -> Response:
    """Store the key in a cookie that scripts and other sites cannot read, and redirect to the requested page."""
    expected = request.cookies.get(TOKEN, "")
    if not expected or not secrets.compare_digest(token.encode(), expected.encode()):
        return _form(request, _STALE, 403)
    holder.refresh()
    key = key.strip()
    known = holder.keys.get(digest(key.encode("utf-8", "replace")))
    if settings.needs_keys and (known is None or known.is_expired()):
        return _form(request, _REFUSED, 401)
    # A path of this service: '//host' and '/\\host' lead elsewhere.
    is_here = target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
    answer = RedirectResponse(target if is_here else "/", 303)
    if settings.needs_keys:
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE.decode(), key, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/sign-out")
async def sign_out() -> Response:
    """Delete the key's cookie."""
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(COOKIE.decode(), httponly=True, samesite="strict")
    return answer


def _form(request: Request, notice: str, status: int = 200) -> HTMLResponse:
    """Return the page with a new token, in the form and in a cookie: another site can set neither of both."""
    token = secrets.token_urlsafe(16)
    text = PAGE.read_text("utf-8").replace("<!-- notice -->", notice).replace("<!-- token -->", token)
    answer = HTMLResponse(text, status, HEADERS)
    secure = request.url.scheme == "https"
    answer.set_cookie(TOKEN, token, httponly=True, samesite="strict", secure=secure, path="/sign-in")
    return answer
