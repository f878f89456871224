"""Sign in with an API key in a browser, for pages of installations that require keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.api.access import COOKIE
from app.api.deps import HolderDep, SettingsDep
from app.store.keys import digest

router = APIRouter(include_in_schema=False)

PAGE = Path(__file__).resolve().parent.parent / "web" / "sign_in.html"
_REFUSED = '<p role="alert">This key is not valid here.</p>'
_Next = Annotated[str, Query(alias="next")]


@router.get("/sign-in")
async def sign_in_page() -> HTMLResponse:
    """A form for the key."""
    return HTMLResponse(_page(""))


@router.post("/sign-in")
def sign_in(
    request: Request,
    holder: HolderDep,
    settings: SettingsDep,
    key: Annotated[str, Form()] = "",
    target: _Next = "/",
) -> Response:
    """Store the key in a cookie that scripts and other sites cannot read, and redirect to the requested page."""
    holder.refresh()
    key = key.strip()
    if settings.needs_keys and digest(key.encode("utf-8", "replace")) not in holder.keys:
        return HTMLResponse(_page(_REFUSED), 401)
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


def _page(notice: str) -> str:
    return PAGE.read_text("utf-8").replace("<!-- notice -->", notice)


def _is_here(target: str) -> bool:
    """Return whether it is a path of this service: '//host' and '/\\\\host' lead elsewhere."""
    return target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
