"""uvicorn's request and answer, with a short way for the usual head of an answer.

uvicorn searches the name and the value of every header, its own too, for characters that are not allowed: a tenth of
the time of a prediction. Here names, and uvicorn's own headers, are checked and rendered once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

Headers = list[tuple[bytes, bytes]]

_LENGTH = b"content-length"
# Headers that change how the answer is sent.
_SPECIAL = (b"connection", b"transfer-encoding")
# Names are few: this bounds what a handler that makes them up would leave behind.
_MOST_NAMES = 1000
_names: dict[bytes, bytes] = {}


class UsualAnswer(RequestResponseCycle):
    """A request and its answer. Heads with a length, on connections that stay open, take the short way."""

    _rendered: tuple[Headers, bytes | None] = ([], b"")  # uvicorn's headers, a new list every second, as lines

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]  # what is done at once is no coroutine
        """Send a part of the answer."""
        if message["type"] == "http.response.start" and self._is_usual():
            headers, own = message.get("headers", ()), self._own_lines()
            length = _length(headers)
            if length is not None and own is not None:
                lines = [STATUS_LINE[message["status"]], own, *_lines(headers), b"\r\n"]
                self.response_started, self.waiting_for_100_continue = True, False
                self.chunked_encoding, self.expected_content_length = False, length
                self.transport.write(b"".join(lines))
                return _DONE
        return super().send(message)

    def answer(self, lines: bytes, body: bytes) -> bool:
        """Send a whole answer of status 200 whose checked head has these `lines`.

        False, and nothing is sent, if the connection closes after it, does not take more at once, or is gone.
        """
        own = self._own_lines() if self._is_usual() else None
        if own is None:
            return False
        self.response_started = self.response_complete = True
        self.transport.write(b"".join((STATUS_LINE[200], own, lines, b"\r\n", body)))
        self.message_event.set()
        self.on_response()
        self.on_response = _nothing  # it refers to the connection, which refers to this
        return True

    def _is_usual(self) -> bool:
        ready = not (self.response_started or self.disconnected or self.flow.write_paused)
        return ready and self.keep_alive and not self.access_log

    def _own_lines(self) -> bytes | None:
        """Return the headers that uvicorn adds; None if they change how the answer is sent."""
        headers, lines = UsualAnswer._rendered
        if headers is not self.default_headers:
            headers = self.default_headers
            special = any(name.lower() in (_LENGTH, *_SPECIAL) for name, _ in headers)
            lines = None if special else b"".join(_lines(headers))
            UsualAnswer._rendered = headers, lines
        return lines


class _Done:
    """Something to await that is done."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


def _nothing() -> None:
    """Do nothing."""


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the length of the body; None if it is not given, or if other headers say how to send it."""
    length = None
    for name, value in headers:
        if name in _SPECIAL or not name.islower():
            return None
        if name == _LENGTH and length is None:
            length = int(value)
    return length


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return parts of the lines. Raises RuntimeError for characters that are not allowed."""
    parts: list[bytes] = []
    for name, value in headers:
        if HEADER_VALUE_RE.search(value):
            raise RuntimeError("Invalid HTTP header value.")
        parts += (_names.get(name) or _name(name), value, b"\r\n")
    return parts


def _name(name: bytes) -> bytes:
    """Return a checked name as it stands in a line."""
    if HEADER_RE.search(name):
        raise RuntimeError("Invalid HTTP header name.")
    shown = name.lower() + b": "
    if len(_names) < _MOST_NAMES:
        _names[name] = shown
    return shown
