"""Summaries of NVIDIA's genai-perf and aiperf: profile_export_genai_perf.json, profile_export_aiperf.json.

Each metric is an object with its `unit` and statistics over requests (`avg`, `p50`, ...). Their inter-token latency is
the time of a request after the first token over its later tokens: the time per output token.
"""

from __future__ import annotations

from collections.abc import Mapping

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

_UNITS_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Where the versions of both tools keep the settings of a load, in `input_config`.
_LOADS = (("loadgen",), ("perf_analyzer", "stimulus"), ())


def matches(document: Record) -> bool:
    """Return whether this is a summary of either tool."""
    return {"request_latency", "output_sequence_length", "input_config"} <= document.keys()


def read(record: Record) -> BenchmarkPoint:
    """Return the point of a summary. Raises LeftOut."""
    if find(record, "was_cancelled") is True:
        raise LeftOut("was_cancelled: the run was interrupted")
    if "time_to_first_token" not in record:
        raise LeftOut("time_to_first_token is missing: measure with --streaming")
    done = figure(record, "request_count", "avg") or figure(record, "request_latency", "count")
    requests = succeeded(done, figure(record, "error_request_count", "avg"))
    prompt = positive(record, "input_sequence_length", "avg")
    output = positive(record, "output_sequence_length", "avg")
    return BenchmarkPoint(
        load=_load(record, requests),
        input_tokens=prompt,
        output_tokens=output,
        ttft_s=_seconds(record, "time_to_first_token"),
        tpot_s=_seconds(record, "inter_token_latency"),
        e2e_s=_seconds(record, "request_latency"),
        requests=requests,
        output_tokens_per_s=figure(record, "output_token_throughput", "avg"),
        measured_at=moment(record.get("start_time")),
        model=_model(record),
        engine=_engine(record),
    )


def _seconds(record: Record, metric: str) -> float:
    """Return the mean of a time in its own unit, seconds."""
    unit = text(record, metric, "unit") or "ms"
    if unit not in _UNITS_S:
        raise LeftOut(f"{metric}.unit is {unit[:20]!r}: none of {', '.join(_UNITS_S)}")
    return positive(record, metric, "avg") * _UNITS_S[unit]


def _load(record: Record, requests: int) -> dict[str, float]:
    """Return the load of the profiled phase."""
    config = record["input_config"]
    phases = find(config, "phases")
    profiled = [phase for phase in phases if find(phase, "name") != "warmup"] if isinstance(phases, list) else []
    if len(profiled) > 1:
        raise LeftOut("input_config.phases: several loads in one summary")
    places = [*profiled, *(find(config, *path) if path else config for path in _LOADS)]
    for place in places:
        if not isinstance(place, Mapping):
            continue
        rate = figure(place, "request_rate") or figure(place, "rate")
        concurrency = figure(place, "concurrency")
        if rate is None and concurrency is None:
            continue
        mode = text(place, "arrival_pattern") or text(place, "request_rate_mode") or "poisson"
        if rate is not None and mode != "poisson":
            raise LeftOut(f"requests arrive in mode {mode[:20]!r}: only Poisson arrivals are a load of the service")
        return load_of(requests, concurrency, rate)
    raise LeftOut("input_config names no concurrency and no request_rate")


def _model(record: Record) -> str | None:
    """Return the model's name, which is a list of one in most versions."""
    config = record["input_config"]
    for path in (("endpoint", "model_names"), ("model_names",), ("models",), ("model",)):
        found = find(config, *path)
        first = found[0] if isinstance(found, list) and found else found
        name = find(first, "name") if isinstance(first, Mapping) else first
        if isinstance(name, str) and name:
            return name
    return None


def _engine(record: Record) -> str | None:
    """Return the serving stack, where the backend of Triton tells it."""
    backend = text(record, "input_config", "endpoint", "backend") or text(record, "input_config", "backend")
    return {"vllm": "vllm", "tensorrtllm": "trtllm"}.get(backend or "")


READER = Reader("aiperf", matches, read)
