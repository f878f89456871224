"""Authentication, roles that routes require, and rate limits, in front of every route."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import problems
from app.config import Settings
from app.errors import Forbidden, GpucastError, TooMany, Unauthorized, Unavailable
from app.store.keys import ANYONE, NONE, Caller, Key, Requests, Slot, digest, exchange, now_s
from app.store.roles import Role
from app.store.session import Database

LOG = logging.getLogger(__name__)
EXCHANGE_S = 0.5
# The others' counts are no longer used when they are older.
STALE_S = 3 * EXCHANGE_S
# A window of fewer exchanges is short; and windows whose counts are exchanged: this one, and those before it.
LEAST_EXCHANGES, WINDOWS = 8, 3


class Others(NamedTuple):
    """Requests to other processes as of a time, seconds."""

    at: float
    requests: Mapping[Slot, Requests]

    def expected(self, slot: Slot, most: int, *, is_short: bool) -> float:
        """Return the requests of a caller to others in a window of `most`.

        In a short one, where exchanges come too late, as many as in the windows before, at most their even share.
        """
        if not is_short:
            return self.requests.get(slot, NONE).number
        window, caller = slot
        before = [self.requests.get((window - k, caller), NONE) for k in range(1, WINDOWS)]
        processes = 1 + max(each.processes for each in before)
        return min(max(each.number for each in before), most * (1.0 - 1.0 / processes))


class RateLimit:
    """At most so many requests of one caller per window.

    Windows are the same in all processes: they follow the database's clock, once it is known.
    """

    def __init__(
        self, text: str, now: Callable[[], float] = time.time, shared: Callable[[Connection], float] = now_s
    ) -> None:
        """`now` and `shared`: seconds by the clocks of this process and of the database."""
        from limits import parse  # noqa: PLC0415 - 0.2 s that a start without a rate limit need not spend

        self._item = parse(text)
        self._window_s = self._item.get_expiry()
        self._is_short = self._window_s < LEAST_EXCHANGES * EXCHANGE_S
        self._own_now, self._shared = now, shared
        self._ahead = 0.0  # of the database's clock
        self._mine: Counter[Slot] = Counter()
        self._others = Others(0.0, {})
        self._process = uuid.uuid4().hex
        self._counting = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _now(self) -> float:
        return self._own_now() + self._ahead

    def hit(self, caller: str) -> None:
        """Count one request. Raises TooMany with the seconds until the next window; such a request does not count."""
        now = self._now()
        window = int(now // self._window_s)
        slot = (window, _digest(caller))
        with self._counting:
            if self._mine[slot] + self._expected(slot, now) >= self._item.amount:
                left = (window + 1) * self._window_s - now
                raise TooMany(f"The limit is {self._item}.", retry_after_s=max(1, math.ceil(left)))
            self._mine[slot] += 1

    def _expected(self, slot: Slot, now: float) -> float:
        if now - self._others.at > STALE_S:
            return 0.0
        return self._others.expected(slot, self._item.amount, is_short=self._is_short)

    def start(self, database: Database) -> None:
        """Exchange counts from now on."""
        self._thread = threading.Thread(target=self._keep_exchanging, args=[database], name="rates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop exchanging."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _keep_exchanging(self, database: Database) -> None:
        while not self._stop.wait(EXCHANGE_S):
            try:
                self.exchange(database)
            except Unavailable:
                continue  # the snapshot's thread reports it
            except Exception:
                LOG.exception("requests are counted by this process alone")

    def exchange(self, database: Database) -> None:
        """Tell the other processes of this one's requests, and learn of theirs."""
        if not self._recent():
            return  # nobody asks here, so nobody needs a limit
        with database.begin() as connection:
            self._ahead = self._shared(connection) - self._own_now()
            # Of a process whose clock was wrong, none may be left: it must not forget the windows of the others.
            if mine := self._recent():
                self._others = Others(self._now(), exchange(connection, self._process, mine))

    def _recent(self) -> dict[Slot, int]:
        """Forget requests of other windows than the last ones; return those that are left."""
        last = int(self._now() // self._window_s)
        with self._counting:
            self._mine = Counter(
                {slot: count for slot, count in self._mine.items() if last - WINDOWS < slot[0] <= last}
            )
            return dict(self._mine)


def _digest(caller: str) -> str:
    """Return a digest: the database need not hold addresses."""
    return hashlib.blake2b(caller.encode(), digest_size=16).hexdigest()


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
            self._rate.hit(_name(scope, key))
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
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")  # browsers from before 2023 send only this
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


def key_id_of(request: Request) -> int | None:
    """Return the id of the caller's key, or None where none is required."""
    key: Key | None = request.scope.get(KEY)
    return None if key is None else key.id


def caller_of(scope: Scope) -> Caller:
    """Return whose saved answers, graphs and prices a request may remove: of admins, and without keys, everybody's."""
    key: Key | None = scope.get(KEY)
    return ANYONE if key is None else Caller(key.owner_id, everybody=key.role >= Role.ADMIN)


def _cookie_key(header: bytes) -> bytes:
    pairs = (part.strip().partition(b"=") for part in header.split(b";"))
    return next((value for name, _, value in pairs if name == COOKIE), b"")


def name_of(scope: Scope) -> str:
    """Return the name under which a caller's requests are counted: that of its first key, else its address."""
    return _name(scope, scope.get(KEY))


def _name(scope: Scope, key: Key | None) -> str:
    if key is not None:
        return f"key {key.owner_id}"
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


OPEN: Final = None  # to everybody, with or without a key
READ, PREDICT, CONTRIBUTE, ADMIN = Role

ROLES: Mapping[str, Mapping[str, Role | None]] = {
    "/": {"GET": PREDICT},
    "/accuracy": {"GET": READ},
    "/catalogue": {"GET": READ},
    "/catalogue/choices": {"GET": READ},
    "/catalogue/{name}": {"GET": READ},
    "/compare": {"POST": PREDICT},
    "/detail": {"GET": PREDICT},
    "/docs": {"GET": READ},
    "/gpus": {"GET": READ, "POST": CONTRIBUTE},
    "/gpus/{name}": {"GET": READ, "PATCH": ADMIN, "DELETE": ADMIN},
    "/gpus/{name}/plan": {"GET": PREDICT, "POST": PREDICT},
    "/graphs": {"GET": READ, "POST": PREDICT},
    "/graphs/{graph_id}": {"GET": READ, "DELETE": PREDICT},
    "/healthz": {"GET": OPEN},
    "/jobs": {"GET": READ},
    "/jobs/{job_id}": {"GET": READ},
    "/keys": {"GET": ADMIN, "POST": ADMIN},
    "/keys/events": {"GET": ADMIN},
    "/keys/{key_id:int}": {"DELETE": ADMIN},
    "/keys/{key_id}/rotate": {"POST": ADMIN},
    "/livez": {"GET": OPEN},
    "/llm-d/{prediction_id}/predict": {"POST": PREDICT},
    "/llm-d/{prediction_id}/predict/bulk": {"POST": PREDICT},
    "/llm-d/{prediction_id}/predict/bulk/strict": {"POST": PREDICT},
    "/llm-d/{prediction_id}/status": {"GET": READ},
    "/measured": {"GET": READ},
    "/measurements": {"GET": READ, "POST": CONTRIBUTE, "DELETE": ADMIN},
    "/measurements/confirm": {"POST": ADMIN},
    "/metrics": {"GET": READ},
    "/openapi.json": {"GET": READ},
    "/partition": {"POST": PREDICT},
    "/plan": {"GET": PREDICT, "POST": PREDICT},
    "/predict": {"POST": PREDICT},
    "/predict/batch": {"POST": PREDICT},
    "/predictions": {"GET": READ},
    "/predictions/{prediction_id}": {"GET": READ},
    "/predictions/{prediction_id:int}": {"DELETE": PREDICT},
    "/predictions/{prediction_id}.pdf": {"GET": READ},
    "/predictors": {"GET": READ},
    "/predictors/{name}/rollback": {"POST": ADMIN},
    "/prices": {"GET": READ, "POST": CONTRIBUTE, "DELETE": ADMIN},
    "/prices/{price_id}": {"DELETE": CONTRIBUTE},
    "/readyz": {"GET": OPEN},
    "/retrain": {"POST": CONTRIBUTE},
    "/scaling": {"GET": PREDICT},
    "/scheduler/filter": {"POST": PREDICT},
    "/scheduler/prioritize": {"POST": PREDICT},
    "/serving": {"GET": PREDICT},
    "/sign-in": {"GET": OPEN, "POST": OPEN},
    "/sign-out": {"POST": OPEN},
    "/uploads": {"GET": READ},
    "/static/{path:path}": {"GET": OPEN},
}

_EXACT = {path: needs for path, needs in ROLES.items() if "{" not in path}
_TEMPLATES = [(compile_path(path)[0], needs) for path, needs in ROLES.items() if "{" in path]


def role_for(method: str, path: str) -> Role | None:
    """Return the least role for a request; READ for unknown routes, so that strangers cannot probe paths."""
    method = "GET" if method == "HEAD" else method
    needs = _EXACT.get(path)
    if needs is None:
        needs = next((needs for template, needs in _TEMPLATES if method in needs and template.match(path)), {})
    return needs.get(method, READ)
