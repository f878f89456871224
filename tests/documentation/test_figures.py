"""Figures of shortened answers and of printed lines are brought up to date where they differ in three digits."""

from __future__ import annotations

import json

from tests.documentation.figures import updated_json, updated_line

SHOWN = """{"predictions": [{"gpu": "h100", "latency_ms": 66.4, "interval_ms": {"low": 44.0, ...},
  "fits": true, "tiers": [1, ..., 9]}, {"gpu": "l4", "latency_ms": 812}], "id": 1}"""
ANSWER = {
    "predictions": [
        {
            "gpu": "h100",
            "latency_ms": 79.46,
            "interval_ms": {"low": 44.01, "high": 90.0},
            "fits": True,
            "tiers": [1, 2, 3],
        },
        {"gpu": "l4", "latency_ms": 1241.4},
    ],
    "id": 7,
}


def test_figures_of_shortened_json_follow_the_answer() -> None:
    today = updated_json(SHOWN, json.dumps(ANSWER))
    assert today == SHOWN.replace("66.4", "79.5").replace("812", "1241")
    assert updated_json(today, json.dumps(ANSWER)) == today


def test_figures_of_printed_lines_follow_the_output() -> None:
    shown = "  1 a100    17.7 min    0.6347"
    assert updated_line(shown, "1 a100    25.4 min    0.9120") == "  1 a100    25.4 min    0.9120"
    assert updated_line(shown, "1 a100    17.71 min    0.6349") == shown
    assert updated_line("takes 3 s, ...", "takes 4 s, and more") == "takes 3 s, ..."
