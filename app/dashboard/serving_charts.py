"""Charts of a served model: throughput per GPU against speed per user, and time to first token against the rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.dashboard.curve_chart import Axis, Chart, Dot, Rule, apart, line_of, mark, rule
from app.dashboard.format_figures import short, time
from app.services.compare.served_curves import Curves, Limits, LoadPoint

# A limit widens its axis if it is within this many times of what is drawn; an interval's end does up to so many times.
_NEAR, _BEYOND = 3.0, 1.3


class _Drawn(NamedTuple):
    """The line of a GPU type: its points, and where its ring is."""

    curves: Curves
    dots: list[Dot]
    ring: tuple[float, float] | None


def speed_chart(curves: Sequence[Curves], limits: Limits, names: Callable[[Curves], str], best: str) -> Chart | None:
    """Return tokens a second per GPU against those per user, over requests in flight; None without points.

    `best` is the GPU type whose ring says its cost.
    """
    drawn = []
    for one in curves:
        dots = [_speed_dot(point) for point in one.by_concurrency if point.tokens_per_s_per_user is not None]
        speed = None if one.best is None else one.best.tokens_per_s_per_user
        ring = None if one.best is None or speed is None else (speed, one.best.tokens_per_s_per_gpu)
        drawn += [_Drawn(one, dots, ring)] if dots else []
    if not drawn:
        return None
    rings = [one.ring for one in drawn if one.ring is not None]
    limit = [] if limits.tpot_ms is None else [1e3 / limits.tpot_ms]
    x = _axis(
        "tokens/s per user",
        [[(dot.x, dot.x_ends) for dot in one.dots] for one in drawn],
        [*limit, *(at for at, _ in rings)],
    )
    y = _axis("tokens/s per GPU", [[(dot.y, dot.y_ends) for dot in one.dots] for one in drawn], [at for _, at in rings])
    rules = [one for value in limit for one in rule(x, "x", value, f"TPOT {time(limits.tpot_ms)}")]
    return _chart(x, y, drawn, rules, names, best, rising=False)


def first_token_chart(
    curves: Sequence[Curves], limits: Limits, names: Callable[[Curves], str], best: str
) -> Chart | None:
    """Return the time to first token at the limits' percentile against the rate; None without points."""
    drawn = [
        _Drawn(
            one,
            [_rate_dot(point, limits) for point in one.by_rate],
            None if one.best is None else (one.best.load, one.best.ttft_at_ms),
        )
        for one in curves
        if one.by_rate
    ]
    if not drawn:
        return None
    limit = [] if limits.ttft_ms is None else [limits.ttft_ms]
    title = f"TTFT p{limits.percentile}, ms"
    x = _axis("requests per second", [[(dot.x, dot.x_ends) for dot in one.dots] for one in drawn], [])
    y = _axis(title, [[(dot.y, dot.y_ends) for dot in one.dots] for one in drawn], limit, whole=True)
    rules = [one for value in limit for one in rule(y, "y", value, f"TTFT {time(value)}")]
    return _chart(x, y, drawn, rules, names, best, rising=True)


def _chart(
    x: Axis,
    y: Axis,
    drawn: Sequence[_Drawn],
    rules: Sequence[Rule],
    names: Callable[[Curves], str],
    best: str,
    *,
    rising: bool,
) -> Chart:
    lines = [line_of(x, y, one.dots, names(one.curves)) for one in drawn]
    marks = [
        mark(x, y, one.ring, _worth(one.curves.best) if one.curves.gpu == best else "", line, rising=rising)
        for line, one in enumerate(drawn)
        if one.ring is not None and one.curves.best is not None
    ]
    return Chart(x, y, apart(lines), rules, marks)


def _axis(
    title: str,
    lines: Sequence[Sequence[tuple[float, tuple[float, float]]]],
    besides: Sequence[float],
    *,
    whole: bool = False,
) -> Axis:
    """Return the axis of lines, values with their intervals, and of values `besides`, unless these are far off.

    It is of powers where lines end far apart; `whole`: or where one is long.
    """
    values = [value for line in lines for value, _ in line]
    least, most = min(values) / _BEYOND, _BEYOND * max(values)
    ends = [max(end, least) for line in lines for _, (end, _) in line]
    ends += [min(end, most) for line in lines for _, (_, end) in line]
    near = [value for value in besides if value <= _NEAR * most]
    compared = values + near if whole else [max(value for value, _ in line) for line in lines]
    return Axis.over(title, values + ends + near, compared)


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
