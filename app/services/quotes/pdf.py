"""Render a saved answer as a one-page PDF."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.services.quotes.reproduce import Derived
from app.store.quotes import Saved

# Limits of an A4 page; the JSON has everything.
MOST_ROWS = 24
MOST_LINES = 6
_LINE_LENGTH = 110
_WIDTHS = (58, 26, 48, 28, 30)
_NAMES = {
    "predict": ("GPU", "ms", "interval, ms", "bound", "support"),
    "compare": ("GPU", "ms", "interval, ms", "USD", "J"),
    "plan": ("GPU", "ms a step", "interval, ms", "goals", "probability"),
}


def as_pdf(saved: Saved, derived: Derived) -> bytes:
    """Return one A4 page with the figures, their versions, and whether they are reproduced."""
    from fpdf import FPDF  # noqa: PLC0415 - 0.3 s and 20 MB that only this needs

    answer = json.loads(saved.answer)
    page = FPDF(format="A4")
    page.set_creation_date(saved.created_at)
    page.set_auto_page_break(auto=False)
    page.set_title(f"gpucast prediction {saved.id}")
    page.add_page()
    page.set_font("Helvetica", "B", 16)
    page.cell(0, 10, f"gpucast prediction {saved.id}", new_x="LMARGIN", new_y="NEXT")
    page.set_font("Helvetica", "", 9)
    for line in _about(saved):
        page.cell(0, 5, _latin(line), new_x="LMARGIN", new_y="NEXT")
    page.ln(4)
    _table(page, saved.kind, answer)
    page.ln(4)
    for line in _verdict(derived):
        page.cell(0, 5, _latin(line), new_x="LMARGIN", new_y="NEXT")
    return bytes(page.output())


def _about(saved: Saved) -> list[str]:
    request, versions = json.loads(saved.request), saved.versions
    by = [f"{pin['predictor']} {pin['version']}" for pin in versions["predictors"]]
    return [
        f"Saved {saved.created_at:%Y-%m-%d %H:%M:%S %Z} from POST /{saved.kind}; gpucast {versions['code']}, catalogue"
        f" revision {versions['revision']}",
        f"Workload: {json.dumps(request['workload'])}",
        f"Predictor: {', '.join(by)}; intervals hold {request['coverage']:.0%} of true times",
    ]


def _table(page: Any, kind: str, answer: Mapping[str, Any]) -> None:
    cells, name = _CELLS[kind]
    rows = answer[name]
    page.set_font("Helvetica", "B", 9)
    _line(page, _NAMES[kind])
    page.set_font("Helvetica", "", 9)
    for row in rows[:MOST_ROWS]:
        _line(page, cells(row))
    if len(rows) > MOST_ROWS:
        page.cell(0, 5, f"and {len(rows) - MOST_ROWS} more, in the JSON", new_x="LMARGIN", new_y="NEXT")


def _predicted(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a prediction; of columns (kind operator_table) only the number of rows."""
    if "interval_ms" not in row:
        return [row["gpu"], f"{len(row['latency_ms']):,} rows", "in the JSON", "", ""]
    if row["interval_ms"] is None:
        return [row["gpu"], "saturated", "", row["bound"], row["support"]]
    return [row["gpu"], _figure(row["latency_ms"]), _span(row["interval_ms"]), row["bound"], row["support"]]


def _compared(row: Mapping[str, Any]) -> list[str]:
    if "serving" in row:
        rate = _figure(row["tokens_per_s_per_gpu"])
        return [
            _devices(row),
            _figure(row["latency_ms"]),
            f"{rate} tokens/s/GPU",
            _figure(row["cost_per_million_tokens"]),
            "",
        ]
    cost, energy = _figure(row["cost_usd"]), _figure(row["energy_j"])
    return [_devices(row), _figure(row["latency_ms"]), _span(row["interval_ms"]), cost, energy]


def _chosen(row: Mapping[str, Any]) -> list[str]:
    goals, probability = "met" if row["meets"] else "missed", _figure(row["probability"])
    if "serving" in row:
        hourly = _figure(row["cost"]["usd_per_hour"])
        return [_devices(row), f"{hourly} USD/h", "", goals, probability]
    return [_devices(row), _figure(row["step_ms"]), _span(row["step_interval_ms"]), goals, probability]


_CELLS = {
    "predict": (_predicted, "predictions"),
    "compare": (_compared, "ranking"),
    "plan": (_chosen, "choices"),
}


def _devices(row: Mapping[str, Any]) -> str:
    return str(row["gpu"]) if row["devices"] == 1 else f"{row['devices']} x {row['gpu']}"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _span(interval: Mapping[str, float]) -> str:
    return f"{interval['low']:.4g} to {interval['high']:.4g}"


def _line(page: Any, cells: Sequence[str]) -> None:
    for width, text in zip(_WIDTHS, cells, strict=True):
        page.cell(width, 6, _latin(text, most=width // 2), border="B")
    page.ln()


def _verdict(derived: Derived) -> list[str]:
    if derived.unchanged is None:
        lines = [f"Cannot be reproduced: {reason}" for reason in derived.gone]
    elif derived.unchanged:
        lines = ["Reproduced from the versions above: unchanged."]
    else:
        lines = ["Reproduced from the versions above, with differences:"]
        lines += [f"{item.path}: was {item.saved}, is {item.now}" for item in derived.differences]
    return [*lines[:MOST_LINES], *(f"Since then: {change}" for change in derived.since[:MOST_LINES])]


def _latin(text: str, most: int = _LINE_LENGTH) -> str:
    """Return the text as one line in the characters of the core fonts."""
    shown = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else " " for c in shown).encode("latin-1", "replace").decode("latin-1")
