"""Predictions that moved by more than their own 80 % interval between two releases, as lines of the changelog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.frozen.answers import Answers

COVERAGE = 0.8
# What tells a workload apart, in this order: by the value alone, and with the field's name.
_PLAIN = ("name", "op", "mode", "dtype", "software")
_NAMED = ("batch", "sequence", "image_size", "input_tokens", "output_tokens")


def moved(old: Answers, new: Answers, bodies: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per prediction whose time left the interval that it had; `bodies` are the requests by name."""
    for name, answer in new.answers.items():
        before = {each["gpu"]: each for each in _predictions(old.answers.get(name))}
        for after in _predictions(answer):
            was = before.get(after["gpu"])
            if was is None or not _timed(was) or not _timed(after):
                continue
            low, high = was["interval_ms"]["low"], was["interval_ms"]["high"]
            if not low <= after["latency_ms"] <= high:
                text = f"{was['latency_ms']:.4g} ms ({low:.4g} to {high:.4g}) is {after['latency_ms']:.4g} ms"
                yield f"- {_described(name, bodies.get(name))} on {after['gpu']}: {text}."


def _predictions(answer: Any) -> list[Any]:
    found = answer.get("predictions") if isinstance(answer, Mapping) else None
    return found if isinstance(found, list) else []


def _timed(prediction: Mapping[str, Any]) -> bool:
    interval = prediction.get("interval_ms")
    return bool(interval) and interval.get("coverage") == COVERAGE and bool(prediction.get("latency_ms"))


def _described(name: str, body: Any) -> str:
    workload = body.get("workload") if isinstance(body, Mapping) else None
    if not isinstance(workload, Mapping) or workload.keys().isdisjoint(_PLAIN):
        return name
    kind = ["served"] if workload.get("kind") == "serving" else []
    plain = [str(workload[field]) for field in _PLAIN if isinstance(workload.get(field), str)]
    named = [f"{field} {workload[field]}" for field in _NAMED if isinstance(workload.get(field), int | float)]
    return ", ".join((*kind, *plain, *named))
