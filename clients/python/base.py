"""Typed client of the gpucast service, made from its OpenAPI document by `make client`.

Needs httpx alone. Times are milliseconds, sizes bytes, rates per second, unless a field's name says otherwise.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx


class GpucastProblem(Exception):
    """An answer that is none: what was wrong, as RFC 9457 has it; `errors` names the fields."""

    def __init__(self, answer: httpx.Response, reason: str | None = None) -> None:
        """`reason`: why an answer that claims success cannot be read."""
        problem = _problem(answer) if reason is None else {"detail": reason}
        detail = "".join(letter if letter.isprintable() else " " for letter in problem["detail"][:_LONGEST_TEXT])
        super().__init__(f"{answer.status_code}: {detail}")
        self.status = answer.status_code
        self.problem = problem
        errors = problem.get("errors")
        self.errors: list[dict[str, Any]] = [
            error for error in (errors if isinstance(errors, list) else []) if _names_field(error)
        ]


# Characters of a problem's text that are kept.
_LONGEST_TEXT = 2000


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """Return what RFC 9457 has of an answer; of any other answer, its text as `detail`."""
    with suppress(ValueError, RecursionError):
        problem = answer.json()
        if isinstance(problem, dict) and isinstance(problem.get("detail"), str):
            return problem
    return {"detail": answer.content[: 4 * _LONGEST_TEXT].decode("utf-8", "replace")}


def _names_field(error: object) -> bool:
    return isinstance(error, dict) and isinstance(error.get("loc"), list) and isinstance(error.get("msg"), str)


def _quoted(value: object) -> str:
    """Return a part of a path. Raises ValueError for one with which the path would be another."""
    if str(value) in ("", ".", ".."):
        raise ValueError(f"{value!r} names nothing")
    return quote(str(value), safe="")


def _json(answer: httpx.Response) -> Any:
    """Return the decoded answer. Raises GpucastProblem if it is not JSON."""
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise GpucastProblem(answer, f"the answer is not JSON that can be read: {error}") from error


class Gpucast:
    """One service. Methods are its operations, their bodies and answers as JSON has them; GpucastProblem otherwise.

    Raises httpx.HTTPError if the service cannot be reached, or takes longer than `timeout_s`, which is the limit of
    each wait and of reading one answer. Answers of over `most_bytes` are refused. Redirects are not followed.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout_s: float = 300.0,
        most_bytes: int = 2**28,
    ) -> None:
        headers = {"Accept-Encoding": "identity"}  # what unpacks has no bound
        if key is not None:
            if not (key.strip().isascii() and key.strip().isprintable()):
                raise ValueError("the key has characters that no key has")  # httpx would show it in its error
            headers["Authorization"] = f"Bearer {key.strip()}"
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._timeout_s, self._most_bytes = timeout_s, most_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _send(
        self, method: str, path: str, *, body: object = None, query: dict[str, Any] | None = None
    ) -> httpx.Response:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        with self._client.stream(method, path, json=body, params=given) as received:
            answer = self._whole(received)
        if not answer.is_success:
            raise GpucastProblem(answer)
        return answer

    def _whole(self, received: httpx.Response) -> httpx.Response:
        """Return an answer with its content, UTF-8. Raises GpucastProblem if it is too large, httpx.ReadTimeout."""
        if received.headers.get("content-encoding", "identity") != "identity":
            raise GpucastProblem(
                httpx.Response(received.status_code), "the answer is compressed, which was not allowed"
            )
        parts, size, ends = [], 0, time.monotonic() + self._timeout_s
        for part in received.iter_raw():
            parts.append(part)
            size += len(part)
            if size > self._most_bytes:
                raise GpucastProblem(
                    httpx.Response(received.status_code), f"the answer has over {self._most_bytes} bytes"
                )
            if time.monotonic() > ends:
                raise httpx.ReadTimeout(f"no whole answer within {self._timeout_s:g} s", request=received.request)
        return httpx.Response(received.status_code, content=b"".join(parts))
