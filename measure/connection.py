"""Connection to a gpucast service, which works without PyTorch, and the limits of what any server may send."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from app.errors import Forbidden, GpucastError

TIMEOUT_S = 300.0
_UNAUTHORIZED, _FORBIDDEN, _BROKEN = 401, 403, 500
# The longest answer in bytes, and the longest text of one that is shown.
_MOST_BYTES, _LONGEST_TEXT = 2**26, 1000
# What is packed could unpack without a bound.
PLAIN = {"Accept-Encoding": "identity"}


class Content:
    """The content of one answer, part by part as it comes. Adding raises httpx.ReadError beyond the limits."""

    def __init__(self, *, seconds: float = TIMEOUT_S, most_bytes: int = _MOST_BYTES) -> None:
        self._ends, self._most = time.monotonic() + seconds, most_bytes
        self._parts = list[bytes]()
        self._size = 0

    def add(self, part: bytes) -> None:
        """Add a part."""
        self._size += len(part)
        if self._size > self._most:
            raise httpx.ReadError(f"the answer has over {self._most} bytes")
        if time.monotonic() > self._ends:
            raise httpx.ReadTimeout("the answer has no end")
        self._parts.append(part)

    @property
    def whole(self) -> bytes:
        """All parts."""
        return b"".join(self._parts)


class Connection:
    """A gpucast service; `key` is its API key, if needed. Failures raise GpucastError with the server's message."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = PLAIN | ({"Authorization": f"Bearer {key.strip()}"} if key else {})
        self._client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Return the response; raises GpucastError on connection and server errors, Forbidden for missing rights."""
        try:
            with self._client.stream(method, path, **content) as received:
                parts = Content(seconds=TIMEOUT_S)
                for part in received.iter_raw():
                    parts.add(part)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise GpucastError(f"{self._client.base_url} does not answer: {error}") from error
        answer = httpx.Response(received.status_code, content=parts.whole)
        if answer.status_code == _FORBIDDEN:
            raise Forbidden
        if answer.status_code >= _BROKEN or answer.status_code == _UNAUTHORIZED:
            raise GpucastError(f"{path}: {message_of(answer)}")
        return answer

    def greet(self) -> None:
        """Check connection and key before measuring."""
        self.ask("GET", "/predictors")


def from_json(content: bytes) -> Any:
    """Return the value of JSON. Raises ValueError for any other content."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def printable(text: str) -> str:
    """Return the beginning of a text of a server without characters that a terminal obeys."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_TEXT])


def decoded(answer: httpx.Response) -> Any:
    """Return the decoded body of a success; else raises GpucastError with the server's message."""
    if not answer.is_success:
        raise GpucastError(message_of(answer))
    try:
        content = from_json(answer.content)
    except ValueError as error:
        raise GpucastError(f"The answer is not JSON that can be read: {error}") from error
    return content


@contextmanager
def of_gpucast() -> Iterator[None]:
    """Raise GpucastError where an answer that is read inside lacks what gpucast's have."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise GpucastError("The answer is not one of gpucast's: is this its address?") from error


def message_of(answer: httpx.Response) -> str:
    """Return the server's error message."""
    try:
        problem = from_json(answer.content)
        errors = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.get("errors", [])[:5]]
        return printable(" ".join([problem["detail"], *errors]))
    except (AttributeError, ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
