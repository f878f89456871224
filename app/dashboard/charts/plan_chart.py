"""The Pareto set of a plan as a line chart: tokens per second of a GPU against those of a user, a line per GPU type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.dashboard.charts.page_curves import MOST_LINES, Axis, Chart, Dot, apart, line_of, path_of, rule
from app.dashboard.format_figures import short
from app.services.compare.units import duration
from app.wire.job_plan_form import ParetoPoint


def pareto_chart(points: Sequence[ParetoPoint], tpot_ms: float | None, name_of: Callable[[str], str]) -> Chart | None:
    """Return the chart of the points, the quickest first, with the limit on the time per token; None without points."""
    if not points:
        return None
    limit = [] if tpot_ms is None else [1e3 / tpot_ms]
    speeds, rates = ([getattr(one, f"tokens_per_s_per_{whose}") for one in points] for whose in ("user", "gpu"))
    x, y = Axis.over("tokens/s per user", [*speeds, *limit], speeds), Axis.over("tokens/s per GPU", rates, rates)
    gpus = list(dict.fromkeys(one.gpu for one in points))[:MOST_LINES]
    lines = [line_of(x, y, [_dot(one, name_of) for one in points if one.gpu == gpu], name_of(gpu)) for gpu in gpus]
    rules = [one for value in limit for one in rule(x, "x", value, f"TPOT {duration(tpot_ms)}")]
    return Chart(x, y, apart(lines), rules, [], path_of(x, y, zip(speeds, rates, strict=True)))


def _dot(one: ParetoPoint, name_of: Callable[[str], str]) -> Dot:
    speed, each = one.tokens_per_s_per_user, one.tokens_per_s_per_gpu
    name = f"{one.devices} x {name_of(one.gpu)}, {one.concurrency} in flight"
    text = f"{name}: {short(each)} tokens/s per GPU, {short(speed)} tokens/s per user"
    return Dot(speed, each, (speed, speed), (each, each), text)
