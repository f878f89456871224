"""Errors on whole workloads that others measured, as the last `gpucast evaluate scorecard --docs` recorded them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from app.config import CHECKOUT

_RECORD = CHECKOUT / "evaluation" / "records" / "scorecard.json"


@cache
def whole_workloads() -> list[dict[str, Any]]:
    """Return the recorded cells, worst first; none where this installation has no record."""
    if not _RECORD.is_file():
        return []
    cells: list[dict[str, Any]] = json.loads(_RECORD.read_text("utf-8"))["cells"]
    return cells
