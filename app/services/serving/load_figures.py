"""Figures of a load on an engine: by the event simulation, or by the closed form."""

from __future__ import annotations

from math import ceil

import numpy as np

from app.services.serving.deployment import Deployment
from app.services.serving.engines import Engine, shape_of
from app.services.serving.figures import LoadFigures, Times, times_of
from app.services.serving.pools import decoded_shape, pooled_figures
from app.services.serving.simulated import simulated
from app.serving.engine_limits import admitted_bytes, most_sequences, serial_s
from app.serving.requests import Requests, burst, closed, poisson, trace
from app.serving.steady_state import Shape, Steady, closed_loop, highest_rate, open_load

# Prompts take so much of the time at the highest rate that they are what limits it.
_PREFILL_BOUND = 0.7
# So busy is the host's front end at the highest rate that it is what limits it.
_HOST_BOUND = 0.98


def load_figures(deployment: Deployment, engine: Engine, percentile: float = 90.0) -> LoadFigures:
    """Return the figures of the deployment's load on engines of one GPU type, with this percentile of the times too."""
    if engine.pool is not None and deployment.pool is not None:
        return pooled_figures(deployment, engine, deployment.pool, engine.pool, percentile)
    shape, engines = shape_of(deployment), deployment.engines
    most = highest_rate(engine.times, engine.limits, shape)
    steady = _steady(deployment, engine, shape)
    cause = _cause(engine, shape, most)
    if most == 0.0 or not np.isfinite(steady.tpot_s):
        return _saturated(engine, shape, most * engines, cause)
    bytes_each = admitted_bytes(engine.limits, shape.kept, shape.output)
    by_form = LoadFigures(
        Times(steady.ttft_s),
        Times(steady.tpot_s) if shape.output > 1.0 else None,
        Times(steady.e2e_s),
        engines * steady.requests_per_s,
        engines * steady.running,
        steady.decoding,
        steady.running * bytes_each / deployment.attention_replicas,
        steady.decode_s,
        steady.mixed_s,
        engines * most,
        cause,
    )
    if deployment.workload.method == "closed_form":
        return by_form
    return _simulated(deployment, engine, _requests(deployment, steady), by_form, percentile)


def _saturated(engine: Engine, shape: Shape, most: float, cause: str) -> LoadFigures:
    bytes_each = admitted_bytes(engine.limits, shape.kept, shape.output)
    return LoadFigures(None, None, None, np.nan, np.nan, 1.0, bytes_each, np.nan, np.nan, most, cause)


def _cause(engine: Engine, shape: Shape, most: float) -> str:
    """Return what limits the rate."""
    steady = open_load(engine.times, engine.limits, shape, 0.999 * most)
    if most > 0.0 and max(steady.prefill_share, most * steady.mixed_s * (shape.output <= 1.0)) > _PREFILL_BOUND:
        return "prefill"
    if most * serial_s(engine.limits, shape.prompt) > _HOST_BOUND:
        return "host"
    each = admitted_bytes(engine.limits, shape.kept, shape.output)
    return "kv_cache" if engine.limits.kv_bytes / each < engine.limits.sequences else "max_sequences"


def _steady(deployment: Deployment, engine: Engine, shape: Shape) -> Steady:
    """Return the steady state of one engine's share of the load."""
    load, engines = deployment.workload.load, deployment.engines
    if load.rate_per_s is not None:
        return open_load(engine.times, engine.limits, shape, load.rate_per_s / engines)
    at_once = len(load.trace.arrival_s) if load.trace is not None else int(load.concurrency or load.burst or 1)
    steady = closed_loop(engine.times, engine.limits, shape, float(ceil(at_once / engines)))
    return steady if load.concurrency is not None else _at_once(steady, shape, ceil(at_once / engines))


def _at_once(steady: Steady, shape: Shape, count: int) -> Steady:
    """Return the means of requests that arrive together: their prompts one after another, then all decode."""
    prefill = steady.mixed_s * max(steady.running, 1.0) / max(count, 1)
    ttft = 0.5 * (count + 1.0) * prefill
    later = max(shape.output - 1.0, 0.0)
    tpot = steady.decode_s + 0.5 * (count - 1.0) * prefill / max(later, 1.0)
    e2e = ttft + later * tpot
    return steady._replace(ttft_s=ttft, tpot_s=tpot, e2e_s=e2e, requests_per_s=count / e2e)


def _requests(deployment: Deployment, steady: Steady) -> Requests:
    """Return the requests that one engine gets."""
    workload, engines, lengths = deployment.workload, deployment.engines, deployment.lengths
    load, seed = workload.load, int(workload.seed)
    if load.trace is not None:
        columns = (load.trace.arrival_s, load.trace.input_tokens, load.trace.output_tokens)
        arrival, prompt, output = (np.array(column, dtype=np.float64) for column in columns)
        dealt = np.argsort(arrival, kind="stable")[::engines]
        return trace(arrival[dealt], prompt[dealt], output[dealt], workload.prefix_hit)
    if load.rate_per_s is not None:
        return poisson(lengths, load.rate_per_s / engines, steady.running, seed)
    at_once = ceil((load.concurrency or load.burst or 1) / engines)
    return closed(lengths, at_once, seed) if load.concurrency is not None else burst(lengths, at_once, seed)


def _simulated(
    deployment: Deployment, engine: Engine, requests: Requests, by_form: LoadFigures, percentile: float
) -> LoadFigures:
    found = simulated(engine, requests)
    counted = np.arange(len(requests.prompt)) >= requests.warm_up
    done = counted & np.isfinite(found.ended_s)
    if not done.any():
        return by_form._replace(unfinished=int(counted.sum()), steps=found.steps)
    first, ended = found.first_s - found.arrived_s, found.ended_s - found.arrived_s
    several = done & (requests.output > 1.0)
    later = np.maximum(requests.output - 1.0, 1.0)
    e2e = times_of(ended[done], percentile)
    running = found.running * deployment.engines
    load = deployment.workload.load
    rate = load.rate_per_s or float(len(first) / max(np.nanmax(found.ended_s), 1e-9) * deployment.engines)
    if load.concurrency is not None:
        rate = load.concurrency / e2e.mean
    return LoadFigures(
        times_of(first[done], percentile),
        times_of(((found.ended_s - found.first_s) / later)[several], percentile) if several.any() else None,
        e2e,
        rate,
        running,
        found.decoding,
        found.kv_bytes / deployment.attention_replicas,
        found.decode_s,
        found.mixed_s,
        by_form.highest_rate,
        by_form.cause,
        int((counted & ~done).sum()),
        found.steps,
    )


def sequence_limit(deployment: Deployment, engine: Engine) -> int:
    """Return the most sequences of the mean request that all engines run at once."""
    shape = shape_of(deployment) if deployment.pool is None else decoded_shape(shape_of(deployment))
    each = most_sequences(engine.limits, shape.kept, shape.output)
    return int(deployment.engines * each)
