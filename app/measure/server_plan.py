"""A server's measurement plan for this device, requested or saved, as points."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.errors import Malformed
from app.measure.device import Device
from app.measure.operators_suite import is_measured, point_of
from app.measure.point import Point
from app.measure.server import Server, decoded


def planned(server: Server, device: Device, workload: Path | None) -> tuple[list[Point], list[str]]:
    """Return the points of GET /gpus/{name}/plan, best first, for the workload in a JSON file if given.

    Also returns operator and format of planned rows that a single process cannot measure on this device.
    """
    path = f"/gpus/{quote(device.name, safe='')}/plan"
    if workload is None:
        plan = decoded(server.ask("GET", path))
    else:
        plan = decoded(server.ask("POST", path, json={"workload": _read(workload)}))
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
