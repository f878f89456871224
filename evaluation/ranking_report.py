"""Report of the evaluation of orders of GPUs: text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.bands.log_normal import CORRELATION
from evaluation.ranking import Order, calibration, correlation

GOAL = 0.9


def mean_tau(every: Sequence[Order]) -> float:
    """Return Kendall's tau, the mean over models."""
    return float(np.mean([order.tau for order in every]))


def lines(every: Sequence[Order]) -> list[str]:
    """Return a line per model, the mean, and the calibration of the probabilities of the orders."""
    head = f"{'model':<14}{'mode':<7}{'sequence':>9}{'batch':>7}{'GPUs':>6}{'tau':>8}"
    text = ["Order of GPUs, each left out in turn: Kendall's tau of predicted with measured", head]
    for order in every:
        text.append(
            f"{order.model:<14}{order.mode:<7}{order.sequence:>9}{order.batch:>7}{len(order.gpus):>6}{order.tau:>8.3f}"
        )
    text += [f"mean over {len(every)}: {mean_tau(every):.3f} (goal {GOAL})", ""]
    text.append(f"{'P(faster) stated':<18}{'pairs':>6}{'mean stated':>13}{'right':>8}")
    for bin_ in calibration(every):
        span = f"{bin_.low:.1f} to {bin_.high:.1f}"
        text.append(f"{span:<18}{bin_.pairs:>6}{bin_.stated:>13.2f}{bin_.right:>8.2f}")
    text.append(f"correlation of errors of two GPUs: {correlation(every):.2f}; assumed: {CORRELATION:g}")
    return text


def body(every: Sequence[Order]) -> dict[str, Any]:
    """Return the JSON record."""
    models = [
        {
            **{name: getattr(order, name) for name in ("model", "mode", "sequence", "batch", "tau")},
            "gpus": [
                {
                    "gpu": ranked.gpu,
                    "measured_ms": ranked.measured_ms,
                    "predicted_ms": ranked.latency_ms,
                    "low_ms": ranked.interval_ms.low,
                    "high_ms": ranked.interval_ms.high,
                }
                for ranked in order.gpus
            ],
        }
        for order in every
    ]
    bins = [bin_._asdict() for bin_ in calibration(every)]
    return {
        "study": "ranking",
        "mean_tau": mean_tau(every),
        "correlation": correlation(every),
        "bins": bins,
        "models": models,
    }
