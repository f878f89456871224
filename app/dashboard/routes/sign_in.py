"""Sign in with an API key in a browser, for pages of installations that require keys."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.api.access import COOKIE
from app.api.deps import HolderDep, SettingsDep
from app.dashboard.routes.shell import HEADERS, WEB
from app.store.keys import digest

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
    answer = RedirectResponse(target if _is_here(target) else "/", 303)
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


def _is_here(target: str) -> bool:
    """Return whether it is a path of this service: '//host' and '/\\\\host' lead elsewhere."""
    return target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
