"""Results of `vllm bench serve`: --save-result, --save-detailed and --append-result."""

from __future__ import annotations

from app.formats.serving.point import (
    BenchmarkPoint,
    LeftOut,
    Lengths,
    Reader,
    Record,
    end_to_end_s,
    figure,
    find,
    lengths_of,
    load_of,
    moment,
    positive,
    succeeded,
    text,
)

_MS = 1e-3
# Names of engines among `endpoint_type`; openai and openai-chat may be any.
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


def matches(document: Record) -> bool:
    """Return whether this is a result of `vllm bench serve`."""
    return {"model_id", "request_rate", "mean_ttft_ms", "completed"} <= document.keys()


def read(record: Record) -> BenchmarkPoint:
    """Return the point of a result. Raises LeftOut."""
    prompts = figure(record, "num_prompts")
    done = figure(record, "completed")
    failed = figure(record, "failed")
    requests = succeeded(done, failed if failed is not None or prompts is None else prompts - (done or 0.0))
    ttft_s, tpot_s = positive(record, "mean_ttft_ms") * _MS, positive(record, "mean_tpot_ms") * _MS
    mean_output = positive(record, "total_output_tokens") / requests
    # The time of a request is only in the file with --percentile-metrics e2el.
    told = find(record, "mean_e2el_ms") is not None
    lengths = _lengths(record, requests)
    return BenchmarkPoint(
        load=_load(record, requests),
        input_tokens=lengths.prompt,
        output_tokens=lengths.output,
        length_spread=lengths.spread,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=positive(record, "mean_e2el_ms") * _MS if told else end_to_end_s(ttft_s, tpot_s, mean_output),
        requests=requests,
        output_tokens_per_s=figure(record, "output_throughput"),
        measured_at=moment(record.get("date"), "%Y%m%d-%H%M%S"),
        model=text(record, "model_id"),
        engine=_ENGINES.get(text(record, "endpoint_type") or text(record, "backend") or ""),
    )


def _load(record: Record, requests: int) -> dict[str, float]:
    """Return the load; the rate of all at once is "inf" in the file."""
    if find(record, "ramp_up_strategy") is not None:
        raise LeftOut("ramp_up_strategy: the rate grows during the run")
    rate = figure(record, "request_rate")
    if rate is not None and (figure(record, "burstiness") or 1.0) != 1.0:
        raise LeftOut(f"burstiness is {record['burstiness']}: only Poisson arrivals (1.0) are a load of the service")
    return load_of(requests, figure(record, "max_concurrency"), rate)


def _lengths(record: Record, requests: int) -> Lengths:
    """Return the lengths of requests: of each with --save-detailed, else their means."""
    prompts, outputs = find(record, "input_lens"), find(record, "output_lens")
    if isinstance(prompts, list) and isinstance(outputs, list) and prompts and outputs:
        return lengths_of(prompts, outputs)
    totals = positive(record, "total_input_tokens"), positive(record, "total_output_tokens")
    return Lengths(totals[0] / requests, totals[1] / requests, None)


READER = Reader("vllm bench serve", matches, read)
