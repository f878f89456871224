"""uvicorn's request and answer, with short ways for the usual ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

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


# Longer pieces are sent as they come: for them one call more is nothing.
_MOST_HELD = 65_536


class JoinedWrites:
    """A transport that holds a piece until the next one comes, or until the event loop's next turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.set_protocol, self.abort = transport.set_protocol, transport.abort

    def write(self, data: bytes) -> None:
        """Send the piece with the one that is held, or hold it."""
        held, self._held = self._held, None
        if held is not None:
            self._transport.writelines((held, data))
        elif len(data) > _MOST_HELD:
            self._transport.write(data)
        else:
            self._held = data
            self._loop.call_soon(self._send)

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self._send()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait for the caller to take them."""
        return self._transport.get_write_buffer_size() + len(self._held or b"")

    def _send(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():  # the caller may have left meanwhile
            self._transport.write(held)
