"""Errors that a caller can see.

GpucastError (500)
|-- BadInput (422)            a field is wrong; `errors` lists which and why
|   `-- Malformed (400)       the body cannot be parsed
|-- Unauthorized (401)        the key is missing or invalid
|-- Forbidden (403)           the key's role does not allow this
|-- NotFound (404)            `near` lists close names
|-- Conflict (409)            the thing exists, or is not ready yet
|   `-- NotTrained (409)      a predictor without training data; names the import command
|-- TooLarge (413)            names the limit
|-- UnsupportedMedia (415)    lists the accepted types
|-- TooMany (429)             too much of one caller; has Retry-After
|-- TooSlow (408)           a request did not arrive in time
|-- HeadersTooLarge (431)   names the limit
|-- Cancelled (499)         the caller left, so nobody sees this
|-- TimedOut (504)            the request took too long
`-- Unavailable (503)         the database or queue is unavailable; has Retry-After
    `-- StorageFull (507)     a disk is full: the database's, or that of the artefacts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

# Most wrong fields that one answer lists.
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: `loc` is its path in the request, `msg` what to send instead."""

    loc: tuple[str | int, ...]
    msg: str


class GpucastError(Exception):
    """Base of all errors that are reported to the caller."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    code: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)


class BadInput(GpucastError):
    """The request is well-formed, but a value is invalid."""

    status = 422
    title = "Invalid input"
    code = "invalid-input"

    @classmethod
    def at(cls, loc: Sequence[str | int], msg: str, *, end: str = "") -> Self:
        """Return the error of one field; `end` closes its sentence."""
        return cls(f"{'.'.join(map(str, loc))}: {msg}{end}", errors=[FieldError(tuple(loc), msg)])

    @classmethod
    def of(cls, errors: Sequence[FieldError], *, most: int = MAX_ERRORS) -> Self:
        """Return the error of several fields, `most` listed: the first in a sentence, and how many others there are."""
        first, others = errors[0], len(errors) - 1
        where = ".".join(map(str, first.loc)) or "body"
        more = f" (and {others} more)" if others else ""
        return cls(f"{where}: {first.msg}{more}", errors=errors[:most])


class Malformed(BadInput):
    """The body is not valid JSON, CSV, Parquet or Arrow. `reason` is what the parser of JSON reports."""

    status = 400
    title = "Malformed body"
    code = "malformed"

    def __init__(self, detail: str, *, errors: Sequence[FieldError] = (), reason: str = "") -> None:
        super().__init__(detail, errors=errors)
        self.reason = reason


class Unauthorized(GpucastError):
    """The API key is missing, wrong or revoked; the answer does not distinguish these."""

    status = 401
    title = "Unauthorized"
    code = "unauthorized"

    def __init__(self) -> None:
        super().__init__("Send an API key: 'Authorization: Bearer KEY'.")


class Forbidden(GpucastError):
    """The key's role does not allow the request."""

    status = 403
    title = "Forbidden"
    code = "forbidden"

    def __init__(self) -> None:
        super().__init__("This API key may not do that.")


class NotFound(GpucastError):
    """Nothing has the `name`; `near` holds the closest names, `route` the part of `detail` about the HTTP interface."""

    status = 404
    title = "Not found"
    code = "not-found"

    def __init__(self, detail: str, *, near: Sequence[str] = (), name: str = "", route: str = "") -> None:
        super().__init__(detail + (f" Did you mean: {', '.join(near)}?" if near else ""))
        self.near, self.name, self.route = tuple(near), name, route


class Conflict(GpucastError):
    """The request conflicts with the current state (HTTP 409)."""

    status = 409
    title = "Conflict"
    code = "conflict"


class NotTrained(Conflict):
    """The predictor has no training data yet."""

    title = "Predictor not trained"
    code = "not-trained"


class TooLarge(GpucastError):
    """The request exceeds a stated limit."""

    status = 413
    title = "Too large"
    code = "too-large"


class UnsupportedMedia(GpucastError):
    """The media type of the body is not supported."""

    status = 415
    title = "Unsupported media type"
    code = "unsupported-media"


class TooSlow(GpucastError):
    """The request did not arrive in time."""

    status = 408
    title = "Request timeout"
    code = "request-timeout"


class HeadersTooLarge(GpucastError):
    """The request line and headers are too long."""

    status = 431
    title = "Headers too large"
    code = "headers-too-large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request line and headers are over {limit_bytes:,} bytes together.")


class Cancelled(GpucastError):
    """The caller left before the answer, or its time is over. 499 is only seen in metrics."""

    status = 499
    title = "Cancelled"
    code = "cancelled"

    def __init__(self) -> None:
        super().__init__("Nobody waits for this answer any more.")


class TimedOut(GpucastError):
    """The request took longer than allowed."""

    status = 504
    title = "Timed out"
    code = "timed-out"


class TooMany(GpucastError):
    """The caller exceeds its rate limit, or its share of what is worked on, waits or is connected."""

    status = 429
    title = "Too many requests"
    code = "too-many-requests"

    def __init__(self, detail: str, *, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Unavailable(GpucastError):
    """The database or queue is unavailable."""

    status = 503
    title = "Temporarily unavailable"
    code = "unavailable"
    retry_after_s: ClassVar[int] = 2


class StorageFull(Unavailable):
    """A disk is full; what was to be stored is not stored."""

    status = 507
    title = "Storage full"
    code = "storage-full"
    retry_after_s = 30
