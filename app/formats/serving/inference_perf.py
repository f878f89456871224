"""Reports of inference-perf: stage_N_lifecycle_metrics.json, and summary_lifecycle_metrics.json with --set load."""

from __future__ import annotations

from app.formats.serving.point import (
    BenchmarkPoint,
    LeftOut,
    Reader,
    Record,
    figure,
    find,
    load_of,
    positive,
    succeeded,
)

# Random arrivals over a minute deviate by some percent from the rate.
_MOST_OFF = 0.25


def matches(document: Record) -> bool:
    """Return whether this is a report of inference-perf."""
    return find(document, "successes", "latency") is not None and "load_summary" in document


def read(record: Record) -> BenchmarkPoint:
    """Return the point of a report, whose times are seconds. Raises LeftOut."""
    requests = succeeded(figure(record, "successes", "count"), figure(record, "failures", "count"))
    return BenchmarkPoint(
        load=_load(record, requests),
        input_tokens=_tokens(record, ("prompt_len", "prompt_tokens")),
        output_tokens=_tokens(record, ("output_len", "output_tokens")),
        ttft_s=_mean(record, "time_to_first_token"),
        tpot_s=_mean(record, "time_per_output_token"),
        e2e_s=_mean(record, "request_latency"),
        requests=requests,
        output_tokens_per_s=figure(record, "successes", "throughput", "output_tokens_per_sec"),
    )


def _mean(record: Record, metric: str) -> float:
    return positive(record, "successes", "latency", metric, "mean")


def _tokens(record: Record, names: tuple[str, str]) -> float:
    """Return the mean tokens of a request, under the name of the report's version."""
    known = [name for name in names if find(record, "successes", name) is not None]
    return positive(record, "successes", known[0] if known else names[0], "mean")


def _load(record: Record, requests: int) -> dict[str, float]:
    """Return the load of a stage; a stage of workers in a closed loop has a concurrency, and a rate that is not sent.

    Empty for the summary of all stages, unless it had one: `--set load.concurrency=...` tells it then.
    """
    concurrency = figure(record, "load_summary", "concurrency")
    if concurrency is not None:
        return load_of(requests, concurrency, None)
    rate = figure(record, "load_summary", "requested_rate")
    if rate is None:
        return {}
    achieved = figure(record, "load_summary", "achieved_rate") or rate
    if rate <= 0.0 or abs(achieved / rate - 1.0) > _MOST_OFF:
        raise LeftOut(f"load_summary: {achieved:.4g} requests a second were sent where {rate:.4g} were requested")
    return {"rate_per_s": rate}


READER = Reader("inference-perf", matches, read)
