"""Orders of GPUs as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.evaluation.ranking import Order, calibration, correlation
from app.services.compare.likelihood import CORRELATION

GOAL = 0.9


def mean_tau(found: Sequence[Order]) -> float:
    """Kendall's tau, the mean over models."""
    return float(np.mean([order.tau for order in found]))


def lines(found: Sequence[Order]) -> list[str]:
    """A line per model, their mean, and how often an order that was said to be so likely was right."""
    head = f"{'model':<14}{'mode':<7}{'sequence':>9}{'batch':>7}{'GPUs':>6}{'tau':>8}"
    text = ["Order of GPUs, each left out in turn: Kendall's tau of predicted with measured", head]
    for one in found:
        text.append(f"{one.model:<14}{one.mode:<7}{one.sequence:>9}{one.batch:>7}{len(one.answers):>6}{one.tau:>8.3f}")
    text += [f"mean over {len(found)}: {mean_tau(found):.3f} (goal {GOAL})", ""]
    text.append(f"{'P(faster) said':<18}{'pairs':>6}{'mean said':>11}{'right':>8}")
    for bin_ in calibration(found):
        span = f"{bin_.low:.1f} to {bin_.high:.1f}"
        text.append(f"{span:<18}{bin_.pairs:>6}{bin_.stated:>11.2f}{bin_.right:>8.2f}")
    text.append(f"correlation of errors of two GPUs: {correlation(found):.2f}; taken: {CORRELATION:g}")
    return text


def body(found: Sequence[Order]) -> dict[str, Any]:
    """Everything as JSON."""
    models = [
        {
            **{name: getattr(one, name) for name in ("model", "mode", "sequence", "batch", "tau")},
            "gpus": [
                {
                    "gpu": answer.gpu,
                    "measured_ms": answer.measured_ms,
                    "predicted_ms": answer.latency_ms,
                    "low_ms": answer.interval_ms.low,
                    "high_ms": answer.interval_ms.high,
                }
                for answer in one.answers
            ],
        }
        for one in found
    ]
    bins = [one._asdict() for one in calibration(found)]
    return {
        "study": "ranking",
        "mean_tau": mean_tau(found),
        "correlation": correlation(found),
        "bins": bins,
        "models": models,
    }
