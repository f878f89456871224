"""Engines of affine step times, for tests of the scheduler by hand."""

from __future__ import annotations

import numpy as np

from app.serving.engine import (
    ACCEPTED,
    BESIDE_S,
    BESIDE_SEQUENCE_S,
    HOST_STEP_S,
    PREFILL,
    REPLICAS,
    ROUND,
    SCALARS,
    STAGES,
    VERIFIED,
    EngineLimits,
    StepTimes,
)

TOKENS = np.exp2(np.arange(15.0))
SEQUENCES = np.exp2(np.arange(11.0))
CONTEXTS = np.exp2(np.arange(4.0, 16.0))
RATIOS = np.exp2(np.arange(4.0))


def step_times(base_s: float = 5e-3, token_s: float = 20e-6, key_s: float = 1e-9, **more: float) -> StepTimes:
    """Steps of base_s + token_s x tokens + key_s x keys of all sequences; attention of chunks is next to nothing.

    more  host_s of a step, replicas, verified, accepted, prefill, round; beside_s of a step, beside_sequence_s
    """
    body = np.log(base_s + token_s * TOKENS)
    decode = np.log(key_s * SEQUENCES[:, None] * CONTEXTS[None, :])
    nothing = np.log(np.full((len(TOKENS), len(RATIOS)), 1e-9))
    scalars = np.zeros(SCALARS)
    scalars[[HOST_STEP_S, BESIDE_S, BESIDE_SEQUENCE_S]] = [
        more.pop(name, 0.0) for name in ("host_s", "beside_s", "beside_sequence_s")
    ]
    places = {"replicas": REPLICAS, "verified": VERIFIED, "accepted": ACCEPTED, "prefill": PREFILL, "round": ROUND}
    scalars[[STAGES, *places.values()]] = 1.0
    for name, value in more.items():
        scalars[places[name]] = value
    experts, head = (np.log(np.full(len(axis), 1e-12)) for axis in (TOKENS, SEQUENCES))
    axes = (np.log(axis) for axis in (TOKENS, SEQUENCES, CONTEXTS, RATIOS))
    tokens, sequences, contexts, ratios = axes
    return StepTimes(tokens, body, experts, sequences, head, contexts, decode, decode, tokens, ratios, nothing, scalars)


_FREE = EngineLimits(
    8192.0, 256.0, 1e12, CONTEXTS, 1000.0 * CONTEXTS, 1.0, 1.0, 0.5, 1.0, 0.0, np.inf, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0
)


def limits(budget: float = 8192.0, **more: float) -> EngineLimits:
    """An engine whose sequences keep a kilobyte a token; `more` are fields of its limits."""
    return _FREE._replace(budget_tokens=budget, **{name: float(value) for name, value in more.items()})  # type: ignore[arg-type]
