"""Times of the next request of an engine in a known state: so many requests run and wait, so full is the cache.

The closed forms of app.serving.steady_state need a load that lasts. Here the state is given, as a gateway sees it
before it sends a request, and the load is what keeps as many requests running (Little's law).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.serving.engine_limits import EngineLimits, admitted_bytes, serial_s
from app.serving.steady_state import Shape, decode_step_s, prompt_cost
from app.serving.step_times import ACCEPTED, StepTimes


class QueueState(NamedTuple):
    """An engine's requests, and the next one.

    running, waiting  requests that decode, and those that wait for their prompt
    kv_share          share of the memory for keys and values that is in use, 0 to 1; 0: unknown
    prompt, cached    tokens of the next request's prompt, and those that the engine has already
    generated         tokens that it has generated so far
    output            mean tokens of answers, of which the running ones have half
    """

    running: float
    waiting: float
    kv_share: float
    prompt: float
    cached: float
    generated: float
    output: float


class NextTimes(NamedTuple):
    """Seconds until the next request's first token, and per token after it."""

    ttft_s: float
    tpot_s: float


def next_times(times: StepTimes, limits: EngineLimits, state: QueueState) -> NextTimes:
    """Return the times of the next request; requests that wait are like it, and are answered before it."""
    ahead = state.waiting + 1.0
    beside = min(state.running + state.waiting, max(limits.sequences - 1.0, 0.0))
    prompt, later = max(state.prompt, 1.0), max(state.output - 1.0, 1.0)
    context = _context(limits, state)
    shape = Shape(prompt, min(state.cached, prompt - 1.0), state.output, prompt, context)
    alone = prompt_cost(times, limits, shape, state.running, 1.0)
    together = prompt_cost(times, limits, shape, state.running, ahead)
    mean = (beside * context + prompt + state.generated) / (beside + 1.0)
    step_s = decode_step_s(times, shape._replace(context=mean), beside + 1.0)
    tpot_s = step_s / times.scalars[ACCEPTED] + beside / later * alone.added_s
    steps = max(np.ceil(ahead * together.steps), 1.0)
    front_s = limits.request_s + ahead * serial_s(limits, prompt)
    running_step_s = 0.5 * decode_step_s(times, shape, state.running) if state.running else 0.0
    slot_s = _endings(limits, state) * later * tpot_s / max(state.running, 1.0)
    return NextTimes(float(front_s + running_step_s + slot_s + steps * together.step_s), float(tpot_s))


def _context(limits: EngineLimits, state: QueueState) -> float:
    """Return the mean keys of a running sequence: of the memory in use, else half of an answer after a prompt."""
    if not state.running or not state.kv_share:
        return state.prompt + 0.5 * state.output
    held = state.kv_share * limits.kv_bytes / state.running
    return float(max(np.interp(held, limits.bytes_at, limits.contexts), 1.0))


def _endings(limits: EngineLimits, state: QueueState) -> float:
    """Return how many requests must end before the next one is let in: at most all that are before it."""
    ahead, needed = state.waiting + 1.0, admitted_bytes(limits, state.prompt, state.output)
    places = state.running + ahead - limits.sequences
    each = max(state.kv_share * limits.kv_bytes / max(state.running, 1.0), 1.0)
    room = np.ceil((ahead * needed - (1.0 - state.kv_share) * limits.kv_bytes) / each) if state.kv_share else 0.0
    return float(min(max(places, room, 0.0), state.running + state.waiting)) if state.running else 0.0
