"""Charts of the service's answers; `workload` is the title, a workload in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.dashboard.charts.drawing import Bar, Drawing, interval_chart, line_chart
from app.errors import BadInput
from app.services.compare.compare import figure_of
from app.services.compare.served_compare import Curves
from app.services.models.scaling import Point
from app.wire.compare_form import Compared, ComparedServing, CompareResponse, ServingCompareResponse
from app.wire.job_plan_form import JobChoice, PlanResponse, ServedChoice, ServingPlanResponse
from app.wire.prediction_form import Interval, PredictResponse
from app.wire.serving_form import ServingResponse

_UNITS = {"latency": "milliseconds", "throughput": "per second", "cost": "US dollars", "energy": "joules"}
_NAMES = {"latency": "Time", "throughput": "Throughput", "cost": "Cost", "energy": "Energy"}


def prediction_chart(answer: PredictResponse | ServingResponse, workload: str) -> Drawing:
    """Return a chart of the times on all GPUs; those of saturated loads are left out."""
    bars = [
        _bar(row.gpu, row.latency_ms, row.interval_ms)
        for row in answer.predictions
        if row.latency_ms and row.interval_ms is not None
    ]
    served = isinstance(answer, ServingResponse)
    return interval_chart(bars, title=workload, note="Time of a request" if served else "Time", x_label="milliseconds")


def ranking_chart(answer: CompareResponse, workload: str) -> Drawing:
    """Return a chart of the ranked figure; GPUs of the Pareto set are marked."""
    rank_by = answer.rank_by
    ranked = [(row, *figure_of(row, rank_by)) for row in answer.ranking]
    bars = [_bar(_named(row), figure, ends, marked=row.pareto) for row, figure, ends in ranked if figure and ends]
    return interval_chart(bars, title=workload, note=f"{_NAMES[rank_by]} (orange: Pareto set)", x_label=_UNITS[rank_by])


def plan_chart(answer: PlanResponse, workload: str) -> Drawing:
    """Return a chart of the job's time; choices that meet the goals are marked."""
    bars = [
        Bar(_named(row), row.job_s, row.job_interval_s.low, row.job_interval_s.high, row.meets)
        for row in answer.choices
    ]
    return interval_chart(bars, title=workload, note="Time of the job (orange: meets the goals)", x_label="seconds")


def served_ranking_chart(answer: ServingCompareResponse, workload: str) -> Drawing:
    """Return a chart of throughput, or of cost where that is ranked; GPUs of the Pareto set are marked."""
    name, unit = "Throughput", "output tokens per second and GPU"
    figures = [(row, row.tokens_per_s_per_gpu) for row in answer.ranking]
    if answer.rank_by == "cost_per_million_tokens":
        name, unit = "Cost", "US dollars per million output tokens"
        figures = [(row, row.cost_per_million_tokens) for row in answer.ranking]
    bars = [_bar(_named(row), figure, None, marked=row.pareto) for row, figure in figures if figure]
    return interval_chart(bars, title=workload, note=f"{name} (orange: Pareto set)", x_label=unit)


def served_plan_chart(answer: ServingPlanResponse, workload: str) -> Drawing:
    """Return a chart of the cost; choices that keep the limits are marked."""
    costs = [(row, row.cost.usd_per_hour) for row in answer.choices]
    bars = [_bar(_named(row), cost, None, marked=row.meets) for row, cost in costs if cost]
    return interval_chart(bars, title=workload, note="Cost (orange: keeps the limits)", x_label="US dollars per hour")


_OF_ANSWER: Mapping[type, Callable[[Any, str], Drawing]] = {
    PredictResponse: prediction_chart,
    ServingResponse: prediction_chart,
    CompareResponse: ranking_chart,
    PlanResponse: plan_chart,
    ServingCompareResponse: served_ranking_chart,
    ServingPlanResponse: served_plan_chart,
}


def chart_of(answer: object, workload: str) -> Drawing:
    """Return the chart of an answer to /predict, /compare or /plan. Raises BadInput where nothing can be drawn."""
    chart = _OF_ANSWER.get(type(answer))
    if chart is None:
        raise BadInput("There is no chart of rows of a table.")
    return chart(answer, workload)


def served_curves_chart(curves: Sequence[Curves], workload: str) -> Drawing:
    """Return throughput per GPU against the speed of a user, over requests in flight, a line per GPU type."""
    lines = {
        f"{one.gpu} x{one.devices}": [
            (point.tokens_per_s_per_user, point.tokens_per_s_per_gpu)
            for point in one.by_concurrency
            if point.tokens_per_s_per_user is not None
        ]
        for one in curves
    }
    drawn = {name: line for name, line in lines.items() if line}
    x_label, y_label = "output tokens per second and user", "output tokens per second and GPU"
    return line_chart(drawn, title=workload, x_label=x_label, y_label=y_label)


def scaling_chart(points: Sequence[Point], workload: str, *, over_devices: bool, strong: bool = False) -> Drawing:
    """Return a chart of throughput over devices, a line per batch size; or over the batch, on one number of devices.

    `strong`: the batch is of the whole step, not of a device. Over devices, grey lines have each curve's first
    throughput per device.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        size = f"batch {point.batch}" if strong else f"{point.batch // point.devices} each"
        name = f"{point.gpu}, {size}" if over_devices else point.gpu
        lines.setdefault(name, []).append((point.devices if over_devices else point.batch, point.throughput_per_s))
    ideal = [[(x, line[0][1] * x / line[0][0]) for x, _ in line] for line in lines.values()] if over_devices else []
    labels = (
        ("devices", "sequences or images per second, grey: ideal")
        if over_devices
        else ("batch", "sequences or images per second")
    )
    return line_chart(lines, title=workload, x_label=labels[0], y_label=labels[1], guides=ideal)


def accuracy_chart(rows: Sequence[Mapping[str, Any]], predictor: str, test_set: str) -> Drawing:
    """Return a chart of the mean errors of a predictor by family of operators, the best first.

    `rows` are of an accuracy card: `family` (or `kernel`) and `mape`, percent.
    """
    ordered = sorted((row for row in rows if row["mape"] > 0), key=lambda row: row["mape"])
    bars = [_bar(str(row.get("family") or row.get("kernel") or "all"), row["mape"], None) for row in ordered]
    return interval_chart(
        bars, title=f"{predictor}, {test_set}", note="Mean error", x_label="percent of the measured time"
    )


def _named(row: Compared | ComparedServing | JobChoice | ServedChoice) -> str:
    """Return a GPU, with the number of devices where there are several."""
    return row.gpu if row.devices == 1 else f"{row.gpu} x{row.devices}"


def _bar(name: str, figure: float, ends: Interval | None, *, marked: bool = False) -> Bar:
    return Bar(name, figure, figure if ends is None else ends.low, figure if ends is None else ends.high, marked)


_MOST = 84
# Figures of a workload, in order, and the words around them.
_FIGURES = (
    ("mode", "{}"),
    ("software", "{}"),
    ("batch", "batch {:,}"),
    ("sequence", "{:,} tokens"),
    ("input_tokens", "{:,} to"),
    ("output_tokens", "{:,} tokens"),
    ("image_size", "{:,} pixels"),
    ("frames", "{:,} frames"),
    ("dtype", "{}"),
)
_LOADS = (
    ("concurrency", "{:,} in flight"),
    ("rate_per_s", "{:g} requests/s"),
    ("burst", "{:,} at once"),
    ("trace", "recorded requests"),
)


def workload_title(workload: Mapping[str, Any]) -> str:
    """Return a workload of the API in one line: its name, how it runs, its sizes, its formats."""
    kind = workload.get("kind")
    if kind == "operators":
        parts = _operators(workload.get("operators") or [{}])
    elif kind == "kernel":
        parts = [str(workload.get("name") or "a kernel"), str(workload.get("dtype") or "fp32")]
    else:
        parts = [_name(workload), *(_worded(words, workload.get(name)) for name, words in _FIGURES)]
        parts += [_worded(words, (workload.get("load") or {}).get(name)) for name, words in _LOADS]
    text = ", ".join(part for part in parts if part).replace(" to, ", " to ")
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def _operators(operators: list[Mapping[str, Any]]) -> list[str]:
    first = operators[0]
    sizes = [f"{name} {value:g}" for name, value in first.items() if isinstance(value, int | float)]
    more = f"and {len(operators) - 1} more" if len(operators) > 1 else ""
    return [str(first.get("op", "operators")), *sizes, str(first.get("dtype", "")), more]


def _name(workload: Mapping[str, Any]) -> str:
    config = workload.get("config") or {}
    named = workload.get("name") or config.get("_name_or_path") or config.get("model_type")
    return str(named or f"a {workload.get('kind', 'workload')}")


def _worded(words: str, value: Any) -> str:
    """Return a figure in its words; empty for none, or one of another type than they are for."""
    if value is None or (":" in words and not isinstance(value, int | float)):
        return ""
    return words.format(value)
