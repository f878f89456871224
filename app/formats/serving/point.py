"""A served point as a benchmark measured it, and how readers take its figures from JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

Record = Mapping[str, Any]
# A dtype that only says four bits: which format, the model's `quantization_config` or the user tells.
FP4 = "fp4"
# Largest share of failed requests: with more of them the rest ran under another load than the one of the settings.
_MOST_FAILED = 0.01
# Largest relative deviation of the mean from that of uniform lengths between the shortest and the longest.
_UNIFORM = 0.05


class LeftOut(Exception):
    """A result that is no usable measurement of a served model, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPoint:
    """Means over the successful requests of one load, seconds, and what the file says of the deployment.

    load           one of concurrency, rate_per_s (Poisson arrivals) and burst, as in a workload of kind `serving`
    input_tokens, output_tokens  most tokens of a request with `length_spread`; means without
    length_spread  lengths are uniform in (1 - this) to 1 of those; None if the file does not tell
    ttft_s, tpot_s, e2e_s  time to first token, per later token, and of a request
    requests       successful requests
    output_tokens_per_s  of all requests together; None if the file does not tell
    version        of the engine; None if unknown, like `model`, `engine`, `gpu`, `dtype`, `image`
    parallelism    fields of a workload's `parallelism`
    fields         its other fields
    """

    load: Mapping[str, float]
    input_tokens: float
    output_tokens: float
    length_spread: float | None = None
    ttft_s: float
    tpot_s: float
    e2e_s: float
    requests: int
    output_tokens_per_s: float | None = None
    measured_at: datetime | None = None
    model: str | None = None
    engine: str | None = None
    version: str | None = None
    image: str | None = None
    gpu: str | None = None
    dtype: str | None = None
    parallelism: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def find(record: Record, path: str) -> Any:
    """Return the value under nested names, joined by points; None if any is absent."""
    value: Any = record
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def figure(record: Record, path: str) -> float | None:
    """Return the finite number under nested names; None if there is none."""
    value = find(record, path)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if isfinite(number) else None


def positive(record: Record, path: str) -> float:
    """Return the positive number under nested names. Raises LeftOut that names them."""
    number = figure(record, path)
    if number is None or number <= 0.0:
        value = find(record, path)
        state = "is missing" if value is None else f"is {str(value)[:50]!r}"
        raise LeftOut(f"{path} {state}: a positive number is needed")
    return number


def text(record: Record, path: str) -> str | None:
    """Return the text under nested names; None if there is none."""
    value = find(record, path)
    return value if isinstance(value, str) and value else None


def succeeded(completed: float | None, failed: float | None) -> int:
    """Return the number of successful requests. Raises LeftOut if there are none, or too many failed."""
    done, lost = int(completed or 0), int(failed or 0)
    if done < 1:
        raise LeftOut("no request succeeded")
    if lost > _MOST_FAILED * (done + lost):
        raise LeftOut(f"{lost} of {done + lost} requests failed")
    return done


def load_of(requests: int, concurrency: float | None, rate_per_s: float | None) -> dict[str, float]:
    """Return the load of a benchmark with a cap on requests in flight, a rate of arrivals, or neither (None).

    Raises LeftOut for both: such a load is neither a closed loop nor open arrivals.
    """
    if rate_per_s is not None and concurrency is not None:
        raise LeftOut("a rate of requests with a cap on those in flight is neither a closed loop nor open arrivals")
    if rate_per_s is not None:
        return {"rate_per_s": rate_per_s}
    # Fewer requests than places are all sent at once, and none follows.
    if concurrency is None or requests <= concurrency > 1.0:
        return {"burst": float(requests)}
    return {"concurrency": concurrency}


def _length(value: Any) -> float:
    return figure({"length": value}, "length") or 0.0


class TokenLengths(NamedTuple):
    """Tokens of prompts and outputs: the most with a spread, else means."""

    prompt: float
    output: float
    spread: float | None = None


def lengths_of(prompts: Iterable[Any], outputs: Iterable[Any]) -> TokenLengths:
    """Return the lengths of requests: uniform between the shortest and the longest where they look so, else means."""
    both = [[length for length in map(_length, lengths) if length > 0.0] for lengths in (prompts, outputs)]
    if not all(both):
        raise LeftOut("a request without tokens")
    means = [sum(lengths) / len(lengths) for lengths in both]
    spreads = [1.0 - min(lengths) / max(lengths) for lengths in both]
    spread = max(spreads)
    expected = [max(lengths) * (1.0 - spread / 2.0) for lengths in both]
    if all(abs(mean / middle - 1.0) <= _UNIFORM for mean, middle in zip(means, expected, strict=True)):
        return TokenLengths(max(both[0]), max(both[1]), round(spread, 2))
    return TokenLengths(means[0], means[1], None)


def moment(value: object, form: str | None = None) -> datetime | None:
    """Return a time in `form`, in ISO 8601 or in seconds since 1970; without a zone it is UTC. None if it is none."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if not isinstance(value, str):
            return None
        when = datetime.fromisoformat(value) if form is None else datetime.strptime(value, form)
    except (ValueError, OverflowError, OSError):
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
