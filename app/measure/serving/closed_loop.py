"""A closed loop: so many requests in flight, each answer followed by the next request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter, process_time

from app.errors import GpucastError
from app.measure.serving.endpoint import Completion, Endpoint, RequestFailed
from app.measure.serving.prompts import Prompts

# Requests that count for each in flight, as benchmarks of serving stacks do; the first burst is among them.
PER_PLACE = 10
# Failed requests without one that succeeded, after which the loop ends.
_HOPELESS = 5
# Tokens that a request generates to warm up: the engine compiles and captures graphs for as many sequences.
_WARM_TOKENS = 16


@dataclass(slots=True)
class Measured:
    """What a loop measured.

    busy  share of the time that this process computed: near 1 it is slower than the endpoint, and times are its own
    """

    concurrency: int
    output_tokens: int
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    completions: list[Completion] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    duration_s: float = 0.0
    busy: float = 0.0


async def closed_loop(
    endpoint: Endpoint,
    prompts: Prompts,
    measured: Measured,
    *,
    seconds: float,
    observe: Callable[[Measured], None],
) -> None:
    """Warm up, then fill `measured` for PER_PLACE requests a place or until `seconds` are over; those in flight finish.

    Raises GpucastError if no request succeeds.
    """
    end = perf_counter() + seconds
    warm = (_one(endpoint, prompts, _WARM_TOKENS, Measured(1, _WARM_TOKENS)) for _ in range(measured.concurrency))
    await asyncio.gather(*warm)
    sent = 0

    async def place() -> None:
        nonlocal sent
        while sent < PER_PLACE * measured.concurrency and (sent < measured.concurrency or perf_counter() < end):
            sent += 1
            await _one(endpoint, prompts, measured.output_tokens, measured)
            if not measured.completions and measured.failed.total() >= _HOPELESS:
                return
            observe(measured)

    measured.began, began, computed = datetime.now(UTC), perf_counter(), process_time()
    await asyncio.gather(*(place() for _ in range(measured.concurrency)))
    measured.duration_s = perf_counter() - began
    measured.busy = (process_time() - computed) / measured.duration_s
    if not measured.completions:
        ((reason, _),) = measured.failed.most_common(1)
        raise GpucastError(f"No request of {measured.concurrency} in flight succeeds: {reason}")


async def _one(endpoint: Endpoint, prompts: Prompts, output_tokens: int, measured: Measured) -> None:
    try:
        measured.completions.append(await endpoint.complete(prompts.draw(), output_tokens))
    except RequestFailed as error:
        measured.failed[str(error)] += 1
