"""A gpucast service as the measuring client uses it: uploads a measurement file, which registers an unknown device.

Works without PyTorch.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, Forbidden, GpucastError
from app.measure.output import PEAKS

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


# Rows per request; a refusal lists at most this many.
CHUNK = 1000
_REFUSED = 422


@dataclass(frozen=True, slots=True)
class FigureReport:
    """Figures of a device that a server lacked; `taken` is False if the key may not change GPUs (admin only)."""

    figures: Mapping[str, float] = field(default_factory=dict)
    taken: bool = True


@dataclass(slots=True)
class Sent:
    """Result of an upload: new rows, known rows, doubtful rows, skipped rows by reason, and registered devices."""

    inserted: int = 0
    unchanged: int = 0
    doubtful: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    added_gpus: list[str] = field(default_factory=list)


class Server(Connection):
    """A gpucast service that takes the file of a device."""

    def send(self, path: Path) -> Sent:
        """Send all rows of the file; refused rows are counted, and the others sent."""
        table, sent = pq.read_table(path), Sent()
        for start in range(0, len(table), CHUNK):
            self._send(table.slice(start, CHUNK), sent)
        return sent

    def raise_peaks(self, device: Mapping[str, Any]) -> FigureReport:
        """Raise the server's figures of a CPU that an earlier run measured lower.

        On a busy machine half of the bandwidth is measured; rows of a quiet one would then violate the hardware limit.
        """
        path = _path(device["name"])
        answer = self.ask("GET", path)
        if device.get("kind") != "cpu" or not answer.is_success or answer.json()["source"] != device["source"]:
            return FigureReport()
        known = answer.json()
        return self._change(path, {name: device[name] for name in PEAKS if device[name] > known[name]})

    def send_figures(self, gpu: str, figures: Mapping[str, float]) -> FigureReport:
        """Set the measured figures of a GPU that the server lacks."""
        if not figures:
            return FigureReport()
        known = decoded(self.ask("GET", _path(gpu)))
        return self._change(_path(gpu), {name: value for name, value in figures.items() if known.get(name) is None})

    def _change(self, path: str, figures: Mapping[str, float]) -> FigureReport:
        """Change a GPU if the key allows it; measurements need fewer rights."""
        if not figures:
            return FigureReport()
        try:
            decoded(self.ask("PATCH", path, json=figures))
        except Forbidden:
            return FigureReport(figures, taken=False)
        return FigureReport(figures)

    def _send(self, chunk: pa.Table, sent: Sent) -> None:
        answer = self._post(chunk)
        if answer.status_code == _REFUSED:
            reasons = {error["loc"][0]: error["msg"] for error in reversed(answer.json().get("errors", []))}
            wrong = {row: reason for row, reason in reasons.items() if isinstance(row, int)}
            sent.left_out.update(wrong.values())
            chunk = chunk.take([row for row in range(len(chunk)) if row not in wrong])
            if not wrong:
                raise BadInput(f"The server accepts none of the rows: {message_of(answer)}")
            if not len(chunk):
                return
            answer = self._post(chunk)
        report = decoded(answer)
        sent.inserted += report["inserted"]
        sent.unchanged += report["unchanged"]
        sent.doubtful += [doubt["msg"] for doubt in report.get("doubts", ())]
        sent.left_out.update(report["skipped"])
        sent.added_gpus += report["added_gpus"]

    def _post(self, chunk: pa.Table) -> httpx.Response:
        body = io.BytesIO()
        pq.write_table(chunk, body)
        headers = {"Content-Type": "application/vnd.apache.parquet"}
        return self.ask("POST", "/measurements", content=body.getvalue(), headers=headers)


def _path(gpu: str) -> str:
    return f"/gpus/{quote(gpu, safe='')}"
