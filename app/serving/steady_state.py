"""Steady state of a serving engine in closed form, for ranking deployments and for rates that it can bear.

While a request generates its tokens, prompts of others are computed beside it or before it. With X requests a second,
each of which costs P seconds more than decoding alone,

    time per output token = decode step / (1 - X P)        in a closed loop without the request's own share of X
    decoding sequences    = X x output tokens x time per output token   (Little's law)

A closed loop of c requests has X = c / time of a request (approximate mean value analysis, Schweitzer 1979). An open
load has its rate, and no steady state where prompts or sequences exceed what the engine bears.

Of the next request (`next_times`) the state is given, as a gateway sees it before it sends one: so many requests run
and wait, so full is the cache; the load is what keeps as many running.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.runtime.compiled import compiled_per_row
from app.serving.engine import (
    ACCEPTED,
    REPLICAS,
    VERIFIED,
    EngineLimits,
    Step,
    StepTimes,
    admitted_bytes,
    chunk_attention_s,
    front_s,
    most_sequences,
    prompts_attention_s,
    serial_s,
    step_s,
)

# Rounds of a fixed point at most, the relative change that ends it, and bisections of a rate.
_ROUNDS, _DAMPING, _SETTLED = 60, 0.5, 1e-7
# Of the highest rate: from twice what memory bears to a part in 16 million of it, then to one in 32,768.
_HALVINGS, _BISECTIONS = 24, 15
# Chunks of a long prompt whose attention is evaluated.
_MOST_CHUNKS = 16


class Shape(NamedTuple):
    """Mean request: tokens of its prompt, those of them that need no computing, generated tokens.

    kept       tokens of the prompt that take memory of their own: those that are not shared with other requests
    context    mean keys of a decoding sequence, over the tokens that it generates: long outputs count more often
    variation  squared coefficient of variation of the times between open arrivals; 1: Poisson
    """

    prompt: float
    cached: float
    output: float
    kept: float
    context: float
    variation: float = 1.0


class Steady(NamedTuple):
    """A steady state of one engine: seconds, requests per second, and mean sequences.

    decode_s, mixed_s  a step of decoding sequences alone, and one with a prompt
    prefill_share      share of the time that prompts take from decoding
    """

    ttft_s: float
    tpot_s: float
    e2e_s: float
    requests_per_s: float
    decoding: float
    running: float
    decode_s: float
    mixed_s: float
    prefill_share: float


def prompt_share(times: StepTimes, shape: Shape, steady: Steady) -> float:
    """Return the share of an engine's busy time that prompts take; decoding takes the rest.

    A prompt takes what it adds to the steps that it shares with decoding sequences, and decoding the steps that its
    tokens would take alone.
    """
    later = max(shape.output - 1.0, 0.0)
    if later == 0.0:
        return 1.0
    tokens = max(steady.decoding, 1.0) * times.scalars[ACCEPTED]  # of a step
    decoding = steady.requests_per_s * later / tokens * steady.decode_s
    return float(steady.prefill_share / (steady.prefill_share + decoding))


class PromptCost(NamedTuple):
    """Cost of a prompt: seconds of a step with it, such steps per prompt, and seconds that it adds to decoding.

    least  such steps per prompt where as many prompts share a step as the budget allows
    """

    step_s: float
    steps: float
    added_s: float
    least: float


@compiled_per_row
def decode_step_s(times: StepTimes, shape: Shape, decoding: float) -> float:
    """Return the seconds of a step of `decoding` sequences at their mean context."""
    return step_s(times, Step(max(decoding, 1.0), shape.context, 0.0, 0.0, 0.0))


@compiled_per_row
def prompt_cost(times: StepTimes, limits: EngineLimits, shape: Shape, decoding: float, together: float) -> PromptCost:
    """Return the cost of a prompt beside `decoding` sequences, `together` of which arrive during a step."""
    beside = decoding if limits.mixes > 0.0 else 0.0
    new = max(shape.prompt - shape.cached, 1.0)
    room = max(min(limits.budget_tokens - beside * times.scalars[VERIFIED], limits.chunk_tokens), 1.0)
    if limits.splits == 0.0:
        room = max(room, new)
    # Each replica has a budget of its own, which one prompt alone fills.
    alone = max(room / times.scalars[REPLICAS], 1.0)
    steps, total = np.ceil(new / alone), 0.0
    chunk = new / steps
    parts = min(steps, _MOST_CHUNKS)
    for k in range(int(parts)):
        last = np.ceil((k + 0.5) * steps / parts)
        total += chunk_attention_s(times, chunk, shape.cached + last * chunk) / parts
    # Longer prompts fill the budget of a replica each, in several steps.
    most = max(room / new, 1.0) if steps == 1.0 else times.scalars[REPLICAS]
    prompts = min(max(together, 1.0), most)
    attention = prompts_attention_s(times, prompts * total, prompts)
    whole = step_s(times, Step(beside, shape.context, prompts * chunk, prompts, attention))
    added = whole - (decode_step_s(times, shape, decoding) if beside > 0.0 else 0.0)
    return PromptCost(whole, steps / prompts, max(added, 0.0) * steps / prompts, steps / most)


@compiled_per_row
def _between_prompts_s(limits: EngineLimits, mixed_s: float, decode_s: float, later: float) -> float:
    """Return the seconds from a step with prompts to the next one at least, whose prompts arrive meanwhile.

    Between two steps of prompts alone sequences decode once: else they would never end.
    """
    return mixed_s + decode_s if limits.mixes == 0.0 and later > 0.0 else mixed_s


@compiled_per_row
def _bunch(limits: EngineLimits, rate: float, decode_s: float) -> float:
    """Return how many prompts wait for one another, or for the engine to look, before they are computed."""
    unseen = rate * (limits.recv_steps - 1.0) * decode_s
    return float(max(min(limits.gathered, 1.0 + rate * limits.patience * decode_s), 1.0 + unseen))


@compiled_per_row
def _bunch_wait_s(limits: EngineLimits, rate: float, decode_s: float) -> float:
    """Return the mean seconds that prompts wait: the first of a bunch until the last, or until its patience ends.

    Those that arrive between two looks at new requests wait for half of the steps between them.
    """
    unseen = 0.5 * (limits.recv_steps - 1.0) * decode_s
    if limits.gathered <= 1.0:
        return unseen
    longest = limits.patience * decode_s
    later = rate * longest
    bunched = min(longest * (1.0 + 0.5 * later) / (1.0 + later), 0.5 * (limits.gathered - 1.0) / max(rate, 1e-9))
    return float(unseen + bunched)


@compiled_per_row
def closed_loop(times: StepTimes, limits: EngineLimits, shape: Shape, concurrency: float) -> Steady:
    """Return the steady state of `concurrency` requests, each answer followed by the next request.

    Requests beyond what the engine runs at once wait, which their time to first token has.
    """
    most = max(min(concurrency, most_sequences(limits, shape.kept, shape.output)), 1.0)
    others, later = (most - 1.0) / most, max(shape.output - 1.0, 0.0)
    decoding, rate = most, 0.0
    front = decode = mixed = ttft = tpot = 0.0
    cost = PromptCost(0.0, 1.0, 0.0, 1.0)
    for _ in range(_ROUNDS):
        front = front_s(limits, others * decoding) + serial_s(limits, shape.prompt)
        decode = decode_step_s(times, shape, 1.0 + others * decoding)
        bunch = _bunch(limits, others * rate, decode)
        between = _between_prompts_s(limits, mixed, decode, later)
        cost = prompt_cost(times, limits, shape, others * decoding, max(rate * between, bunch))
        mixed = cost.step_s
        tpot = decode / times.scalars[ACCEPTED] / max(1.0 - others * rate * cost.added_s, 0.05)
        waiting = others * rate * max(ttft - front, 0.0)
        # A request finds a step that runs, unless it is alone.
        own = max(np.ceil(cost.steps), 1.0) * mixed + 0.5 * others * decode
        ttft = front + own + waiting * cost.steps * mixed
        if most > 1.0:  # one request alone finds no sequence that decodes
            ttft += _bunch_wait_s(limits, others * rate, decode)
        next_rate = most / (ttft + later * tpot)
        rate = next_rate if rate == 0.0 else rate + _DAMPING * (next_rate - rate)
        decoding = min(rate * later * tpot, most)
    queued = max(concurrency - most, 0.0) / rate
    e2e = queued + ttft + later * tpot
    return Steady(queued + ttft, tpot, e2e, rate, decoding, most, decode, mixed, rate * cost.added_s)


@compiled_per_row
def open_load(times: StepTimes, limits: EngineLimits, shape: Shape, rate: float) -> Steady:
    """Return the steady state of `rate` requests a second; its times are infinite where there is none."""
    most = most_sequences(limits, shape.kept, shape.output)
    later = max(shape.output - 1.0, 0.0)
    decoding, front, decode, mixed, tpot, ttft, together = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    cost = PromptCost(0.0, 1.0, 0.0, 1.0)
    for _ in range(_ROUNDS):
        front = front_s(limits, decoding) + serial_s(limits, shape.prompt)
        decode = decode_step_s(times, shape, 1.0 + decoding)
        bunch = _bunch(limits, rate, decode)
        cost = prompt_cost(times, limits, shape, decoding, max(together, bunch))
        mixed = cost.step_s
        busy = rate * cost.added_s
        tpot = decode / times.scalars[ACCEPTED] / max(1.0 - busy, 1e-3)
        # Prompts wait for the step that runs as they arrive, and for those before them that find no place in it.
        used, full = min(rate * cost.steps * mixed, 1.0), min(rate * cost.least * mixed, 0.999)
        own = max(np.ceil(cost.steps), 1.0) * mixed
        ttft = front + own + 0.5 * (decode * (1.0 - used) + mixed * used)
        # A queue of arrivals of this variation and of services without (Kingman 1961).
        queue = 0.5 * shape.variation * full / (1.0 - full) * cost.steps * mixed
        ttft += queue + min(decoding, 1.0) * _bunch_wait_s(limits, rate, decode)
        change = _DAMPING * (min(rate * later * tpot, 4.0 * most + 4.0) - decoding)
        decoding += change
        if (
            abs(change) < _SETTLED * decoding
            and abs(together - rate * _between_prompts_s(limits, mixed, decode, later)) < _SETTLED
        ):
            break
        together = rate * _between_prompts_s(limits, mixed, decode, later)
    running = rate * (ttft - front + later * tpot)
    front_busy = rate * serial_s(limits, shape.prompt)
    taken = rate * cost.added_s if later > 0.0 else 0.0
    if running > most or max(taken, rate * cost.least * mixed, front_busy) >= 1.0:
        ttft = tpot = np.inf
    return Steady(ttft, tpot, ttft + later * tpot, rate, decoding, running, decode, mixed, rate * cost.added_s)


@compiled_per_row
def highest_rate(times: StepTimes, limits: EngineLimits, shape: Shape) -> float:
    """Return the highest requests per second that have a steady state; 0 where not one request fits."""
    most = most_sequences(limits, shape.kept, shape.output)
    if most < 1.0:
        return 0.0
    high = (
        2.0
        * most
        / max(decode_step_s(times, shape, most) * max(shape.output - 1.0, 1.0) / times.scalars[ACCEPTED], 1e-9)
    )
    for _ in range(_HALVINGS):
        low = 0.5 * high
        if np.isfinite(open_load(times, limits, shape, low).tpot_s):
            break
        high = low
    else:
        return 0.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if np.isfinite(open_load(times, limits, shape, middle).tpot_s):
            low = middle
        else:
            high = middle
    return float(low)


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
    front = front_s(limits, state.running) + ahead * serial_s(limits, prompt)
    running_step_s = 0.5 * decode_step_s(times, shape, state.running) if state.running else 0.0
    slot_s = _endings(limits, state) * later * tpot_s / max(state.running, 1.0)
    return NextTimes(float(front + running_step_s + slot_s + steps * together.step_s), float(tpot_s))


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
