"""Where a figure and its interval stand in the answers of the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple


class NoFigure(Exception):
    """The answer has no such figure, or the request was refused; the text says why."""


class Figure(NamedTuple):
    """A predicted figure and the ends of its interval of 80 %."""

    predicted: float
    low: float
    high: float

    def plus(self, times: float, other: Figure) -> Figure:
        """Return the sum with `times` another, whose errors are taken for equal in sign."""
        return Figure(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))


class Reading(NamedTuple):
    """How a figure is read: the route that answers, and where it stands in the answer."""

    route: str
    figure: Callable[[Mapping[str, Any]], Figure]


def _latency(answer: Mapping[str, Any]) -> Figure:
    row = answer["predictions"][0]
    interval = row["interval_ms"]
    return _checked(row["latency_ms"], interval["low"], interval["high"])


def _latency_if_fits(answer: Mapping[str, Any]) -> Figure:
    """Return the time of what ran at once. Raises NoFigure where it does not fit, as it ran in waves."""
    if not answer["predictions"][0]["memory"]["fits"]:
        raise NoFigure("it does not fit at once, so it ran in waves")
    return _latency(answer)


def _served(name: str, statistic: str) -> Callable[[Mapping[str, Any]], Figure]:
    def figure(answer: Mapping[str, Any]) -> Figure:
        time = answer["predictions"][0]["serving"].get(name)
        if time is None:
            raise NoFigure("it is called saturated")
        scale = time[statistic] / time["mean"]  # the interval is that of the mean
        return _checked(time[statistic], scale * time["interval"]["low"], scale * time["interval"]["high"])

    return figure


def _throughput(answer: Mapping[str, Any]) -> Figure:
    """Return output tokens a second, whose interval is that of a request's time, turned over."""
    serving = answer["predictions"][0]["serving"]
    rate, time = serving["output_tokens_per_s"], serving["e2e_ms"]
    if time is None:
        raise NoFigure("it is called saturated")
    return _checked(rate, rate * time["mean"] / time["interval"]["high"], rate * time["mean"] / time["interval"]["low"])


def _memory(part: str = "") -> Callable[[Mapping[str, Any]], Figure]:
    """Return how GiB of a device are read, all or a part of them; memory has no interval."""

    def figure(answer: Mapping[str, Any]) -> Figure:
        memory = answer["predictions"][0]["memory"]
        gib = (memory["breakdown"][part] if part else memory["required_bytes"]) / 2**30
        return _checked(gib, gib, gib)

    return figure


def _energy(answer: Mapping[str, Any]) -> Figure:
    row = answer["ranking"][0]
    if row.get("energy_j") is None or row.get("energy_interval_j") is None:
        raise NoFigure("the power is unknown")
    return _checked(row["energy_j"], row["energy_interval_j"]["low"], row["energy_interval_j"]["high"])


def _checked(predicted: float, low: float, high: float) -> Figure:
    if not (0.0 < low <= predicted <= high and isfinite(high)):
        raise NoFigure(f"{predicted} in an interval of {low} to {high}")
    return Figure(predicted, low, high)


READINGS: Mapping[str, Reading] = {
    "latency": Reading("/predict", _latency),
    "latency if fits": Reading("/predict", _latency_if_fits),
    "tpot": Reading("/predict", _served("tpot_ms", "mean")),
    "tpot median": Reading("/predict", _served("tpot_ms", "p50")),
    "ttft": Reading("/predict", _served("ttft_ms", "mean")),
    "ttft median": Reading("/predict", _served("ttft_ms", "p50")),
    "e2e": Reading("/predict", _served("e2e_ms", "mean")),
    "throughput": Reading("/predict", _throughput),
    "memory": Reading("/predict", _memory()),
    "weights": Reading("/predict", _memory("weights_bytes")),
    "kv cache": Reading("/predict", _memory("kv_cache_bytes")),
    "energy": Reading("/compare", _energy),
}
