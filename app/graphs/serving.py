"""Serving figures from the times of single steps: closed forms, with their definitions beside the numbers.

A batch of requests of `prompt` tokens is prefilled in one step, which also makes its first token; each later token is
a decode step of the whole batch, whose context is one longer than the one before. A decode step's time is affine in
the context (weights are read once, keys and values grow), so a few sampled contexts give the mean exactly enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from app.tables.workload import Floats

DEFINITIONS: Mapping[str, str] = {
    "ttft_ms": "time to first token: the prefill step of the whole batch on an idle server, without queueing",
    "tpot_ms": "time per output token: the mean decode step over output tokens 2 to the last; 0 where there is one",
    "request_ms": "TTFT + (output tokens - 1) x TPOT",
    "tokens_per_s": "output tokens of the whole batch over the time of the request, all replicas together",
    "decode_tokens_per_s": "batch / TPOT while decoding, all replicas together",
    "requests_per_s": "requests of the batch over the time of the request, all replicas together",
}


class Serving(NamedTuple):
    """Figures of DEFINITIONS on g GPUs, float64 [g] each: seconds, and rates per second."""

    ttft_s: Floats
    tpot_s: Floats
    request_s: Floats
    tokens_per_s: Floats
    decode_tokens_per_s: Floats
    requests_per_s: Floats


_SAMPLES = 3  # decode steps that are predicted; the others lie on lines between them


def decode_contexts(prompt: int, output: int) -> list[int]:
    """Contexts (keys seen, the new token included) of which to predict decode steps: first to last, evenly spread."""
    if output < 2:
        return []
    contexts = np.linspace(prompt + 1, prompt + output - 1, min(_SAMPLES, output - 1))
    return sorted({round(context) for context in contexts.tolist()})


def serving(prefill_s: Floats, decode_s: Floats, contexts: list[int], *, batch: int, output: int) -> Serving:
    """Figures for `batch` requests (over all replicas) of `output` tokens out.

    prefill_s [g] is the prefill step, decode_s [samples, g] the decode steps at `contexts` (decode_contexts); between
    them time is taken as linear.
    """
    tpot = _mean(decode_s, contexts, output)
    request = prefill_s + (output - 1) * tpot
    decoding = np.divide(float(batch), tpot, out=np.zeros_like(tpot), where=tpot > 0)
    return Serving(prefill_s, tpot, request, batch * output / request, decoding, batch / request)


def _mean(decode_s: Floats, contexts: list[int], output: int) -> Floats:
    """Mean over every context from the first to the last of the line through the samples, [g]."""
    if output < 2:
        return np.zeros(decode_s.shape[1])
    x, n = np.array(contexts, dtype=np.float64), float(output - 1)
    if len(x) == 1:
        only: Floats = decode_s[0]
        return only
    # Sums of whole numbers between the samples, each piece a line: every token belongs to the piece that ends at or
    # behind it.
    total = decode_s[0].copy()
    for k in range(1, len(x)):
        steps = x[k] - x[k - 1]
        slope = (decode_s[k] - decode_s[k - 1]) / steps
        total += steps * decode_s[k - 1] + slope * 0.5 * steps * (steps + 1.0)
    mean: Floats = total / n
    return mean
