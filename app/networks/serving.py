"""Serving metrics from the times of single steps, in closed form, with their definitions.

One prefill step processes a batch of requests of `prompt` tokens and generates the first token; each later token is a
decode step of the whole batch, with a context one token longer. A decode step's time is nearly affine in the context
(weights are read once, keys and values grow), so a few sampled contexts determine the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from app.tables.arrays import Floats

DEFINITIONS: Mapping[str, str] = {
    "ttft_ms": "time to first token: the prefill step of the whole batch on an idle server, without queueing",
    "tpot_ms": "time per output token: the mean decode step over output tokens 2 to the last; 0 where there is one",
    "request_ms": "TTFT + (output tokens - 1) x TPOT",
    "tokens_per_s": "output tokens of the whole batch over the time of the request, all replicas together",
    "decode_tokens_per_s": "batch / TPOT while decoding, all replicas together",
    "requests_per_s": "requests of the batch over the time of the request, all replicas together",
}


class Serving(NamedTuple):
    """The metrics of DEFINITIONS on g GPUs, float64 [g] each: seconds, and rates per second."""

    ttft_s: Floats
    tpot_s: Floats
    request_s: Floats
    tokens_per_s: Floats
    decode_tokens_per_s: Floats
    requests_per_s: Floats


_SAMPLES = 3  # decode steps that are predicted; the others are interpolated


def decode_contexts(prompt: int, output: int) -> list[int]:
    """Return the context lengths of the decode steps to predict, evenly spaced from the first to the last.

    A context length counts the keys that the new token sees, itself included.
    """
    if output < 2:
        return []
    contexts = np.linspace(prompt + 1, prompt + output - 1, min(_SAMPLES, output - 1))
    return sorted({round(context) for context in contexts.tolist()})


def serving(prefill_s: Floats, decode_s: Floats, contexts: list[int], *, batch: int, output: int) -> Serving:
    """Return the metrics of `batch` requests (over all replicas) of `output` generated tokens each.

    prefill_s  float64 [g], seconds of the prefill step
    decode_s   float64 [samples, g], seconds of the decode steps at `contexts` (decode_contexts), interpolated linearly
    """
    tpot = _mean(decode_s, contexts, output)
    request = prefill_s + (output - 1) * tpot
    decoding = np.divide(float(batch), tpot, out=np.zeros_like(tpot), where=tpot > 0)
    return Serving(prefill_s, tpot, request, batch * output / request, decoding, batch / request)


def _mean(decode_s: Floats, contexts: list[int], output: int) -> Floats:
    """Return the mean time over all contexts from the first to the last, interpolated between samples, [g]."""
    if output < 2:
        return np.zeros(decode_s.shape[1])
    x, n = np.array(contexts, dtype=np.float64), float(output - 1)
    if len(x) == 1:
        single: Floats = decode_s[0]
        return single
    # Sum over the integer contexts of each linear piece; a piece includes its end, not its start.
    total = decode_s[0].copy()
    for k in range(1, len(x)):
        steps = x[k] - x[k - 1]
        slope = (decode_s[k] - decode_s[k - 1]) / steps
        total += steps * decode_s[k - 1] + slope * 0.5 * steps * (steps + 1.0)
    mean: Floats = total / n
    return mean
