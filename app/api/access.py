"""Who may do what, and how often: API keys and rate limits, in front of every route as pure ASGI."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import problems
from app.api.roles import OPEN, role_for
from app.config import Settings
from app.errors import Forbidden, GpucastError, TooMany, Unauthorized
from app.store.keys import Key, digest

COOKIE = b"gpucast_key"


class Access:
    """Pass on what a key's role allows, as often as the rate limit admits; answer 401, 403 and 429 to the rest.

    Keys are looked up in memory by their SHA-256: a revoked key is as absent as one that never was.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._asks = settings.needs_keys
        self._rate = RateLimit(settings.rate) if settings.rate is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        need = role_for(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        if need is OPEN:
            await self._app(scope, receive, send)
            return
        key = _key(scope) if self._asks else None
        try:
            if self._rate is not None:
                self._rate.hit(_caller(scope, key))
            if self._asks and key is None:
                raise Unauthorized
            if key is not None and key.role < need:
                raise Forbidden
        except GpucastError as error:
            await _refusal(scope, error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RateLimit:
    """So many requests of one caller in each window of time."""

    def __init__(self, text: str) -> None:
        from limits import parse  # noqa: PLC0415 - 0.2 s that a start without a rate limit need not spend
        from limits.storage import MemoryStorage  # noqa: PLC0415
        from limits.strategies import FixedWindowRateLimiter  # noqa: PLC0415

        self._item = parse(text)
        self._windows = FixedWindowRateLimiter(MemoryStorage())

    def hit(self, caller: str) -> None:
        """Count one request; TooMany says in how many seconds the next window begins."""
        if not self._windows.hit(self._item, caller):
            left = self._windows.get_window_stats(self._item, caller).reset_time - time.time()
            raise TooMany(f"The limit is {self._item}.", retry_after_s=max(1, math.ceil(left)))


def _key(scope: Scope) -> Key | None:
    """The key that a request carries in Authorization, or else in the cookie of the pages; None if it opens nothing."""
    cookie = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, secret = value.partition(b" ")
            return _known(scope).get(digest(secret.strip())) if kind.lower() == b"bearer" else None
        if name == b"cookie":
            cookie = value
    return None if cookie is None else _known(scope).get(digest(_of_cookie(cookie)))


def _known(scope: Scope) -> Mapping[bytes, Key]:
    known: Mapping[bytes, Key] = scope["app"].state.holder.keys
    return known


def _of_cookie(header: bytes) -> bytes:
    pairs = (part.strip().partition(b"=") for part in header.split(b";"))
    return next((value for name, _, value in pairs if name == COOKIE), b"")


def _caller(scope: Scope, key: Key | None) -> str:
    if key is not None:
        return f"key {key.id}"
    return str(scope["client"][0]) if scope.get("client") else "local"


def _refusal(scope: Scope, error: GpucastError) -> Response:
    """A problem; a person who opens a page in a browser without a key is shown where to give one."""
    if isinstance(error, Unauthorized) and scope["method"] == "GET" and _wants_page(scope):
        query = scope["query_string"].decode("latin-1")
        asked = quote(scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"/sign-in?next={quote(asked, safe='')}", 303)
    return problems.of_error(error)


def _wants_page(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
