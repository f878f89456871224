"""A gpucast service as the measuring client uses it: the plan that it has for a device, and the upload of a file."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, Forbidden, Malformed
from measure.connection import Connection, decoded, from_json, message_of, of_gpucast, printable
from measure.device import Device
from measure.operators_suite import is_measured, point_of
from measure.output import PEAKS
from measure.point import Point

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
    """A gpucast service that takes the file of a device, which it adds to its GPUs where it is unknown."""

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
        if device.get("kind") != "cpu" or not answer.is_success:
            return FigureReport()
        known = decoded(answer)
        with of_gpucast():
            higher = {name: device[name] for name in PEAKS if device[name] > known[name]}
            return self._change(path, higher if known["source"] == device["source"] else {})

    def send_figures(self, gpu: str, figures: Mapping[str, float]) -> FigureReport:
        """Set the measured figures of a GPU that the server lacks."""
        if not figures:
            return FigureReport()
        known = decoded(self.ask("GET", _path(gpu)))
        with of_gpucast():
            missing = {name: value for name, value in figures.items() if known.get(name) is None}
        return self._change(_path(gpu), missing)

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
            with of_gpucast():
                errors = from_json(answer.content).get("errors", [])
                reasons = {error["loc"][0]: printable(error["msg"]) for error in reversed(errors)}
            wrong = {row: reason for row, reason in reasons.items() if isinstance(row, int)}
            sent.left_out.update(wrong.values())
            chunk = chunk.take([row for row in range(len(chunk)) if row not in wrong])
            if not wrong:
                raise BadInput(f"The server accepts none of the rows: {message_of(answer)}")
            if not len(chunk):
                return
            answer = self._post(chunk)
        report = decoded(answer)
        with of_gpucast():
            sent.inserted += int(report["inserted"])
            sent.unchanged += int(report["unchanged"])
            sent.doubtful += [printable(doubt["msg"]) for doubt in report.get("doubts", ())]
            sent.left_out.update({printable(reason): int(count) for reason, count in report["skipped"].items()})
            sent.added_gpus += map(printable, report["added_gpus"])

    def _post(self, chunk: pa.Table) -> httpx.Response:
        body = io.BytesIO()
        pq.write_table(chunk, body)
        headers = {"Content-Type": "application/vnd.apache.parquet"}
        return self.ask("POST", "/measurements", content=body.getvalue(), headers=headers)


def _path(gpu: str) -> str:
    return f"/gpus/{quote(gpu, safe='')}"


def planned(server: Server, device: Device, workload: Path | None) -> tuple[list[Point], list[str]]:
    """Return the points of GET /gpus/{name}/plan, best first, for the workload in a JSON file if given.

    Also returns operator and format of planned rows that a single process cannot measure on this device.
    """
    path = f"{_path(device.name)}/plan"
    if workload is None:
        plan = decoded(server.ask("GET", path))
    else:
        plan = decoded(server.ask("POST", path, json={"workload": _read(workload)}))
    with of_gpucast():
        return _points(plan, device)


def saved(path: Path, device: Device) -> tuple[list[Point], list[str]]:
    """Return the same of a plan's JSON answer in a file, for a machine that reaches no server."""
    try:
        return _points(_read(path), device)
    except (AttributeError, KeyError, TypeError) as error:
        raise Malformed(f"{path} is not an answer of GET /gpus/{{name}}/plan.") from error


def _points(plan: Any, device: Device) -> tuple[list[Point], list[str]]:
    """Return a plan's points, and the planned rows that are not measured here."""
    rows = [_whole(item["workload"]) for item in plan["measurements"]]
    mine = [row["dtype"] in device.dtypes and is_measured(row) for row in rows]
    points = [point_of(device, {"kind": "operator", **row}) for row in compress(rows, mine)]
    return points, [f"{row['op']} {row['dtype']}" for row, is_mine in zip(rows, mine, strict=True) if not is_mine]


def _whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with integer sizes and this machine's stack."""
    whole = {name: int(cell) if isinstance(cell, float) and cell.is_integer() else cell for name, cell in row.items()}
    return {name: cell for name, cell in whole.items() if name != "software"}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Malformed(f"{path} is not a readable JSON file: {error}") from error
