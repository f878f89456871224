"""Read results of benchmarks of LLM serving by a map of fields per tool (`seed_data/formats/serving.json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from app.formats.serving.point import (
    BenchmarkPoint,
    Record,
    TokenLengths,
    figure,
    find,
    load_of,
    moment,
    positive,
    succeeded,
    text,
)
from app.stacks.registry import engine_of


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
