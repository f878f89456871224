"""One serving engine: the time of its step, interpolated between predicted ones, and what it admits.

A step computes one token (with speculative decoding several) of every decoding sequence, and chunks of prompts beside
them. Its rows fall into five parts, each a table of few states that is interpolated in log space:

    body     what works on tokens alone, wherever they come from: linear layers, norms, sums over devices
    experts  routed experts and the exchange of their tokens, which replicas of attention share
    head     logits and sampling, of each sequence's last token
    decode   attention of decoding sequences, by their number and mean context
    prefill  attention of a chunk of a prompt, by its tokens and the keys that they see
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.runtime.compiled import compiled_per_row
from app.tables.arrays import Floats

# Parts that a model lacks take no time; their logarithm must be finite.
LEAST_S = 1e-12


class StepTimes(NamedTuple):
    """Tables of an engine's step on one GPU type; axes and times are natural logarithms, times of seconds.

    tokens     float64 [t], tokens of an attention replica; `body` [t] their time, and `experts` [t] if all have as many
    sequences  float64 [b], sequences of an attention replica; `head` [b] their time
    contexts   float64 [k], keys of a sequence; `decode` [b, k] the time of attention, `draft` of drafting a token each
    chunks     float64 [p], tokens of a chunk; `ratios` [r], keys over tokens; `prefill` [p, r] the time of attention
    scalars    float64 [SCALARS], plain numbers, by the indices below
    """

    tokens: Floats
    body: Floats
    experts: Floats
    sequences: Floats
    head: Floats
    contexts: Floats
    decode: Floats
    draft: Floats
    chunks: Floats
    ratios: Floats
    prefill: Floats
    scalars: Floats


# Attention replicas; pipeline stages; seconds between two stages; host seconds of a step, and of a sequence in it;
# tokens that a sequence computes in a decode step, those of them that are kept, and those that are drafted; factor on
# steps with prompts; decode steps that the host schedules at once; and seconds of a step, and of a sequence in it, that
# the host takes beside the device.
REPLICAS, STAGES, TRANSFER_S, HOST_STEP_S, HOST_SEQUENCE_S, VERIFIED, ACCEPTED, DRAFTED, PREFILL, ROUND = range(10)
BESIDE_S, BESIDE_SEQUENCE_S = 10, 11
SCALARS = 12


class Step(NamedTuple):
    """A step, over all attention replicas.

    decodes, context  sequences that decode, and their mean keys
    tokens, prompts   tokens of prompts beside them, and prompts that these are of
    attention_s       seconds of these prompts' attention (prompts_attention_s)
    """

    decodes: float
    context: float
    tokens: float
    prompts: float
    attention_s: float


@compiled_per_row
def before(axis: Floats, x: float) -> int:
    """Return the index of the interval of `axis` that holds x, or is nearest to it."""
    at: int = np.searchsorted(axis, x)  # type: ignore[assignment]  # of one number
    return int(min(max(at - 1, 0), len(axis) - 2))


@compiled_per_row
def _line(axis: Floats, values: Floats, x: float) -> float:
    """Return exp of the values at log `x`, interpolated linearly and beyond the ends extrapolated."""
    at = before(axis, x)
    value = values[at] + (values[at + 1] - values[at]) * (x - axis[at]) / (axis[at + 1] - axis[at])
    return float(np.exp(value))


@compiled_per_row
def _plane(rows: Floats, columns: Floats, values: Floats, x: float, y: float) -> float:
    """Return exp of the values at logs (x, y), interpolated bilinearly and beyond the ends extrapolated."""
    i, j = before(rows, x), before(columns, y)
    u = (x - rows[i]) / (rows[i + 1] - rows[i])
    v = (y - columns[j]) / (columns[j + 1] - columns[j])
    low = values[i, j] * (1.0 - v) + values[i, j + 1] * v
    high = values[i + 1, j] * (1.0 - v) + values[i + 1, j + 1] * v
    return float(np.exp(low * (1.0 - u) + high * u))


@compiled_per_row
def chunk_attention_s(times: StepTimes, tokens: float, keys: float) -> float:
    """Return the seconds of attention of one chunk of `tokens` that see `keys`, theirs included."""
    tokens = max(tokens, 1.0)
    ratio = max(keys / tokens, 1.0)
    return _plane(times.chunks, times.ratios, times.prefill, np.log(tokens), np.log(ratio))


@compiled_per_row
def prompts_attention_s(times: StepTimes, total_s: float, prompts: float) -> float:
    """Return the seconds of attention of several chunks in one step, from their sum alone.

    Chunks of one replica share a launch, and replicas work side by side.
    """
    launch = np.exp(times.prefill[0, 0])
    shared = max(total_s - (prompts - 1.0) * launch, total_s / max(prompts, 1.0))
    return float(shared / max(min(times.scalars[REPLICAS], prompts), 1.0))


@compiled_per_row
def step_s(times: StepTimes, step: Step) -> float:
    """Return the seconds of a step.

    A pipeline's stages each work on a share of the sequences, so that a token passes all of them in one step.
    """
    scalars = times.scalars
    share = scalars[STAGES] * scalars[REPLICAS]
    verified = step.decodes * scalars[VERIFIED]
    # Few prompts do not reach all replicas: the fullest one has more than its share of the tokens.
    reached = max(min(scalars[REPLICAS], step.prompts), 1.0)
    tokens = verified / share + step.tokens / (scalars[STAGES] * reached)
    last = (verified + step.prompts) / share
    mean = (verified + step.tokens) / share
    seconds = _line(times.tokens, times.body, np.log(max(tokens, 1.0)))
    seconds += _line(times.tokens, times.experts, np.log(max(mean, 1.0)))
    seconds += _line(times.sequences, times.head, np.log(max(last, 1.0)))
    drafted = 0.0
    if step.decodes > 0.0:
        sequences, context = np.log(max(step.decodes / share, 1.0)), np.log(max(step.context, 1.0))
        seconds += _plane(times.sequences, times.contexts, times.decode, sequences, context)
        if scalars[DRAFTED] > 0.0:
            drafted = scalars[DRAFTED] * _plane(times.sequences, times.contexts, times.draft, sequences, context)
    seconds += drafted + step.attention_s / scalars[STAGES] + scalars[STAGES] * scalars[TRANSFER_S]
    at_once = scalars[ROUND]
    if step.prompts > 0.0:
        seconds, at_once = seconds * scalars[PREFILL], 1.0
    seconds = max(seconds, scalars[BESIDE_S] + scalars[BESIDE_SEQUENCE_S] * step.decodes)
    return float(seconds + scalars[HOST_STEP_S] / at_once + scalars[HOST_SEQUENCE_S] / at_once * step.decodes)


class EngineLimits(NamedTuple):
    """Limits of one engine, over all its attention replicas.

    budget_tokens   most tokens of a step
    sequences       most sequences that it runs, those of prompts included
    kv_bytes        memory for keys and values, of the fullest device times attention replicas
    contexts, bytes_at  float64 [k], keys of a sequence, and the bytes that it keeps on a device
    mixes           1: prompts are computed beside decoding sequences; 0: in steps of their own, which come first
    splits          1: prompts are computed in chunks that fill the budget; 0: whole
    reserved        share of a sequence's output that is reserved when it is admitted
    chunk_tokens    most of them that are of prompts
    gathered, patience  prompts that wait for one another while sequences decode, and the steps that they wait at most;
                    1: none waits, infinity: no number of them ends the wait
    recv_steps, round_steps  decode steps after which the engine looks for new requests, and lets those in that it has
    request_s       seconds from a request's arrival until the engine has it, others aside
    fetch_token_s   seconds of fetching keys and values of a prompt's token from the host, one prompt after another
    serial_s, serial_token_s  host seconds of a request, and of a token of its prompt, for which other requests wait
    stream_s        seconds that an arriving request waits for the front end, for each stream of tokens that it sends
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
    chunk_tokens: float
    recv_steps: float
    round_steps: float
    request_s: float
    serial_s: float
    serial_token_s: float
    fetch_token_s: float
    stream_s: float


@compiled_per_row
def held_bytes(limits: EngineLimits, context: float) -> float:
    """Return the bytes that a sequence of `context` keys keeps on a device."""
    contexts, bytes_at = limits.contexts, limits.bytes_at
    at = before(contexts, context)
    slope = (bytes_at[at + 1] - bytes_at[at]) / (contexts[at + 1] - contexts[at])
    return float(max(bytes_at[at] + slope * (context - contexts[at]), 0.0))


@compiled_per_row
def front_s(limits: EngineLimits, streams: float) -> float:
    """Return the seconds until the engine has a request that arrives while its front end sends `streams`."""
    return limits.request_s + limits.stream_s * streams


@compiled_per_row
def serial_s(limits: EngineLimits, prompt: float) -> float:
    """Return the seconds that a request keeps the host's front end from the next one."""
    return limits.serial_s + (limits.serial_token_s + limits.fetch_token_s) * prompt


@compiled_per_row
def admitted_bytes(limits: EngineLimits, prompt: float, output: float) -> float:
    """Return the bytes that admitting a request reserves: its prompt's own tokens and a share of its output."""
    return held_bytes(limits, prompt + limits.reserved * output)


@compiled_per_row
def most_sequences(limits: EngineLimits, prompt: float, output: float) -> float:
    """Return how many sequences of these lengths run at once."""
    each = max(admitted_bytes(limits, prompt, output), 1e-9)
    return float(max(min(limits.sequences, np.floor(limits.kv_bytes / each)), 0.0))


# Requests of a simulation: so many times those in flight, and within these bounds, which keep its time bounded.
ROUNDS, _FEWEST, MOST_REQUESTS = 10, 64, 20_000
# Of open arrivals the first ones find an engine that is emptier than it will be.
_OPEN, _WARM = 2_000, 0.3


class Requests(NamedTuple):
    """n requests in the order of their arrival, float64 [n] each.

    arrival_s  seconds before which they are not sent; 0 in a closed loop
    prompt     tokens of the prompt
    cached     those of them that need no computing: the engine's cache holds them already
    kept       those of them that take memory of their own
    output     generated tokens
    in_flight  most that are sent and not answered: the next one is sent when another has been answered; 0: any
    warm_up    requests at the start that do not count
    """

    arrival_s: Floats
    prompt: Floats
    cached: Floats
    kept: Floats
    output: Floats
    in_flight: int
    warm_up: int


class Lengths(NamedTuple):
    """Tokens of prompts and outputs, each uniform in (1 - its spread) to 1 of these.

    prefix_hit  share of a prompt that a cache holds
    fetched     share of that which the host holds: on the device it takes memory of its own
    drift       share of an answer by which equal ones of a closed loop end apart
    """

    prompt: float
    output: float
    prompt_spread: float
    output_spread: float
    prefix_hit: float
    fetched: float = 0.0
    drift: float = 0.0

    def means(self) -> tuple[float, float, float, float, float]:
        """Return the mean tokens of a prompt, those of it that are cached, of an output, and of a prompt uncached.

        The last are the mean keys of a decoding sequence, over all tokens that are generated.
        """
        share = 1.0 - 0.5 * self.output_spread
        prompt, output = max((1.0 - 0.5 * self.prompt_spread) * self.prompt, 1.0), max(share * self.output, 1.0)
        cached = self.prefix_hit * prompt
        # E[output^2] / (2 E[output]) of a uniform length, whose variance is (spread x longest)^2 / 12.
        generated = 0.5 * output * (1.0 + (self.output_spread / share) ** 2 / 12.0)
        return prompt, cached, output, prompt - (1.0 - self.fetched) * cached, prompt + generated


def closed(lengths: Lengths, in_flight: int, seed: int, count: int = 0) -> Requests:
    """Return a closed loop that starts with all at once, as benchmarks do: `count` requests, or ROUNDS for each."""
    requests = _drawn(lengths, np.zeros(count or closed_count(in_flight)), in_flight, 0, seed)
    if lengths.drift == 0.0:
        return requests
    apart = lengths.drift * (np.random.default_rng([seed, 2]).random(len(requests.output)) - 0.5)
    return requests._replace(output=np.maximum(np.round((1.0 + apart) * requests.output), 1.0))


def closed_count(in_flight: int) -> int:
    """Return how many requests a closed loop has."""
    return max(min(ROUNDS * in_flight, MOST_REQUESTS), 2 * in_flight, _FEWEST if in_flight > 1 else ROUNDS)


def arrivals(
    lengths: Lengths, rate_per_s: float, running: float, seed: int, variation: float = 1.0, in_flight: int = 0
) -> Requests:
    """Return open arrivals, enough of them where about `running` requests are in flight at once.

    The times between them are gamma distributed, exponentially where their squared coefficient of `variation` is 1.
    """
    count = int(min(max(_OPEN, 6.0 * running), MOST_REQUESTS))
    return _drawn(lengths, _arriving(rate_per_s, variation, count, seed), in_flight, int(_WARM * count), seed)


def run_of(lengths: Lengths, rate_per_s: float, variation: float, count: int, seed: int) -> Requests:
    """Return so many open arrivals, which all count."""
    return _drawn(lengths, _arriving(rate_per_s, variation, count, seed), 0, 0, seed)


def _arriving(rate_per_s: float, variation: float, count: int, seed: int) -> Floats:
    return np.cumsum(np.random.default_rng([seed, 1]).gamma(1.0 / variation, variation / rate_per_s, count))


def burst(lengths: Lengths, count: int, seed: int) -> Requests:
    """Return requests that all arrive at once."""
    return _drawn(lengths, np.zeros(count), 0, 0, seed)


def trace(
    arrival_s: Floats, prompt: Floats, output: Floats, prefix_hit: float, in_flight: int = 0, fetched: float = 0.0
) -> Requests:
    """Return recorded requests, sorted by their arrival."""
    order = np.argsort(arrival_s, kind="stable")
    sent = prompt[order]
    cached = np.floor(prefix_hit * sent)
    kept = sent - (1.0 - fetched) * cached
    return Requests(arrival_s[order] - arrival_s.min(), sent, cached, kept, output[order], in_flight, 0)


def _drawn(lengths: Lengths, arrival_s: Floats, in_flight: int, warm_up: int, seed: int) -> Requests:
    generator = np.random.default_rng([seed, 0])
    spreads = np.array([[lengths.prompt_spread], [lengths.output_spread]])
    shares = 1.0 - spreads * generator.random((2, len(arrival_s)))
    prompt = np.maximum(np.round(shares[0] * lengths.prompt), 1.0)
    output = np.maximum(np.round(shares[1] * lengths.output), 1.0)
    cached = np.floor(lengths.prefix_hit * prompt)
    kept = prompt - (1.0 - lengths.fetched) * cached
    return Requests(arrival_s, prompt, cached, kept, output, in_flight, warm_up)
