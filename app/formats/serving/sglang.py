"""Results of SGLang's bench_serving: a line of JSON per run."""

from __future__ import annotations

from app.formats.serving.point import (
    BenchmarkPoint,
    LeftOut,
    Lengths,
    Reader,
    Record,
    figure,
    find,
    lengths_of,
    load_of,
    positive,
    succeeded,
    text,
)

_MS = 1e-3
# First parts of `backend`.
_ENGINES = {"sglang": "sglang", "vllm": "vllm", "trt": "trtllm"}
_RANDOM = ("random", "random-ids")
# The least of a workload's lengths is more than nothing.
_MOST_SPREAD = 0.99


def matches(document: Record) -> bool:
    """Return whether this is a result of bench_serving."""
    return {"backend", "mean_e2e_latency_ms", "mean_ttft_ms", "completed"} <= document.keys()


def read(record: Record) -> BenchmarkPoint:
    """Return the point of a result. Raises LeftOut."""
    requests = succeeded(figure(record, "completed"), _failed(record))
    accepted = figure(record, "accept_length")
    if accepted is not None and accepted > 1.0:
        raise LeftOut(f"accept_length is {accepted:.3g}: speculative decoding")
    if text(record, "request_rate") == "trace":
        raise LeftOut("request_rate is 'trace': recorded arrivals are not in the file")
    lengths = _lengths(record, requests)
    return BenchmarkPoint(
        load=load_of(requests, figure(record, "max_concurrency"), figure(record, "request_rate")),
        input_tokens=lengths.prompt,
        output_tokens=lengths.output,
        length_spread=lengths.spread,
        ttft_s=positive(record, "mean_ttft_ms") * _MS,
        tpot_s=positive(record, "mean_tpot_ms") * _MS,
        e2e_s=positive(record, "mean_e2e_latency_ms") * _MS,
        requests=requests,
        output_tokens_per_s=figure(record, "output_throughput"),
        model=text(record, "server_info", "served_model_name") or text(record, "server_info", "model_path"),
        engine=_ENGINES.get((text(record, "backend") or "").split("-")[0]),
        version=text(record, "server_info", "version"),
        parallelism=_parallelism(record),
    )


def _failed(record: Record) -> float | None:
    """Return the requests with an error, which only --output-details writes."""
    errors = find(record, "errors")
    return float(sum(map(bool, errors))) if isinstance(errors, list) else None


def _parallelism(record: Record) -> dict[str, float]:
    """Return how the server says that it splits the model, if it was asked."""
    names = {"tp_size": "tensor", "pp_size": "pipeline", "ep_size": "expert"}
    found = {ours: figure(record, "server_info", name) for name, ours in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _lengths(record: Record, requests: int) -> Lengths:
    """Return the lengths of requests: of each, of the random data set, or their means."""
    prompts, outputs = find(record, "input_lens"), find(record, "output_lens")
    if isinstance(prompts, list) and isinstance(outputs, list) and prompts and outputs:
        return lengths_of(prompts, outputs)
    ratio = figure(record, "random_range_ratio")
    if text(record, "dataset_name") in _RANDOM and ratio is not None and ratio <= 1.0:
        longest = positive(record, "random_input_len"), positive(record, "random_output_len")
        return Lengths(*longest, min(1.0 - ratio, _MOST_SPREAD))
    totals = positive(record, "total_input_tokens"), positive(record, "total_output_tokens")
    return Lengths(totals[0] / requests, totals[1] / requests, None)


READER = Reader("sglang bench_serving", matches, read)
