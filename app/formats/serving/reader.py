"""Read results of benchmarks of LLM serving by a map of fields per tool (`seed_data/formats/serving.json`).

A served point is as a benchmark measured it; readers take its figures from JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from app.stacks.registry import engine_of

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
    """Return the load of a benchmark with a cap on requests in flight, a rate of arrivals, both or neither (None)."""
    if rate_per_s is not None:
        return {"rate_per_s": rate_per_s} | ({} if concurrency is None else {"max_concurrency": concurrency})
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


class FieldMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a tool's result has its figures: names joined by points, in order of trial where there are several.

    list          the records of a document, each of which gets the document's other fields; empty: it is one record
    has           names that a record has and that no other tool's has all of
    ttft, tpot, e2e  mean times; `seconds`: their units in seconds, 1 if absent
    e2e_optional  whether the time of a request may be missing
    """

    has: tuple[str, ...]
    ttft: str
    tpot: str
    e2e: str
    list: str = ""
    e2e_optional: bool = False
    seconds: dict[str, float] = {}
    completed: tuple[str, ...] = ()
    failed: str = ""
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    tokens_per_s: str = ""
    concurrency: str = ""
    rate: str = ""
    measured_at: tuple[str, ...] = ()
    time_form: str | None = None
    model: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    version: str = ""
    image: str = ""
    gpu: str = ""
    dtype: str = ""
    parallelism: dict[str, str] = {}


class ToolReader:
    """Reader of a tool's results: its map of fields, and in subclasses what is no field."""

    def __init__(self, tool: str, fields: FieldMap) -> None:
        self.tool, self.fields = tool, fields

    def matches(self, document: Record) -> bool:
        """Return whether a JSON object is of this tool."""
        if not self.fields.list:
            return all(name in document or find(document, name) is not None for name in self.fields.has)
        listed = document.get(self.fields.list)
        first = listed[0] if isinstance(listed, list) and listed else {}
        return isinstance(listed, list) and all(find(first, name) is not None for name in self.fields.has)

    def records(self, document: Record) -> Sequence[Record]:
        """Return the records of a document."""
        if not self.fields.list:
            return [document]
        shared = {name: value for name, value in document.items() if name != self.fields.list}
        return [{**shared, **record} for record in document[self.fields.list] if isinstance(record, Mapping)]

    def read(self, record: Record) -> BenchmarkPoint:
        """Return the point of a record. Raises LeftOut."""
        fields = self.fields
        self.check(record)
        requests = self.requests(record)
        load = self.load(record, requests)
        lengths = self.lengths(record, requests)
        ttft_s, tpot_s = self.seconds(record, "ttft"), self.seconds(record, "tpot")
        return BenchmarkPoint(
            load=load,
            input_tokens=lengths.prompt,
            output_tokens=lengths.output,
            length_spread=lengths.spread,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2e_s=self.end_to_end_s(record, requests, ttft_s, tpot_s),
            requests=requests,
            output_tokens_per_s=self.tokens_per_s(record),
            measured_at=self.measured_at(record),
            model=self.model(record),
            engine=self.engine(record),
            version=text(record, fields.version),
            image=text(record, fields.image),
            gpu=self.gpu(record),
            dtype=self.dtype(record),
            parallelism=self.parallelism(record),
            fields=self.workload(record),
        )

    def measured_at(self, record: Record) -> datetime | None:
        """Return when it was measured."""
        times = (value for path in self.fields.measured_at if (value := find(record, path)))
        return moment(next(times, None), self.fields.time_form)

    def check(self, record: Record) -> None:
        """Raise LeftOut for a result that is not of a served model alone, or whose run did not end."""

    def requests(self, record: Record) -> int:
        """Return the number of successful requests. Raises LeftOut."""
        completed = next((number for name in self.fields.completed if (number := figure(record, name))), None)
        return succeeded(completed, self.failed(record, completed))

    def failed(self, record: Record, completed: float | None) -> float | None:
        """Return the number of failed requests, None if unknown."""
        return figure(record, self.fields.failed)

    def load(self, record: Record, requests: int) -> dict[str, float]:
        """Return the load. Raises LeftOut."""
        return load_of(requests, figure(record, self.fields.concurrency), figure(record, self.fields.rate))

    def lengths(self, record: Record, requests: int) -> TokenLengths:
        """Return the lengths of requests. Raises LeftOut."""
        return TokenLengths(
            *(self.tokens(record, names) for names in (self.fields.input_tokens, self.fields.output_tokens))
        )

    def tokens(self, record: Record, names: Sequence[str]) -> float:
        """Return the mean tokens of a request, under the name of the file's version. Raises LeftOut."""
        return positive(record, next((name for name in names if find(record, name) is not None), names[0]))

    def seconds(self, record: Record, time: str) -> float:
        """Return a mean time, seconds. Raises LeftOut."""
        return positive(record, getattr(self.fields, time)) * self.fields.seconds.get(time, 1.0)

    def end_to_end_s(self, record: Record, requests: int, ttft_s: float, tpot_s: float) -> float:
        """Return the mean time of requests, seconds; exact for outputs of one length where the file has none."""
        if self.fields.e2e_optional and find(record, self.fields.e2e) is None:
            return ttft_s + tpot_s * max(self.mean_output(record, requests) - 1.0, 0.0)
        return self.seconds(record, "e2e")

    def mean_output(self, record: Record, requests: int) -> float:
        """Return the mean tokens of an output. Raises LeftOut."""
        return positive(record, "total_output_tokens") / requests

    def tokens_per_s(self, record: Record) -> float | None:
        """Return the output tokens of all requests together, a second."""
        return figure(record, self.fields.tokens_per_s)

    def model(self, record: Record) -> str | None:
        """Return the model's name."""
        return _first_text(record, self.fields.model)

    def engine(self, record: Record) -> str | None:
        """Return the serving stack."""
        return engine_of(_first_text(record, self.fields.engine))

    def gpu(self, record: Record) -> str | None:
        """Return the GPU's name."""
        return text(record, self.fields.gpu)

    def dtype(self, record: Record) -> str | None:
        """Return the number format of the weights."""
        return text(record, self.fields.dtype)

    def parallelism(self, record: Record) -> dict[str, float]:
        """Return how the model is split, as far as the file has it."""
        split = {name: figure(record, path) for name, path in self.fields.parallelism.items()}
        return {name: value for name, value in split.items() if value is not None}

    def workload(self, record: Record) -> dict[str, Any]:
        """Return other fields of the workload."""
        return {}


def _first_text(record: Record, paths: Sequence[str]) -> str | None:
    """Return the first text that there is under nested names, or None."""
    return next((value for path in paths if (value := text(record, path))), None)
