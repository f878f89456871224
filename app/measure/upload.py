"""Sending a file of measurements to a server, which registers the device from it where it does not know its name."""

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

# A refusal tells of this many rows at most.
CHUNK = 1000
TIMEOUT_S = 300.0
_UNAUTHORIZED, _FORBIDDEN, _REFUSED, _BROKEN = 401, 403, 422, 500


@dataclass(frozen=True, slots=True)
class FigureReport:
    """Figures of a device that a server lacked, and whether it has them now: changing a GPU takes an admin's key."""

    figures: Mapping[str, float] = field(default_factory=dict)
    taken: bool = True


@dataclass(slots=True)
class Sent:
    """What became of the rows: new to the server, there already, or left out, by reason; and the devices registered."""

    inserted: int = 0
    unchanged: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    added_gpus: list[str] = field(default_factory=list)


class Server:
    """A gpucast service; `key` is its API key, where it wants one. Failures are GpucastError with its words."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S)

    def ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The answer; a server that is away, broken or wants a key raises, Forbidden where this one may do less."""
        try:
            answer = self._client.request(method, path, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise GpucastError(f"{self._client.base_url} does not answer: {error}") from error
        if answer.status_code == _FORBIDDEN:
            raise Forbidden
        if answer.status_code >= _BROKEN or answer.status_code == _UNAUTHORIZED:
            raise GpucastError(f"{path}: {words(answer)}")
        return answer

    def greet(self) -> None:
        """Ask it anything: one that is away or wants another key is better known before there is much to send."""
        self.ask("GET", "/predictors")

    def send(self, path: Path) -> Sent:
        """Every row of the file; those that the server refuses are counted, and the others sent."""
        table, sent = pq.read_table(path), Sent()
        for start in range(0, len(table), CHUNK):
            self._send(table.slice(start, CHUNK), sent)
        return sent

    def raise_peaks(self, device: Mapping[str, Any]) -> FigureReport:
        """Raise what the server has of a CPU that was registered by a run that saw less.

        A busy machine shows half of its bandwidth, and then no row of a quiet one could be true.
        """
        path = _path(device["name"])
        answer = self.ask("GET", path)
        if device.get("kind") != "cpu" or not answer.is_success or answer.json()["source"] != device["source"]:
            return FigureReport()
        known = answer.json()
        return self._change(path, {name: device[name] for name in PEAKS if device[name] > known[name]})

    def send_figures(self, gpu: str, figures: Mapping[str, float]) -> FigureReport:
        """Set those measured figures of a GPU that the server does not have."""
        if not figures:
            return FigureReport()
        known = sound(self.ask("GET", _path(gpu)))
        return self._change(_path(gpu), {name: value for name, value in figures.items() if known.get(name) is None})

    def _change(self, path: str, figures: Mapping[str, float]) -> FigureReport:
        """Change a GPU, where the key may: measurements are taken from others too."""
        if not figures:
            return FigureReport()
        try:
            sound(self.ask("PATCH", path, json=figures))
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
                raise BadInput(f"The server takes none of the rows: {words(answer)}")
            if not len(chunk):
                return
            answer = self._post(chunk)
        report = sound(answer)
        sent.inserted += report["inserted"]
        sent.unchanged += report["unchanged"]
        sent.left_out.update(report["skipped"])
        sent.added_gpus += report["added_gpus"]

    def _post(self, chunk: pa.Table) -> httpx.Response:
        body = io.BytesIO()
        pq.write_table(chunk, body)
        headers = {"Content-Type": "application/vnd.apache.parquet"}
        return self.ask("POST", "/measurements", content=body.getvalue(), headers=headers)


def _path(gpu: str) -> str:
    return f"/gpus/{quote(gpu, safe='')}"


def sound(answer: httpx.Response) -> Any:
    """The decoded body of a success; GpucastError with the server's words otherwise."""
    if not answer.is_success:
        raise GpucastError(words(answer))
    return answer.json()


def words(answer: httpx.Response) -> str:
    """What the server says is wrong."""
    try:
        problem = answer.json()
        errors = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.get("errors", [])[:5]]
        return " ".join([problem["detail"], *errors])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
