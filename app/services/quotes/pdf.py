"""Render a saved answer as a report of one or two A4 pages: question, recommendation, table, picture, assumptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from app.services.quotes.reproduce import Derived
from app.store.quotes import Saved

Row = Mapping[str, Any]

# Limits of two pages; the JSON has everything.
MOST_ROWS, MOST_BARS, MOST_LINES, MOST_ASSUMED = 24, 12, 6, 60
_LONGEST = 60  # characters of an assumption
_BAR_MM, _NAME_MM = 88.0, 62.0


class _Column(NamedTuple):
    """A column of the table: head, width as a share, and the text of a row."""

    head: str
    width: int
    text: Callable[[Row], str]


def as_pdf(saved: Saved, derived: Derived, link: str = "") -> bytes:
    """Return the report, with the versions behind its figures and whether they are reproduced; `link` leads to it."""
    from fpdf import FPDF  # noqa: PLC0415 - 0.3 s and 20 MB that only this needs

    request, answer = json.loads(saved.request), json.loads(saved.answer)
    rows = answer[{"predict": "predictions", "compare": "ranking", "plan": "choices"}[saved.kind]]
    served = request["workload"]["kind"] == "serving"
    page = FPDF(format="A4")
    page.set_creation_date(saved.created_at)
    page.set_margin(15)
    page.set_title(f"gpucast report {saved.id}")
    page.add_page()
    _text(page, _question(saved.kind, request), 15, "B")
    _text(page, _recommendation(saved.kind, answer, rows, served=served), 11)
    _table(page, _columns(saved.kind, answer, served=served), rows)
    _picture(page, *_figure_of(saved.kind, request, rows, served=served))
    _text(page, "Assumptions", 10, "B")
    _text(page, "; ".join([*_assumptions(request), *_price(rows)]), 8)
    _text(page, "Where it comes from", 10, "B")
    for line in [*_about(saved), *([f"This answer: {link}"] if link else []), *_verdict(derived)]:
        _text(page, line, 8)
    return bytes(page.output())


def _question(kind: str, request: Row) -> str:
    workload = request["workload"]
    what = workload.get("name") or ("a pasted model" if workload.get("config") else f"{workload['kind']} workload")
    heading = {"predict": "Prediction for", "compare": "GPUs compared for", "plan": "Plan for"}[kind]
    load = workload.get("load") or {}
    rate = [f"{load[name]:g} {unit}" for name, unit in _LOADS.items() if load.get(name)]
    if trace := load.get("trace"):
        rate.append(f"{len(trace['arrival_s']):,} recorded requests")
    tokens = [f"{workload[name]:g} tokens {way}" for name, way in _TOKENS.items() if workload.get(name) is not None]
    step = [f"{workload[name]:g} {unit}" for name, unit in _STEP.items() if workload.get(name)]
    return ", ".join(
        [f"{heading} {what}", *([workload["mode"]] if workload.get("mode") else []), *step, *tokens, *rate]
    )


_LOADS = {"rate_per_s": "requests per second", "concurrency": "requests in flight", "burst": "requests at once"}
_STEP = {"batch": "samples", "sequence": "tokens each"}
_TOKENS = {"input_tokens": "in", "output_tokens": "out"}


def _recommendation(kind: str, answer: Row, rows: Sequence[Row], *, served: bool) -> str:
    if not rows:
        return "No GPU of these can run it."
    first = rows[0]
    if kind == "predict":
        if "interval_ms" not in first or first["interval_ms"] is None or served:
            return f"{len(rows)} GPU type{'s' if len(rows) > 1 else ''} predicted."
        return f"{first['gpu']}: {_figure(first['latency_ms'])} ms, {_span(first['interval_ms'])} ms."
    if kind == "compare":
        return f"{_devices(first)} is first by {answer['rank_by'].replace('_', ' ')}."
    sure = "" if first["probability"] is None else f" with a probability of {first['probability']:.0%}"
    if answer["best"] is None:
        return f"None meets all limits; {_devices(first)} comes closest{sure}."
    cost = first["cost"]["usd_per_hour"] if served else first["cost_usd"]
    price = "" if cost is None else f" for {cost:,.2f} USD{' an hour' if served else ''}"
    return f"{_devices(first)}{price} meets the limits{sure}."


def _columns(kind: str, answer: Row, *, served: bool) -> list[_Column]:
    devices = _Column("GPUs", 44, _devices)
    if served:
        percentile = f"p{answer['percentile']:g}" if kind == "plan" else "mean"
        ttft, tpot = (_Column(f"{n.upper()} {percentile}, ms", 18, _time(f"{n}_ms", percentile)) for n in _TIMES)
        rate = _Column("Most req/s", 17, lambda row: _figure(row["serving"]["highest_rate_per_s"]))
        each = _Column("Tokens/s/GPU", 19, lambda row: _figure(row["serving"]["output_tokens_per_s_per_gpu"]))
        if kind == "predict":
            return [devices, ttft, tpot, rate, each]
        dollars = _Column("USD/1M tokens", 20, lambda row: _figure(row["cost"]["cost_per_million_tokens"]))
        split = _Column("Split", 22, _split)
        if kind == "compare":
            return [devices, split, ttft, tpot, rate, each, dollars]
        hourly = _Column("USD/h", 15, lambda row: _figure(row["cost"]["usd_per_hour"]))
        return [devices, split, _MET, _SURE, ttft, tpot, rate, hourly, dollars]
    if kind == "predict":
        return [_Column("GPU", 44, _devices), *_PREDICTED]
    ms = "step_ms" if kind == "plan" else "latency_ms"
    span = "step_interval_ms" if kind == "plan" else "interval_ms"
    figures = [
        _Column("ms", 20, lambda row: _figure(row[ms])),
        _Column("Interval, ms", 34, lambda row: _span(row[span])),
    ]
    costs = [_Column(head, 20, lambda row, name=name: _figure(row[name])) for head, name in _COSTS]  # type: ignore[misc]
    return [devices, *figures, *([_MET, _SURE] if kind == "plan" else []), *costs]


_TIMES = ("ttft", "tpot")
_COSTS = (("USD", "cost_usd"), ("J", "energy_j"))
_MET = _Column("Limits", 15, lambda row: "met" if row["meets"] else "missed")
_SURE = _Column("Sure", 12, lambda row: "" if row["probability"] is None else f"{row['probability']:.0%}")


def _time(name: str, percentile: str) -> Callable[[Row], str]:
    return lambda row: "" if row["serving"][name] is None else _figure(row["serving"][name].get(percentile))


def _split(row: Row) -> str:
    """Return an engine's split, and how many engines there are."""
    split = row["parallelism"]
    ways = [f"{name[0].upper()}P{split[name]}" for name in ("tensor", "pipeline", "expert") if split[name] > 1]
    return " ".join([*ways, *([f"x {split['replicas']}"] if split["replicas"] > 1 else [])]) or "1"


def _predicted(row: Row) -> list[str]:
    """Return time, interval, bound and support; of columns (kind operator_table) only the number of rows."""
    if "interval_ms" not in row:
        return [f"{len(row['latency_ms']):,} rows", "in the JSON", "", ""]
    return [_figure(row["latency_ms"]), _span(row["interval_ms"]), row["bound"], row["support"]]


_PREDICTED = [
    _Column(head, width, lambda row, k=k: _predicted(row)[k])  # type: ignore[misc]
    for k, (head, width) in enumerate((("ms", 24), ("Interval, ms", 44), ("Bound", 28), ("Support", 28)))
]


def _table(page: Any, columns: Sequence[_Column], rows: Sequence[Row]) -> None:
    page.set_font("Helvetica", "", 8)
    widths = [column.width for column in columns]
    align = ["LEFT", *["RIGHT"] * (len(columns) - 1)]
    with page.table(col_widths=widths, text_align=align, borders_layout="HORIZONTAL_LINES", line_height=4.6) as table:
        table.row([column.head for column in columns])
        for row in rows[:MOST_ROWS]:
            table.row([_latin(column.text(row)) for column in columns])
    if len(rows) > MOST_ROWS:
        _text(page, f"and {len(rows) - MOST_ROWS} more, in the JSON", 8)
    page.ln(3)


def _figure_of(kind: str, request: Row, rows: Sequence[Row], *, served: bool) -> tuple[str, list[tuple[str, Any, Any]]]:
    """Return the title of the picture, and name, value and interval of each bar."""
    if kind == "plan" and served and any(row["cost"]["usd_per_hour"] is not None for row in rows):
        return "USD an hour", [(_devices(row), row["cost"]["usd_per_hour"], None) for row in rows]
    if served:
        title = "Generated tokens per second of a GPU"
        return title, [(_devices(row), row["serving"]["output_tokens_per_s_per_gpu"], None) for row in rows]
    name, span = ("step_ms", "step_interval_ms") if kind == "plan" else ("latency_ms", "interval_ms")
    drawn = [row for row in rows if span in row]
    title = f"Milliseconds, with the interval that holds {request['coverage']:.0%} of true times"
    return title, [(_devices(row), row[name], row[span]) for row in drawn]


def _picture(page: Any, title: str, bars: Sequence[tuple[str, Any, Any]]) -> None:
    """Draw bars with their intervals."""
    known = [bar for bar in bars if bar[1] is not None][:MOST_BARS]
    if not known or page.will_page_break(9 + 6 * len(known)):
        return
    _text(page, title, 10, "B")
    page.set_font("Helvetica", "", 8)
    most = max(value if span is None else span["high"] for _, value, span in known) or 1.0
    for name, value, span in known:
        x, y = page.l_margin + _NAME_MM, page.get_y()
        page.cell(_NAME_MM, 5, _latin(name, 38))
        page.set_fill_color(133, 182, 177)
        page.rect(x, y + 0.8, _BAR_MM * value / most, 3.4, style="F")
        if span is not None:
            page.line(x + _BAR_MM * span["low"] / most, y + 2.5, x + _BAR_MM * span["high"] / most, y + 2.5)
        end = value if span is None else span["high"]
        page.text(x + _BAR_MM * end / most + 2, y + 3.6, f"{value:,.4g}")
        page.ln(5.6)
    page.ln(2)


def _assumptions(request: Row) -> list[str]:
    """Return what the request sets, each as its name and value."""
    lines = [f"{name.replace('_', ' ')} {value}" for name, value in _leaves(request, "") if name != "save"]
    return lines[:MOST_ASSUMED]


def _price(rows: Sequence[Row]) -> list[str]:
    """Return where the price of the first GPU comes from."""
    cost = rows[0].get("cost", rows[0]) if rows else {}
    source = cost.get("price_source")
    return [f"price of {rows[0]['gpu']} {_figure(cost['price_usd_per_hour'])} USD an hour: {source}"] if source else []


def _leaves(value: Row, before: str) -> Iterator[tuple[str, str]]:
    for name, one in value.items():
        if one is None or one in ({}, []) or one is False:
            continue
        if isinstance(one, dict) and len(one) < 40 and name != "config":
            yield from _leaves(one, "" if name == "workload" else f"{before}{name}.")
        else:
            text = ", ".join(map(str, one)) if isinstance(one, list) else str(one)
            yield f"{before}{name}", text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _about(saved: Saved) -> list[str]:
    versions = saved.versions
    by = [f"{pin['predictor']} {pin['version']}" for pin in versions["predictors"]]
    return [
        f"Saved {saved.created_at:%Y-%m-%d %H:%M:%S %Z} from POST /{saved.kind}, as number {saved.id}; gpucast"
        f" {versions['code']}, catalogue revision {versions['revision']}; predictors: {', '.join(by)}."
    ]


def _devices(row: Row) -> str:
    devices = row.get("devices") or 1
    return str(row["gpu"]) if devices == 1 else f"{devices} x {row['gpu']}"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _span(interval: Row | None) -> str:
    return "saturated" if interval is None else f"{interval['low']:.4g} to {interval['high']:.4g}"


def _verdict(derived: Derived) -> list[str]:
    if derived.unchanged is None:
        lines = [f"Cannot be reproduced: {reason}" for reason in derived.gone]
    elif derived.unchanged:
        lines = ["Reproduced from the versions above: unchanged."]
    else:
        lines = ["Reproduced from the versions above, with differences:"]
        lines += [f"{item.path}: was {item.saved}, is {item.now}" for item in derived.differences]
    return [*lines[:MOST_LINES], *(f"Since then: {change}" for change in derived.since[:MOST_LINES])]


def _text(page: Any, text: str, size: int, style: str = "") -> None:
    """Write a paragraph over the width of the page."""
    page.set_font("Helvetica", style, size)
    page.multi_cell(0, size * 0.5, _latin(text, 4_000), new_x="LMARGIN", new_y="NEXT", align="L")
    page.ln(1.5)


def _latin(text: str, most: int = 110) -> str:
    """Return the text as one line in the characters of the core fonts."""
    shown = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else " " for c in shown).encode("latin-1", "replace").decode("latin-1")
