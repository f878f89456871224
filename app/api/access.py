"""Authentication and rate limits in front of every route, as pure ASGI middleware."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import problems
from app.api.rate_limit import RateLimit
from app.api.roles import OPEN, role_for
from app.config import Settings
from app.errors import Forbidden, GpucastError, Unauthorized
from app.store.keys import Key, digest
from app.store.roles import Role

COOKIE = b"gpucast_key"
# Open to everybody, within the rate limit: each try reads the database. Probes and files are cheap.
_SIGNING = ("/sign-in", "/sign-out")
KEY = "gpucast_key"  # of the scope: the caller's key, or None where none is required


class Access:
    """Pass on requests that the key's role and the rate limit allow; answer others with 401, 403 or 429.

    Keys are looked up in memory by their SHA-256. Revoked and unknown keys are treated alike.
    """

    def __init__(self, app: ASGIApp, settings: Settings, rate: RateLimit | None) -> None:
        self._app = app
        self._needs_keys = settings.needs_keys
        self._rate = rate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        try:
            self.admit(scope)
        except GpucastError as error:
            await _refuse(scope, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def admit(self, scope: Scope) -> None:
        """Note the key in the scope, once. Raises TooMany, Unauthorized or Forbidden."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        need = role_for(scope["method"], path)
        if KEY not in scope and (need is not OPEN or path in _SIGNING):
            scope[KEY] = self._admitted(scope, need)

    def _admitted(self, scope: Scope, need: Role | None) -> Key | None:
        """Count a request, and return its key; None where none is required. Raises TooMany, Unauthorized, Forbidden."""
        required = self._needs_keys and need is not OPEN
        key = _key(scope) if required else None
        if self._rate is not None:
            self._rate.hit(_caller(scope, key))
        if required and key is None:
            raise Unauthorized
        if key is not None and need is not None and (key.role < need or _is_forged(scope)):
            raise Forbidden
        return key


def _key(scope: Scope) -> Key | None:
    """Return the key in Authorization, or else in the cookie of the pages; None if missing or invalid."""
    cookie = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, secret = value.partition(b" ")
            return _active_key(scope, secret.strip()) if kind.lower() == b"bearer" else None
        if name == b"cookie":
            cookie = value
    return None if cookie is None else _active_key(scope, _cookie_key(cookie))


def _active_key(scope: Scope, secret: bytes) -> Key | None:
    known: Mapping[bytes, Key] = scope["app"].state.holder.keys
    key = known.get(digest(secret))
    return None if key is None or key.is_expired() else key


def _is_forged(scope: Scope) -> bool:
    """Return whether a page of another origin made the browser send a change with the cookie, which it adds itself."""
    headers = dict(scope["headers"])
    if scope["method"] in ("GET", "HEAD") or b"authorization" in headers:
        return False
    return headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none")


def _cookie_key(header: bytes) -> bytes:
    pairs = (part.strip().partition(b"=") for part in header.split(b";"))
    return next((value for name, _, value in pairs if name == COOKIE), b"")


def _caller(scope: Scope, key: Key | None) -> str:
    if key is not None:
        return f"key {key.id}"
    return str(scope["client"][0]) if scope.get("client") else "local"


def _refuse(scope: Scope, error: GpucastError) -> Response:
    """Return the problem, or redirect a browser without a key to the sign-in page."""
    if isinstance(error, Unauthorized) and scope["method"] == "GET" and _wants_page(scope):
        query = scope["query_string"].decode("latin-1")
        target = quote(scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"/sign-in?next={quote(target, safe='')}", 303)
    return problems.error_response(error)


def _wants_page(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
