"""Charts of a served model: throughput per GPU against speed per user, and time to first token against the rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.services.compare.served_curves import Curves, Limits, LoadPoint
from app.services.pages.curve_chart import Axis, Chart, Dot, Line, apart, line_of, mark, rule
from app.services.pages.format_figures import short, time

# A limit widens its axis if it is within this many times of what is drawn; an interval's end does up to so many times.
_NEAR, _BEYOND = 3.0, 1.3


def speed_chart(curves: Sequence[Curves], limits: Limits, names: Callable[[Curves], str], best: str) -> Chart | None:
    """Return tokens a second per GPU against those per user, over requests in flight; None without points.

    `best` is the GPU type whose mark says its cost.
    """
    drawn = [(one, dots) for one in curves if (dots := [*map(_speed_dot, _with_speed(one))])]
    if not drawn:
        return None
    limit = None if limits.tpot_ms is None else 1e3 / limits.tpot_ms
    x = _axis("tokens/s per user", [[(dot.x, dot.x_ends) for dot in dots] for _, dots in drawn], limit)
    y = _axis("tokens/s per GPU", [[(dot.y, dot.y_ends) for dot in dots] for _, dots in drawn], None)
    lines = [line_of(x, y, dots, names(one), "last") for one, dots in drawn]
    rules = [] if limit is None else rule(x, "x", limit, f"TPOT {time(limits.tpot_ms)}")
    marks = [
        mark(
            x,
            y,
            (point.tokens_per_s_per_user, point.tokens_per_s_per_gpu),
            _worth(point) if one.gpu == best else "",
            line,
            rising=False,
        )
        for line, (one, _) in enumerate(drawn)
        if (point := one.best) is not None and point.tokens_per_s_per_user is not None
    ]
    return Chart(x, y, apart(lines), rules, marks)


def first_token_chart(
    curves: Sequence[Curves], limits: Limits, names: Callable[[Curves], str], best: str
) -> Chart | None:
    """Return the time to first token at the limits' percentile against the rate; None without points."""
    drawn = [(one, [_rate_dot(point, limits) for point in one.by_rate]) for one in curves if one.by_rate]
    if not drawn:
        return None
    x = _axis("requests per second", [[(dot.x, dot.x_ends) for dot in dots] for _, dots in drawn], None)
    y = _axis(
        f"TTFT p{limits.percentile}, ms", [[(dot.y, dot.y_ends) for dot in dots] for _, dots in drawn], limits.ttft_ms
    )
    lines: list[Line] = [line_of(x, y, dots, names(one), "last") for one, dots in drawn]
    rules = [] if limits.ttft_ms is None else rule(y, "y", limits.ttft_ms, f"TTFT {time(limits.ttft_ms)}")
    marks = [
        mark(x, y, (point.load, point.ttft_at_ms), _worth(point) if one.gpu == best else "", line, rising=True)
        for line, (one, _) in enumerate(drawn)
        if (point := one.best) is not None
    ]
    return Chart(x, y, apart(lines), rules, marks)


def _axis(title: str, lines: Sequence[Sequence[tuple[float, tuple[float, float]]]], limit: float | None) -> Axis:
    """Return the axis of all lines and a limit that is near; of powers where lines end far apart."""
    values = [value for line in lines for value, _ in line]
    least, most = min(values) / _BEYOND, _BEYOND * max(values)
    values += [max(end, least) for line in lines for _, (end, _) in line]
    values += [min(end, most) for line in lines for _, (_, end) in line]
    if limit is not None and limit <= _NEAR * most:
        values.append(limit)
    return Axis.over(title, values, [max(value for value, _ in line) for line in lines])


def _with_speed(one: Curves) -> list[LoadPoint]:
    return [point for point in one.by_concurrency if point.tokens_per_s_per_user is not None]


def _speed_dot(point: LoadPoint) -> Dot:
    speed, each = point.tokens_per_s_per_user or 0.0, point.tokens_per_s_per_gpu
    ends, around = point.tokens_per_s_per_user_interval, point.tokens_per_s_per_gpu_interval
    text = f"{point.load:g} in flight: {short(each)} tokens/s per GPU, {short(speed)} tokens/s per user"
    return Dot(
        speed,
        each,
        (speed, speed) if ends is None else (ends.low, ends.high),
        (each, each) if around is None else (around.low, around.high),
        text,
    )


def _rate_dot(point: LoadPoint, limits: Limits) -> Dot:
    ends, at = point.ttft_at_interval_ms, point.ttft_at_ms
    text = f"{short(point.load)} requests/s: TTFT p{limits.percentile} {time(at)}"
    return Dot(point.load, at, (point.load, point.load), (ends.low, ends.high), text)


def _worth(point: LoadPoint) -> str:
    """Return what a million tokens cost at a point, or the tokens of a GPU where no price is known."""
    if point.cost_per_million_tokens is None:
        return f"{short(point.tokens_per_s_per_gpu)} tokens/s"
    return f"{point.cost_per_million_tokens:.2f} USD"
