"""Typed client of the gpucast service, made from its OpenAPI document by `make client`.

Needs httpx alone. Times are milliseconds, sizes bytes, rates per second, unless a field's name says otherwise.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx


class GpucastProblem(Exception):
    """An answer that is none: what was wrong, as RFC 9457 has it; `errors` names the fields."""

    def __init__(self, answer: httpx.Response) -> None:
        is_problem = answer.headers.get("content-type") == "application/problem+json"
        told: dict[str, Any] = answer.json() if is_problem else {"detail": answer.text}
        super().__init__(f"{answer.status_code}: {told['detail']}")
        self.status = answer.status_code
        self.problem = told
        self.errors: list[dict[str, Any]] = told.get("errors", [])


def _quoted(value: object) -> str:
    return quote(str(value), safe="")


class Gpucast:
    """One service. Methods are its operations, their bodies and answers as JSON has them; GpucastProblem otherwise."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, key: str | None = None, timeout_s: float = 300.0) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)

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
        answer = self._client.request(method, path, json=body, params=given)
        if not answer.is_success:
            raise GpucastProblem(answer)
        return answer
