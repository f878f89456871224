"""Reports of guidellm (benchmarks.json): a benchmark per load."""

from __future__ import annotations

from collections.abc import Sequence

from app.formats.serving.point import (
    BenchmarkPoint,
    LeftOut,
    Reader,
    Record,
    figure,
    find,
    load_of,
    moment,
    positive,
    succeeded,
    text,
)

_MS = 1e-3


def matches(document: Record) -> bool:
    """Return whether this is a report of guidellm."""
    benchmarks = document.get("benchmarks")
    return isinstance(benchmarks, list) and bool(benchmarks) and find(benchmarks[0], "metrics") is not None


def records(document: Record) -> Sequence[Record]:
    """Return the benchmarks, each with the report's arguments."""
    arguments = document.get("args")
    return [{"args": arguments, **benchmark} for benchmark in document["benchmarks"] if isinstance(benchmark, dict)]


def read(record: Record) -> BenchmarkPoint:
    """Return the point of a benchmark. Raises LeftOut.

    Its time per output token counts the first token too; its inter-token latency is ours, which does not.
    """
    totals = ("metrics", "request_totals")
    requests = succeeded(figure(record, *totals, "successful"), figure(record, *totals, "errored"))
    return BenchmarkPoint(
        load=_load(record, requests),
        input_tokens=_tokens(record, "prompt_token_count"),
        output_tokens=_tokens(record, "output_token_count"),
        ttft_s=_mean(record, "time_to_first_token_ms") * _MS,
        tpot_s=_mean(record, "inter_token_latency_ms") * _MS,
        e2e_s=_mean(record, "request_latency"),
        requests=requests,
        output_tokens_per_s=figure(record, "metrics", "output_tokens_per_second", "successful", "mean"),
        measured_at=moment(find(record, "start_time") or find(record, "scheduler_metrics", "start_time")),
        model=_model(record),
    )


def _mean(record: Record, metric: str) -> float:
    return positive(record, "metrics", metric, "successful", "mean")


def _tokens(record: Record, metric: str) -> float:
    """Return the mean tokens of a request, which some versions only give as a sum."""
    counts = find(record, "metrics", metric, "successful") or {}
    total, count = figure(counts, "total_sum"), figure(counts, "count")
    if figure(counts, "mean") is None and total is not None and count:
        return positive({"mean": total / count}, "mean")
    return _mean(record, metric)


def _load(record: Record, requests: int) -> dict[str, float]:
    """Return the load of a benchmark's strategy."""
    strategy = find(record, "config", "strategy") or find(record, "args", "strategy") or {}
    kind = text(strategy, "type_") or text(strategy, "type")
    if kind == "synchronous":
        return load_of(requests, 1.0, None)
    if kind == "concurrent":
        return load_of(requests, figure(strategy, "streams") or positive(strategy, "max_concurrency"), None)
    if kind == "poisson":
        return load_of(requests, None, positive(strategy, "rate"))
    raise LeftOut(f"strategy {kind!r}: only synchronous, concurrent and poisson are loads of the service")


def _model(record: Record) -> str | None:
    """Return the model's name, in the places of the report's versions."""
    places = (("config", "backend", "model"), ("args", "model"), ("args", "backend_kwargs", "model"))
    others = (("worker", "backend_model"), ("args", "backend_args", "model"))
    return next((name for place in (*places, *others) if (name := text(record, *place))), None)


READER = Reader("guidellm", matches, read, records)
