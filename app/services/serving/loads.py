"""Loads of served models: their checks, the lengths of their requests, and runs that end as recorded requests."""

from __future__ import annotations

from msgspec import structs

from app.errors import BadInput
from app.serving.engine import Lengths, run_of
from app.wire.serving_form import RequestTrace, ServingLoad, ServingWorkload

_LOC = ("workload",)
# Kinds of load by the field that a load has.
LOADS = {"concurrency": "closed", "rate_per_s": "open", "burst": "burst", "trace": "open"}


def refused(field: str, message: str) -> BadInput:
    """Return the error that names a field of the workload, dotted."""
    loc = (*_LOC, *field.split("."))
    return BadInput.at(loc, message)


def check_load(load: ServingLoad) -> None:
    """Raise BadInput unless exactly one load is given, and its columns have one length."""
    given = [name for name in LOADS if getattr(load, name) is not None]
    if len(given) != 1:
        raise refused("load", f"send one of concurrency, rate_per_s, burst and trace, got {', '.join(given) or 'none'}")
    if load.burstiness is not None and load.rate_per_s is None:
        raise refused("load.burstiness", "only arrivals at rate_per_s are by chance: leave it out")
    if load.max_concurrency is not None and load.rate_per_s is None and load.trace is None:
        raise refused("load.max_concurrency", "is a cap beside rate_per_s or a trace: leave it out")
    if load.requests is not None and load.rate_per_s is None and load.concurrency is None:
        raise refused("load.requests", "is of a run at rate_per_s or concurrency: leave it out")
    if load.trace is not None:
        columns = {name: len(getattr(load.trace, name)) for name in load.trace.__struct_fields__}
        for name, count in columns.items():
            if count != columns["arrival_s"]:
                raise refused(f"load.trace.{name}", f"has {count} rows, and arrival_s {columns['arrival_s']}")


def check_run(workload: ServingWorkload, *, pooled: bool) -> None:
    """Raise BadInput for what has no runs that end."""
    if workload.load.requests is not None:
        for field, wrong in (
            ("prefill_pool", workload.prefill_pool is not None),
            ("method", workload.method == "closed_form"),
            ("output_tokens", pooled),
        ):
            if wrong:
                raise refused(
                    "load.requests", f"no run that ends is predicted with this {field}: leave one of them out"
                )


def lengths_of(workload: ServingWorkload) -> Lengths:
    """Return the lengths of a workload's requests. Raises BadInput that names wrong or missing fields."""
    columns = workload.load.trace
    if columns is not None:
        for name in ("input_tokens", "output_tokens", "input_spread", "output_spread"):
            if getattr(workload, name) is not None:
                raise refused(name, "a trace brings its own lengths: leave it out")
        longest = float(max(columns.input_tokens)), float(max(columns.output_tokens))
        return Lengths(*longest, 0.0, 0.0, workload.prefix_hit, _fetched(workload))
    for name in ("input_tokens", "output_tokens"):
        if getattr(workload, name) is None:
            raise refused(name, "required field is missing")
    prompt, output = workload.input_tokens or 1.0, workload.output_tokens or 1.0
    of_prompts, of_answers = (
        workload.length_spread if own is None else own for own in (workload.input_spread, workload.output_spread)
    )
    return Lengths(float(prompt), float(output), of_prompts, of_answers, workload.prefix_hit, _fetched(workload))


def _fetched(workload: ServingWorkload) -> float:
    """Return the share of the hits in the prefix cache that are fetched from the host, as the tiers' sizes are."""
    cache = workload.prefix_cache
    if cache is None:
        return 0.0
    if cache.gpu_bytes + cache.host_bytes == 0.0:
        raise refused("prefix_cache", "send gpu_bytes, host_bytes or both")
    return cache.host_bytes / (cache.gpu_bytes + cache.host_bytes)


def as_recorded(workload: ServingWorkload, lengths: Lengths) -> ServingWorkload:
    """Return a run that ends of open arrivals as the requests that it sends."""
    load = workload.load
    if load.requests is None or load.rate_per_s is None:
        return workload
    sent = run_of(lengths, load.rate_per_s, 1.0 / (load.burstiness or 1.0), int(load.requests), int(workload.seed))
    recorded = RequestTrace(
        arrival_s=sent.arrival_s.tolist(), input_tokens=sent.prompt.tolist(), output_tokens=sent.output.tolist()
    )
    return structs.replace(workload, load=ServingLoad(trace=recorded, max_concurrency=load.max_concurrency))
