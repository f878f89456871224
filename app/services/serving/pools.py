"""Figures of disaggregated engines: one pool computes the prompts, sends their keys and values, another one decodes.

Each pool is simulated alone under Poisson arrivals at the rate of the load; of a closed loop that is the rate at which
as many requests are in flight (Little's law). A request's keys and values leave and arrive over the network adapters of
all devices that hold them.
"""

from __future__ import annotations

import numpy as np

from app.services.serving.deployment import Deployment
from app.services.serving.engines import Engine, shape_of
from app.services.serving.figures import LoadFigures, Times, times_of
from app.services.serving.simulated import simulated
from app.serving.engine_limits import held_bytes
from app.serving.requests import poisson
from app.serving.steady_state import Shape, Steady, highest_rate, open_load

_BISECTIONS = 40
# Share of the highest rate that a closed loop reaches at most.
_MOST = 0.98


def prompted_shape(shape: Shape) -> Shape:
    """Return the mean request as the pool of prompts has it: one token of output."""
    return shape._replace(output=1.0, context=shape.prompt + 0.5)


def decoded_shape(shape: Shape) -> Shape:
    """Return the mean request as the engines that decode have it: its keys and values come, but for the last token."""
    return shape._replace(cached=max(shape.prompt - 1.0, 0.0), kept=shape.prompt)


class _Pools:
    """Both pools; rates are of all engines together."""

    def __init__(self, deployment: Deployment, engine: Engine, pool: Deployment, worker: Engine) -> None:
        shape = shape_of(deployment)
        self.shape, self.decoded, self.prompted = shape, decoded_shape(shape), prompted_shape(shape)
        self.engines, self.workers = deployment.engines, pool.engines
        self.engine, self.worker = engine, worker
        link = deployment.run.parallelism.network_bytes_per_s
        each = max(held_bytes(engine.limits, shape.prompt), held_bytes(worker.limits, shape.prompt))
        self.sent_s = each / link
        self.most_prompted = self.workers * highest_rate(worker.times, worker.limits, self.prompted)
        self.most_decoded = self.engines * highest_rate(engine.times, engine.limits, self.decoded)

    @property
    def most(self) -> float:
        return min(self.most_prompted, self.most_decoded)

    def states(self, rate: float) -> tuple[Steady, Steady]:
        """Return the steady states of an engine of each pool."""
        first = open_load(self.worker.times, self.worker.limits, self.prompted, rate / self.workers)
        return first, open_load(self.engine.times, self.engine.limits, self.decoded, rate / self.engines)

    def e2e_s(self, rate: float) -> float:
        first, later = self.states(rate)
        return first.ttft_s + self.sent_s + max(self.shape.output - 1.0, 0.0) * later.tpot_s

    def closed_rate(self, concurrency: float) -> float:
        """Return the rate at which so many requests are in flight, or the highest that is reached."""
        low, high = 0.0, _MOST * self.most
        if high * self.e2e_s(high) <= concurrency:
            return high
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if middle * self.e2e_s(middle) < concurrency else (low, middle)
        return low


def pooled_figures(
    deployment: Deployment, engine: Engine, pool: Deployment, worker: Engine, percentile: float
) -> LoadFigures:
    """Return the figures of a load, by both simulations or by the closed form."""
    pools, load = _Pools(deployment, engine, pool, worker), deployment.workload.load
    cause = "prefill" if pools.most_prompted < pools.most_decoded else "kv_cache"
    kept = held_bytes(engine.limits, pools.shape.prompt + pools.shape.output)
    if pools.most == 0.0 or (load.rate_per_s or 0.0) >= pools.most:
        return LoadFigures(None, None, None, np.nan, np.nan, 1.0, kept, np.nan, np.nan, pools.most, cause)
    rate = load.rate_per_s or pools.closed_rate(load.concurrency or 1.0)
    first, later = pools.states(rate)
    # Requests beyond those that a closed loop has in flight wait for their first token.
    e2e = pools.e2e_s(rate)
    waits = max((load.concurrency or 0.0) / rate - e2e, 0.0)
    ttft = Times(first.ttft_s + pools.sent_s + waits)
    found = LoadFigures(
        ttft,
        Times(later.tpot_s) if pools.shape.output > 1.0 else None,
        Times(e2e + waits),
        rate,
        pools.engines * later.running,
        later.decoding,
        min(later.running * kept, engine.limits.kv_bytes) / deployment.attention_replicas,
        later.decode_s,
        first.mixed_s,
        pools.most,
        cause,
    )
    if deployment.workload.method == "closed_form":
        return found
    return _simulated(deployment, pools, found, waits, percentile)


def _simulated(
    deployment: Deployment, pools: _Pools, by_form: LoadFigures, waits: float, percentile: float
) -> LoadFigures:
    lengths, seed, rate = deployment.lengths, int(deployment.workload.seed), by_form.requests_per_s
    running = by_form.running / pools.engines
    prompts = poisson(lengths, rate / pools.workers, running, seed)
    answers = poisson(lengths, rate / pools.engines, running, seed)
    needed = np.maximum(answers.prompt - 1.0, 0.0)
    first = simulated(pools.worker, prompts._replace(output=np.ones_like(prompts.output)))
    later = simulated(pools.engine, answers._replace(cached=needed, kept=answers.prompt))
    steps = first.steps + later.steps
    done = np.isfinite(first.first_s) & np.isfinite(later.ended_s) & (np.arange(len(needed)) >= answers.warm_up)
    if not done.any():
        return by_form._replace(unfinished=int(len(needed) - answers.warm_up), steps=steps)
    ttft = (first.first_s - first.arrived_s + pools.sent_s + waits)[done]
    decoding, tokens = (later.ended_s - later.first_s)[done], answers.output[done] - 1.0
    several = tokens > 0.0
    return by_form._replace(
        ttft=times_of(ttft, percentile),
        tpot=times_of((decoding / np.maximum(tokens, 1.0))[several], percentile) if several.any() else None,
        e2e=times_of(ttft + decoding, percentile),
        running=later.running * pools.engines,
        decoding=later.decoding,
        kv_bytes=later.kv_bytes / deployment.attention_replicas,
        decode_s=later.decode_s,
        mixed_s=first.mixed_s,
        steps=steps,
    )
