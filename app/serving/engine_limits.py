"""What a serving engine admits: tokens of a step, sequences, and memory for keys and values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.runtime.compiled import compiled_per_row
from app.serving.step_times import before
from app.tables.arrays import Floats


class EngineLimits(NamedTuple):
    """Limits of one engine, over all its attention replicas.

    budget_tokens   most tokens of a step
    sequences       most sequences that it runs, those of prompts included
    kv_bytes        memory for keys and values, of the fullest device times attention replicas
    contexts, bytes_at  float64 [k], keys of a sequence, and the bytes that it keeps on a device
    mixes           1: prompts are computed beside decoding sequences; 0: in steps of their own, which come first
    splits          1: prompts are computed in chunks that fill the budget; 0: whole
    reserved        share of a sequence's output that is reserved when it is admitted
    gathered, patience  prompts that wait for one another while sequences decode, and the steps that they wait at most;
                    1: none waits, infinity: no number of them ends the wait
    request_s       seconds from a request's arrival until the engine has it, others aside
    serial_s, serial_token_s  host seconds of a request, and of a token of its prompt, for which other requests wait
    """

    budget_tokens: float
    sequences: float
    kv_bytes: float
    contexts: Floats
    bytes_at: Floats
    mixes: float
    splits: float
    reserved: float
    gathered: float
    patience: float
    request_s: float
    serial_s: float
    serial_token_s: float


@compiled_per_row
def held_bytes(limits: EngineLimits, context: float) -> float:
    """Return the bytes that a sequence of `context` keys keeps on a device."""
    contexts, bytes_at = limits.contexts, limits.bytes_at
    at = before(contexts, context)
    slope = (bytes_at[at + 1] - bytes_at[at]) / (contexts[at + 1] - contexts[at])
    return float(max(bytes_at[at] + slope * (context - contexts[at]), 0.0))


@compiled_per_row
def serial_s(limits: EngineLimits, prompt: float) -> float:
    """Return the seconds that a request keeps the host's front end from the next one."""
    return limits.serial_s + limits.serial_token_s * prompt


@compiled_per_row
def admitted_bytes(limits: EngineLimits, prompt: float, output: float) -> float:
    """Return the bytes that admitting a request reserves: its prompt's own tokens and a share of its output."""
    return held_bytes(limits, prompt + limits.reserved * output)


@compiled_per_row
def most_sequences(limits: EngineLimits, prompt: float, output: float) -> float:
    """Return how many sequences of these lengths run at once."""
    each = max(admitted_bytes(limits, prompt, output), 1e-9)
    return float(max(min(limits.sequences, np.floor(limits.kv_bytes / each)), 0.0))
