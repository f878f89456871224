"""Connection to a gpucast service, which works without PyTorch."""

from __future__ import annotations

from typing import Any

import httpx

from app.errors import Forbidden, GpucastError

TIMEOUT_S = 300.0
_UNAUTHORIZED, _FORBIDDEN, _BROKEN = 401, 403, 500


class Connection:
    """A gpucast service; `key` is its API key, if needed. Failures raise GpucastError with the server's message."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Return the response; raises GpucastError on connection and server errors, Forbidden for missing rights."""
        try:
            answer = self._client.request(method, path, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise GpucastError(f"{self._client.base_url} does not answer: {error}") from error
        if answer.status_code == _FORBIDDEN:
            raise Forbidden
        if answer.status_code >= _BROKEN or answer.status_code == _UNAUTHORIZED:
            raise GpucastError(f"{path}: {message_of(answer)}")
        return answer

    def greet(self) -> None:
        """Check connection and key before measuring."""
        self.ask("GET", "/predictors")


def decoded(answer: httpx.Response) -> Any:
    """Return the decoded body of a success; else raises GpucastError with the server's message."""
    if not answer.is_success:
        raise GpucastError(message_of(answer))
    return answer.json()


def message_of(answer: httpx.Response) -> str:
    """Return the server's error message."""
    try:
        problem = answer.json()
        errors = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.get("errors", [])[:5]]
        return " ".join([problem["detail"], *errors])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
