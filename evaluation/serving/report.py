"""Tables of `gpucast evaluate serving`: errors by part, coverage of intervals, and order of deployments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import to_builtins

from app.services.serving.served_points import NEAREST, distance, shrunk
from app.tables.arrays import Floats
from app.wire.serving_form import ServedTime
from evaluation.serving.cases import Case
from evaluation.serving.outcomes import Outcome
from evaluation.serving.read_points import INFERENCEX
from evaluation.serving.study import DEPLOYMENT, HELD_OUT

FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms")
_NOTHING = (np.nan, np.nan, np.nan)
_PARTS: dict[str, Callable[[Case], str]] = {
    "source": lambda case: case.source,
    "model": lambda case: f"{case.source} {case.model}",
    "GPU": lambda case: f"{case.source} {case.gpu}",
    "format": lambda case: f"{case.source} {case.dtype}",
    "stack": lambda case: f"{case.source} {case.stack}",
    "deployment": lambda case: case.deployment,
}


class Errors(NamedTuple):
    """Relative errors of one figure, percent: mean and median of their size, mean; and points within the interval.

    held_out, held_out_median  with times of the host that were fitted without the deployment, or what is held out; NaN:
                               nothing was fitted
    """

    points: int
    mape: float
    median: float
    bias: float
    within: float
    held_out: float
    held_out_median: float


def errors(found: Sequence[Outcome], figure: str, held_out: str = DEPLOYMENT) -> Errors:
    """Return the errors of a figure of FIGURES, over what was measured and is not saturated."""
    rows = [row for one in found if (row := _row(one, figure, held_out)) is not None]
    if not rows:
        return Errors(0, *[np.nan] * 6)
    measured, mean, low, high, without = np.array(rows).T
    off, held = _percent(mean, measured), np.abs(_percent(without, measured))
    within = float(100.0 * np.mean((low <= measured) & (measured <= high)))
    known = held[np.isfinite(held)]
    apart = (float(known.mean()), float(np.median(known))) if len(known) else (np.nan, np.nan)
    size = np.abs(off)
    return Errors(len(rows), float(size.mean()), float(np.median(size)), float(off.mean()), within, *apart)


def _percent(predicted: Floats, measured: Floats) -> Floats:
    return 100.0 * (predicted / measured - 1.0)


def _row(one: Outcome, figure: str, held_out: str) -> tuple[float, float, float, float, float] | None:
    measured, time = getattr(one.case.measured, figure), getattr(one.prediction.serving, figure)
    if not np.isfinite(measured) or time is None or one.case.measured.overloaded:
        return None
    assert isinstance(time, ServedTime)
    without = one.held_out.get(held_out, _NOTHING)[FIGURES.index(figure)]
    return measured, time.mean, time.interval.low, time.interval.high, without


def shifted(found: Sequence[Outcome]) -> tuple[float, float]:
    """Return the mean error of the time per output token in percent, as predicted, and as if others were measured.

    The others are the nearest loads of the same deployment of InferenceX, as app.services.serving.served_points uses
    them.
    """
    groups: dict[str, list[Outcome]] = {}
    for one in found:
        if one.case.source == INFERENCEX and one.prediction.serving.tpot_ms is not None:
            groups.setdefault(one.case.deployment, []).append(one)
    plain, moved = [], []
    for group in groups.values():
        forms = [to_builtins(one.case.workload) for one in group]
        logs = [np.log(_tpot(one) / one.case.measured.tpot_ms) for one in group]
        for k, form in enumerate(forms):
            others = sorted((j for j in range(len(group)) if j != k), key=lambda j: distance(forms[j], form))
            plain.append(abs(np.expm1(logs[k])))
            moved.append(abs(np.expm1(logs[k] - shrunk([logs[j] for j in others[:NEAREST]]))))
    return float(100.0 * np.mean(plain)), float(100.0 * np.mean(moved))


def _tpot(one: Outcome) -> float:
    time = one.prediction.serving.tpot_ms
    assert time is not None
    return time.mean


def macro(found: Sequence[Outcome], figure: str) -> float:
    """Return the mean over InferenceX's models, GPUs and formats of the mean error of a figure of FIGURES, percent."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for one in found:
        if one.case.source == INFERENCEX:
            groups.setdefault((one.case.model, one.case.gpu, one.case.dtype), []).append(one)
    return float(np.mean([errors(group, figure).mape for group in groups.values()])) if groups else np.nan


class Order(NamedTuple):
    """Pairs of deployments under one load, and the percentage of them in the measured order.

    apart, right_apart  the same of those whose measured times differ by `APART` or more
    """

    pairs: int
    right: float
    apart: int
    right_apart: float


# Two runs of one configuration with other images differ by 11 % (serving_points); half of it is above the noise.
APART = 0.05


def order(found: Sequence[Outcome]) -> Order:
    """Return how deployments of one model at one load are ordered by time per output token."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for one in found:
        workload, time = one.case.workload, one.prediction.serving.tpot_ms
        if time is None or one.case.source != INFERENCEX:
            continue
        load = workload.load.concurrency, workload.input_tokens, workload.output_tokens
        groups.setdefault((one.case.model, *load), []).append((one.case.measured.tpot_ms, time.mean))
    pairs = [pair for group in groups.values() for pair in combinations(group, 2) if pair[0][0] != pair[1][0]]
    right = np.array([(a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs], dtype=np.bool_)
    apart = np.array([abs(np.log(a[0] / b[0])) >= APART for a, b in pairs], dtype=np.bool_)
    shares = (float(100.0 * some.mean()) if len(some) else np.nan for some in (right, right[apart]))
    every, clear = shares
    return Order(len(right), every, int(apart.sum()), clear)


def energy(found: Sequence[Outcome]) -> Floats:
    """Return the relative errors of joules per generated token, percent, of loads whose energy was measured."""
    pairs = [(one.energy_j, one.case.measured.energy_j) for one in found if one.energy_j is not None]
    predicted, measured = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    known = np.isfinite(measured)
    return _percent(predicted[known], measured[known])


def overloads(found: Sequence[Outcome]) -> tuple[int, int]:
    """Return the loads that outran their engine, and those of them that are predicted to saturate it."""
    measured = [one for one in found if one.case.measured.overloaded]
    return len(measured), sum(one.prediction.serving.saturated for one in measured)


def lines(found: Sequence[Outcome]) -> Iterator[str]:
    """Yield the tables."""
    yield "Means over requests of measured loads, error in percent: mape, median, bias; points within 80 % intervals;"
    yield "with the host's times fitted without each deployment: mape and median (InferenceX alone)."
    for part, by in _PARTS.items():
        yield ""
        yield f"{part:46}{'points':>7} {'':2}{'TPOT':<38}{'':2}{'TTFT':<38}{'':2}{'E2E':<20}"
        for name in dict.fromkeys(sorted(by(one.case) for one in found)):
            alike = [one for one in found if by(one.case) == name]
            yield _line(name, alike)
    yield from _held_out_lines(found)
    pairs = order(found)
    yield ""
    yield f"pairs of deployments of InferenceX in order of time per output token: {pairs.right:.1f} % of {pairs.pairs}"
    yield f"those whose times differ by {100 * APART:.0f} % or more: {pairs.right_apart:.1f} % of {pairs.apart}"
    yield f"mean over models, GPUs and formats of InferenceX: TPOT {macro(found, 'tpot_ms'):.1f} %"
    plain, moved = shifted(found)
    yield f"TPOT of InferenceX with the nearest other loads of each deployment measured: {plain:.1f} -> {moved:.1f} %"
    off = energy(found)
    if len(off):
        size = np.abs(off)
        yield (
            f"energy per token: mape {size.mean():.1f}, median {np.median(size):.1f}, bias {off.mean():.1f} %,"
            f" {len(off)} loads"
        )
    many, told = overloads(found)
    yield f"loads that outran their engine: {many}, predicted to saturate it: {told}"


def held_out(found: Sequence[Outcome]) -> Iterator[tuple[str, Errors, Errors]]:
    """Yield what was held out, if hosts were fitted, and errors of TPOT and TTFT where something was left to fit to."""
    for name in HELD_OUT if any(one.held_out for one in found) else ():
        known = [one for one in found if name in one.held_out]
        yield name, errors(known, "tpot_ms", name), errors(known, "ttft_ms", name)


def _held_out_lines(found: Sequence[Outcome]) -> Iterator[str]:
    for name, *figures in held_out(found):
        tpot, ttft = (f"{one.held_out:.1f} mean, {one.held_out_median:.1f} median" for one in figures)
        yield f"hosts fitted without each {name:10} TPOT {tpot}; TTFT {ttft}; {figures[0].points} loads"


def _line(name: str, found: Sequence[Outcome]) -> str:
    ttft, tpot, e2e = (errors(found, figure) for figure in FIGURES)
    return f"{name:46}{len(found):7}{_figures(tpot)}{_figures(ttft)}{e2e.mape:8.1f}{e2e.median:6.1f}{e2e.bias:7.1f}"


def _figures(found: Errors) -> str:
    held_out = "" if np.isnan(found.held_out) else f"{found.held_out:7.1f}{found.held_out_median:6.1f}"
    return f"{found.mape:8.1f}{found.median:6.1f}{found.bias:7.1f}{found.within:5.0f}{held_out:>13} "
