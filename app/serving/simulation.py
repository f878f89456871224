"""Event simulation of one serving engine: continuous batching, chunked prefill, a token budget, a cap by KV memory.

A step computes one token of every decoding sequence, and chunks of prompts in the order of arrival within the budget.
Between two events (an answer ends, a request arrives) steps without prompts are alike but for their contexts, and are
taken together at their mean. Deterministic: all randomness is in the requests.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from app.runtime.compiled import compiled, compiled_per_row
from app.serving.engine import (
    ACCEPTED,
    REPLICAS,
    VERIFIED,
    EngineLimits,
    Requests,
    Step,
    StepTimes,
    admitted_bytes,
    chunk_attention_s,
    prompts_attention_s,
    serial_s,
    step_s,
)
from app.tables.arrays import Floats, Ints

# Steps after which a simulation ends, whatever is left: a second at most.
MOST_STEPS = 600_000
# Decode steps that are taken together at most while their contexts grow.
_TOGETHER = 256.0


class Simulated(NamedTuple):
    """Times of n requests, float64 [n] each, NaN where the simulation ended before; and means over its time.

    arrived_s, first_s, ended_s  seconds of arrival, first token and last token
    decoding    mean decoding sequences while there are any
    running     mean running sequences
    kv_bytes    most bytes of keys and values that were reserved
    decode_s, mixed_s  mean seconds of steps without and with prompts; 0: there was none
    steps       steps that were simulated, about a microsecond each; those that are taken together are one
    """

    arrived_s: Floats
    first_s: Floats
    ended_s: Floats
    decoding: float
    running: float
    kv_bytes: float
    decode_s: float
    mixed_s: float
    steps: int


class _Chunks(NamedTuple):
    """Chunks of a step: their tokens, prompts and attention, and the first request whose prompt is not computed yet."""

    tokens: float
    prompts: float
    attention_s: float
    ready: int


@compiled_per_row
def _own_prompt(requests: Requests, request: int) -> float:
    """Return the tokens of a prompt that are computed."""
    return float(max(requests.prompt[request] - requests.cached[request], 1.0))


@compiled_per_row
def _reserved_bytes(limits: EngineLimits, requests: Requests, request: int) -> float:
    return admitted_bytes(limits, requests.kept[request], requests.output[request])


@compiled_per_row
def _chunks(
    times: StepTimes,
    limits: EngineLimits,
    requests: Requests,
    computed: Floats,
    prefilled: int,
    admitted: int,
    room: float,
) -> _Chunks:
    """Fill the step with the prompts from `prefilled` to `admitted`; `computed` are tokens done of each, updated.

    A prompt is computed by one replica of attention, within its share of the room.
    """
    tokens = prompts = attention = 0.0
    one = ready = prefilled
    each = max(room / times.scalars[REPLICAS], 1.0)
    while one < admitted and room >= 1.0:
        new = _own_prompt(requests, one) - computed[one]
        if new > room and limits.splits == 0.0 and prompts > 0.0:
            break
        chunk = min(new, room, each) if limits.splits > 0.0 else new
        if chunk > 0.0:
            attention += chunk_attention_s(times, chunk, requests.cached[one] + computed[one] + chunk)
            prompts += 1.0
        computed[one] += chunk
        tokens += chunk
        room -= chunk
        if chunk == new and one == ready:
            ready += 1
        one += 1
    return _Chunks(tokens, prompts, prompts_attention_s(times, attention, max(prompts, 1.0)), ready)


class _State(NamedTuple):
    """What changes: counts of requests, by the first indices below; and figures, by the second ones.

    computed   float64 [n], tokens of every prompt that are computed
    ready      float64 [n], seconds at which the engine has every request
    arrived, first, ended  float64 [n], as of Simulated
    spent, ran  float64 [2], seconds and number of steps without and with prompts
    """

    counts: Ints
    figures: Floats
    computed: Floats
    ready: Floats
    arrived: Floats
    first: Floats
    ended: Floats
    spent: Floats
    ran: Floats


# Requests before these have been sent, are with the engine, run, and have their first token; sequences that run, and
# those that decode; requests before this have what they wait for streams in `ready`.
_SENT, _RELEASED, _ADMITTED, _PREFILLED, _RUNNING, _DECODING, _PASSED = range(7)
# Seconds; seconds at which the front end is free; decode steps since the start; keys of decoding sequences; bytes that
# are reserved, and the most that were; decoding and running sequences times seconds; decode steps that prompts
# waited, and those since the last prompt.
_CLOCK, _FRONT, _STEPS, _KEYS, _HELD, _MOST_HELD, _DECODED, _RAN, _WAITED, _SINCE = range(10)
_Ends = list[tuple[float, int]]


@compiled_per_row
def _send(limits: EngineLimits, requests: Requests, state: _State, seconds: float) -> None:
    """Send the next request, at this time or when it arrives: the front end passes them on one after another."""
    counts, figures = state.counts, state.figures
    one = counts[_SENT]
    seconds = max(requests.arrival_s[one], seconds)
    figures[_FRONT] = max(figures[_FRONT], seconds) + serial_s(limits, requests.prompt[one])
    state.arrived[one], state.ready[one] = seconds, figures[_FRONT] + limits.request_s
    counts[_SENT] += 1


@compiled_per_row
def _admit(limits: EngineLimits, requests: Requests, state: _State) -> None:
    """Let requests run, in their order, as long as there is a place and memory for the next one."""
    counts, figures = state.counts, state.figures
    looks = counts[_DECODING] == 0 or figures[_SINCE] % limits.recv_steps == 0.0
    while counts[_RELEASED] < counts[_SENT] and state.ready[counts[_RELEASED]] <= figures[_CLOCK]:
        if counts[_PASSED] <= counts[_RELEASED]:
            state.ready[counts[_PASSED]] += limits.stream_s * counts[_DECODING]
            counts[_PASSED] += 1
        elif looks:
            counts[_RELEASED] += 1
        else:
            break
    if counts[_DECODING] > 0 and figures[_SINCE] % limits.round_steps > 0.0:
        return
    while counts[_ADMITTED] < counts[_RELEASED] and counts[_RUNNING] < limits.sequences:
        need = _reserved_bytes(limits, requests, counts[_ADMITTED])
        if figures[_HELD] + need > limits.kv_bytes:
            break
        figures[_HELD] += need
        counts[_RUNNING] += 1
        counts[_ADMITTED] += 1
    figures[_MOST_HELD] = max(figures[_MOST_HELD], figures[_HELD])


@compiled_per_row
def _until_arrival(limits: EngineLimits, state: _State, together: float, each: float) -> float:
    """Return how many steps of `each` seconds, at most `together`, run before the engine sees another request."""
    counts, since = state.counts, state.figures[_SINCE]
    if counts[_ADMITTED] < counts[_RELEASED] and since % limits.round_steps > 0.0:
        return float(min(together, limits.round_steps - since % limits.round_steps))
    released = counts[_RELEASED]
    if released == counts[_SENT]:
        return together
    steps = max(np.ceil((state.ready[released] - state.figures[_CLOCK]) / each), 1.0)
    if counts[_PASSED] > released:  # the engine looks for it at the end of an interval
        steps = np.ceil((since + steps) / limits.recv_steps) * limits.recv_steps - since
    return float(min(together, steps))


@compiled_per_row
def _advance(times: StepTimes, limits: EngineLimits, requests: Requests, state: _State, end: float) -> int:
    """Run the next steps, at most to the decode step `end`, and return the first request with a prompt left."""
    counts, figures, accepted = state.counts, state.figures, times.scalars[ACCEPTED]
    decoding, pending = counts[_DECODING], counts[_ADMITTED] - counts[_PREFILLED]
    left = limits.patience - figures[_WAITED]
    prompted = pending > 0 and (decoding == 0 or left <= 0.0 or pending >= limits.gathered)
    beside = float(decoding) if limits.mixes > 0.0 or not prompted else 0.0
    room = max(min(limits.budget_tokens - beside * times.scalars[VERIFIED], limits.chunk_tokens), 1.0)
    admitted = counts[_ADMITTED] if prompted else counts[_PREFILLED]
    chunks = _chunks(times, limits, requests, state.computed, counts[_PREFILLED], admitted, room)
    most = min(_TOGETHER, left) if pending > 0 else _TOGETHER
    together = 1.0 if prompted else max(min(end - figures[_STEPS], most), 1.0)
    context = figures[_KEYS] / max(decoding, 1) + 0.5 * accepted * (together - 1.0)
    each = step_s(times, Step(beside, context, chunks.tokens, chunks.prompts, chunks.attention_s))
    if not prompted:
        together = _until_arrival(limits, state, together, each)
    seconds, kind = together * each, int(prompted)
    state.spent[kind] += seconds
    state.ran[kind] += together
    figures[_CLOCK] += seconds
    figures[_DECODED] += seconds * decoding
    figures[_RAN] += seconds * counts[_RUNNING]
    figures[_WAITED] = 0.0 if prompted or pending == 0 else figures[_WAITED] + together
    figures[_SINCE] = 0.0 if prompted else figures[_SINCE] + together
    if beside > 0.0:
        figures[_STEPS] += together
        figures[_KEYS] += together * accepted * decoding
    return chunks.ready


@compiled
def _answer(requests: Requests, state: _State, ends: _Ends, accepted: float, ready: int) -> None:
    """Give the requests up to `ready` their first token."""
    counts, figures = state.counts, state.figures
    for one in range(counts[_PREFILLED], ready):
        state.first[one] = figures[_CLOCK]
        counts[_DECODING] += 1
        figures[_KEYS] += requests.prompt[one] + 1.0
        heappush(ends, (figures[_STEPS] + np.ceil((requests.output[one] - 1.0) / accepted), one))
    counts[_PREFILLED] = ready


@compiled
def _end(limits: EngineLimits, requests: Requests, state: _State, ends: _Ends, accepted: float) -> None:
    """End the requests that have their last token; each is followed by the next one that waits to be sent."""
    counts, figures = state.counts, state.figures
    while len(ends) > 0 and ends[0][0] <= figures[_STEPS]:
        _, one = heappop(ends)
        state.ended[one] = figures[_CLOCK]
        counts[_DECODING] -= 1
        counts[_RUNNING] -= 1
        figures[_KEYS] -= requests.prompt[one] + 1.0 + accepted * np.ceil((requests.output[one] - 1.0) / accepted)
        figures[_HELD] -= _reserved_bytes(limits, requests, one)
        if counts[_SENT] < len(requests.prompt):
            _send(limits, requests, state, figures[_CLOCK])


@compiled
def _begin(limits: EngineLimits, requests: Requests) -> _State:
    """Return the state before the first step: all requests, or as many as may be in flight, are sent."""
    n = len(requests.prompt)
    nothing = np.full(n, np.nan)
    state = _State(
        np.zeros(7, dtype=np.intp),
        np.zeros(10),
        np.zeros(n),
        nothing,
        nothing.copy(),
        nothing.copy(),
        nothing.copy(),
        np.zeros(2),
        np.zeros(2),
    )
    for _ in range(min(requests.in_flight, n) if requests.in_flight > 0 else n):
        _send(limits, requests, state, 0.0)
    return state


@compiled
def simulate(times: StepTimes, limits: EngineLimits, requests: Requests, most_steps: int = MOST_STEPS) -> Simulated:
    """Return the times of all requests on one engine, within `most_steps`.

    Requests wait until the engine has a place and memory for them; one that never fits waits forever (NaN).
    """
    state, accepted = _begin(limits, requests), times.scalars[ACCEPTED]
    counts, figures = state.counts, state.figures
    # Decode steps since the start at which each decoding sequence ends, a heap.
    ends = [(0.0, 0)]
    ends.pop()
    steps = 0
    while steps < most_steps:
        steps += 1
        _admit(limits, requests, state)
        if counts[_PREFILLED] == counts[_ADMITTED] and counts[_DECODING] == 0:  # idle, for ever if nothing can follow
            if counts[_ADMITTED] < counts[_RELEASED] or counts[_RELEASED] == counts[_SENT]:
                break
            figures[_CLOCK] = state.ready[counts[_RELEASED]]
            continue
        ready = _advance(times, limits, requests, state, ends[0][0] if ends else np.inf)
        _answer(requests, state, ends, accepted, ready)
        _end(limits, requests, state, ends, accepted)
    busy = max(state.spent.sum(), 1e-12)
    means = state.spent / np.maximum(state.ran, 1.0)
    decoded, ran = figures[_DECODED] / busy, figures[_RAN] / busy
    return Simulated(
        state.arrived, state.first, state.ended, decoded, ran, figures[_MOST_HELD], means[0], means[1], steps
    )
