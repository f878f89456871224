"""Requests of a load: when each arrives, and its tokens. Deterministic by seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from app.tables.arrays import Floats

# Requests of a simulation: so many times those in flight, and within these bounds, which keep its time bounded.
ROUNDS, _FEWEST, MOST_REQUESTS = 10, 64, 20_000
# Of open arrivals the first ones find an engine that is emptier than it will be.
_OPEN, _WARM = 2_000, 0.3


class Requests(NamedTuple):
    """n requests in the order of their arrival, float64 [n] each.

    arrival_s  seconds; NaN in a closed loop, where a request arrives when another one has been answered
    prompt     tokens of the prompt
    cached     those of them that need no computing: the engine's cache holds them already
    kept       those of them that take memory of their own
    output     generated tokens
    in_flight  requests of a closed loop; 0 with arrivals
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
    """Tokens of prompts and outputs, each uniform in (1 - spread) to 1 of these; `prefix_hit`: a prompt's share."""

    prompt: float
    output: float
    spread: float
    prefix_hit: float

    def means(self) -> tuple[float, float, float, float, float]:
        """Return the mean tokens of a prompt, those of it that are cached, of an output, and of a prompt uncached.

        The last are the mean keys of a decoding sequence, over all tokens that are generated.
        """
        share = 1.0 - 0.5 * self.spread
        prompt, output = max(share * self.prompt, 1.0), max(share * self.output, 1.0)
        cached = self.prefix_hit * prompt
        # E[output^2] / (2 E[output]) of a uniform length, whose variance is (spread x longest)^2 / 12.
        generated = 0.5 * output * (1.0 + (self.spread / share) ** 2 / 12.0)
        return prompt, cached, output, prompt - cached, prompt + generated


def closed(lengths: Lengths, in_flight: int, seed: int) -> Requests:
    """Return a closed loop that starts with all at once, as benchmarks do: ROUNDS requests for each in flight."""
    count = max(min(ROUNDS * in_flight, MOST_REQUESTS), 2 * in_flight, _FEWEST if in_flight > 1 else ROUNDS)
    return _drawn(lengths, np.full(count, np.nan), in_flight, 0, seed)


def poisson(lengths: Lengths, rate_per_s: float, running: float, seed: int) -> Requests:
    """Return Poisson arrivals, enough of them where about `running` requests are in flight at once."""
    count = int(min(max(_OPEN, 6.0 * running), MOST_REQUESTS))
    gaps = np.random.default_rng([seed, 1]).exponential(1.0 / rate_per_s, count)
    return _drawn(lengths, np.cumsum(gaps), 0, int(_WARM * count), seed)


def burst(lengths: Lengths, count: int, seed: int) -> Requests:
    """Return requests that all arrive at once."""
    return _drawn(lengths, np.zeros(count), 0, 0, seed)


def trace(arrival_s: Floats, prompt: Floats, output: Floats, prefix_hit: float) -> Requests:
    """Return recorded requests, sorted by their arrival."""
    order = np.argsort(arrival_s, kind="stable")
    sent = prompt[order]
    cached = np.floor(prefix_hit * sent)
    return Requests(arrival_s[order] - arrival_s.min(), sent, cached, sent - cached, output[order], 0, 0)


def _drawn(lengths: Lengths, arrival_s: Floats, in_flight: int, warm_up: int, seed: int) -> Requests:
    generator = np.random.default_rng([seed, 0])
    shares = 1.0 - lengths.spread * generator.random((2, len(arrival_s)))
    prompt = np.maximum(np.round(shares[0] * lengths.prompt), 1.0)
    output = np.maximum(np.round(shares[1] * lengths.output), 1.0)
    cached = np.floor(lengths.prefix_hit * prompt)
    return Requests(arrival_s, prompt, cached, prompt - cached, output, in_flight, warm_up)
