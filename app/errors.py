"""Every failure that a caller can see.

GpucastError (500)
|-- BadInput (422)            a field is wrong; `errors` says which and why
|   `-- Malformed (400)       the body cannot be parsed at all
|-- Unauthorized (401)        no key, or none that opens anything
|-- Forbidden (403)           a key that may do less
|-- NotFound (404)            `near` lists close names
|-- Conflict (409)            the thing exists, or is not ready yet
|   `-- NotTrained (409)      a predictor without training data; names the import command
|-- TooLarge (413)            says the limit
|-- UnsupportedMedia (415)    lists the accepted types
|-- TooMany (429)             over the rate limit; carries Retry-After
|-- TimedOut (504)            took longer than a request may
`-- Unavailable (503)         the database or queue is away; carries Retry-After
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

# Wrong fields that one answer tells of.
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: `loc` is its path in the request, `msg` what to send instead."""

    loc: tuple[str | int, ...]
    msg: str


class GpucastError(Exception):
    """Base of all errors that are told to the caller."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    code: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)


class BadInput(GpucastError):
    """Well-formed, but a field's value cannot be."""

    status = 422
    title = "Invalid input"
    code = "invalid-input"


class Malformed(BadInput):
    """Not JSON, CSV, Parquet or Arrow at all."""

    status = 400
    title = "Malformed body"
    code = "malformed"


class Unauthorized(GpucastError):
    """No key, or one that is wrong or revoked: the answer does not say which."""

    status = 401
    title = "Unauthorized"
    code = "unauthorized"

    def __init__(self) -> None:
        super().__init__("Send an API key: 'Authorization: Bearer KEY'.")


class Forbidden(GpucastError):
    """A key whose role is short of what was asked."""

    status = 403
    title = "Forbidden"
    code = "forbidden"

    def __init__(self) -> None:
        super().__init__("This API key may not do that.")


class NotFound(GpucastError):
    """No such thing; `near` holds the closest names."""

    status = 404
    title = "Not found"
    code = "not-found"

    def __init__(self, detail: str, *, near: Sequence[str] = ()) -> None:
        super().__init__(detail + (f" Did you mean: {', '.join(near)}?" if near else ""))
        self.near = tuple(near)


class Conflict(GpucastError):
    """In the way of the present state."""

    status = 409
    title = "Conflict"
    code = "conflict"


class NotTrained(Conflict):
    """A predictor that has no data yet."""

    title = "Predictor not trained"
    code = "not-trained"


class TooLarge(GpucastError):
    """Over a stated limit."""

    status = 413
    title = "Too large"
    code = "too-large"


class UnsupportedMedia(GpucastError):
    """A body in a form that is not read here."""

    status = 415
    title = "Unsupported media type"
    code = "unsupported-media"


class TimedOut(GpucastError):
    """Longer at work than a request may be."""

    status = 504
    title = "Timed out"
    code = "timed-out"


class TooMany(GpucastError):
    """More requests than the rate limit admits."""

    status = 429
    title = "Too many requests"
    code = "too-many-requests"

    def __init__(self, detail: str, *, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Unavailable(GpucastError):
    """The database or queue does not answer."""

    status = 503
    title = "Temporarily unavailable"
    code = "unavailable"
    retry_after_s: ClassVar[int] = 2
