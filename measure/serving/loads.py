"""Loads on an endpoint: a closed loop keeps requests in flight, and each answer is followed by the next request.

Results are a file of JSON that `gpucast import serving` reads, written after each load.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from app.errors import BadInput, GpucastError
from measure.serving.endpoint import Completion, Endpoint, Prompts, RequestFailed

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


POINTS = "serving_points"
_PERCENTILES = (50, 90, 99)


class Results:
    """Points of one endpoint and deployment; `header` is what the file says of them."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Continue the file, if it exists; raises BadInput if it is of another model or deployment."""
        self.path, self.header = path, dict(header)
        self.points: list[dict[str, Any]] = []
        if path.exists():
            self.points = _points_of(path, self.header)

    @property
    def document(self) -> dict[str, Any]:
        """The content of the file."""
        return {**self.header, POINTS: self.points}

    def has(self, concurrency: int, input_tokens: int, output_tokens: int) -> bool:
        """Return whether the file has this load."""
        load = {"concurrency": concurrency, "wanted_input_tokens": input_tokens, "wanted_output_tokens": output_tokens}
        return any(load.items() <= {name: point.get(name) for name in load}.items() for point in self.points)

    def add(self, point: Mapping[str, Any]) -> None:
        """Add a point, and write the file, whole or not at all."""
        self.points.append(dict(point))
        unfinished = self.path.with_name(f"{self.path.name}.new")
        unfinished.write_text(json.dumps(self.document, indent=1) + "\n", "utf-8")
        os.replace(unfinished, self.path)


def _points_of(path: Path, header: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        known = json.loads(path.read_text("utf-8"))
        points: list[dict[str, Any]] = known.pop(POINTS)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadInput(f"{path} is no file of a measured endpoint: name another.") from error
    # A file may be measured without saying the deployment, and continued with it.
    for name in ("model", "deployment"):
        value = header[name]
        if known.get(name) not in (None, {}, value):
            raise BadInput(f"{path} is of {name} {str(known[name])[:100]}, not {str(value)[:100]}: name another file.")
    return points


def point_of(measured: Measured, input_tokens: int) -> dict[str, Any]:
    """Return the means and percentiles of a loop's successful requests, seconds, and their tokens."""
    done = measured.completions
    outputs = [one.output_tokens for one in done]
    return {
        "concurrency": measured.concurrency,
        "wanted_input_tokens": input_tokens,
        "wanted_output_tokens": measured.output_tokens,
        "input_tokens": _mean_tokens([one.prompt_tokens for one in done]),
        "output_tokens": _mean_tokens(outputs),
        "requests": len(done),
        "failed": measured.failed.total(),
        "duration_s": measured.duration_s,
        "output_tokens_per_s": sum(outputs) / measured.duration_s,
        "measured_at": measured.began.isoformat(),
        **times_of(done),
    }


def times_of(done: Sequence[Completion]) -> dict[str, dict[str, float]]:
    """Return mean and percentiles of each time, seconds; `itl_s` is over the gaps of all requests."""
    every = {
        "ttft_s": [one.ttft_s for one in done],
        "tpot_s": [one.tpot_s for one in done if one.output_tokens > 1],
        "e2e_s": [one.e2e_s for one in done],
        "itl_s": [gap for one in done for gap in one.gaps_s],
    }
    return {name: _summary(values) for name, values in every.items() if values}


def _summary(values: Sequence[float]) -> dict[str, float]:
    percentiles = np.percentile(values, _PERCENTILES).tolist()
    named = {f"p{percent}": value for percent, value in zip(_PERCENTILES, percentiles, strict=True)}
    return {"mean": float(np.mean(values)), **named}


def _mean_tokens(counts: Sequence[int]) -> int:
    return round(sum(counts) / len(counts))
