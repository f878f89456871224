"""Lines of the changelog about predictions that left their own interval."""

from __future__ import annotations

from typing import Any

from tests.frozen.answers import Answers
from tests.frozen.moved import moved


def answers(**times_ms: float) -> Answers:
    """Answers of one prediction each, with an interval of half to twice of 10 ms."""
    found = Answers()
    for name, ms in times_ms.items():
        coverage = 0.5 if name == "narrow" else 0.8
        interval = {"low": 5.0, "high": 20.0, "coverage": coverage}
        found.add(name, {"predictions": [{"gpu": "nvidia-l4", "latency_ms": ms, "interval_ms": interval}]})
    return found


def test_predictions_that_left_their_interval_are_listed() -> None:
    body: dict[str, Any] = {"workload": {"kind": "model", "name": "gpt2", "batch": 4, "software": None}}
    old = answers(slower=10.0, within=10.0, narrow=10.0, gone=10.0)
    new = answers(slower=21.0, within=19.0, narrow=40.0, added=3.0)
    assert [*moved(old, new, {"slower": body})] == ["- gpt2, batch 4 on nvidia-l4: 10 ms (5 to 20) is 21 ms."]
