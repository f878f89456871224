"""Engines of affine step times, for tests of the scheduler by hand."""

from __future__ import annotations

import numpy as np

from app.serving.engine_limits import EngineLimits
from app.serving.step_times import SCALARS, StepTimes

TOKENS = np.exp2(np.arange(15.0))
SEQUENCES = np.exp2(np.arange(11.0))
CONTEXTS = np.exp2(np.arange(4.0, 16.0))
RATIOS = np.exp2(np.arange(4.0))


def step_times(
    base_s: float = 5e-3,
    token_s: float = 20e-6,
    key_s: float = 1e-9,
    *,
    replicas: int = 1,
    host_s: float = 0.0,
    verified: float = 1.0,
    accepted: float = 1.0,
) -> StepTimes:
    """Steps of base_s + token_s x tokens + key_s x keys of all sequences; attention of chunks is next to nothing."""
    body = np.log(base_s + token_s * TOKENS)
    decode = np.log(key_s * SEQUENCES[:, None] * CONTEXTS[None, :])
    nothing = np.log(np.full((len(TOKENS), len(RATIOS)), 1e-9))
    scalars = np.zeros(SCALARS)
    scalars[:8] = (replicas, 1.0, 0.0, host_s, 0.0, verified, accepted, 0.0)
    return StepTimes(
        np.log(TOKENS), body, np.log(SEQUENCES), np.log(np.full(len(SEQUENCES), 1e-9)), np.log(CONTEXTS), decode,
        np.log(TOKENS), np.log(RATIOS), nothing, scalars,
    )  # fmt: skip


def limits(
    budget: float = 8192.0,
    sequences: float = 256.0,
    kv_bytes: float = 1e12,
    *,
    mixes: bool = True,
    splits: bool = True,
    reserved: float = 0.5,
    request_s: float = 0.0,
) -> EngineLimits:
    """An engine whose sequences keep a kilobyte a token."""
    return EngineLimits(
        budget, sequences, kv_bytes, CONTEXTS, 1000.0 * CONTEXTS, float(mixes), float(splits), reserved, request_s
    )
