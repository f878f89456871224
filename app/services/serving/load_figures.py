"""Figures of a load on engines of one GPU type: by the event simulation, or by the closed form.

Of disaggregated engines one pool computes the prompts, sends their keys and values, and another one decodes. Each pool
is simulated alone under Poisson arrivals at the rate of the load; of a closed loop that is the rate at which as many
requests are in flight (Little's law). A request's keys and values leave and arrive over the network adapters of all
devices that hold them.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
from msgspec import structs

from app.engine.exact_hits import ServedPoint
from app.services.serving.deployment import Deployment
from app.services.serving.engines import REACHED, Engine, shape_of
from app.services.serving.simulation_steps import simulated
from app.serving.engine import Requests, admitted_bytes, arrivals, held_bytes, most_sequences, serial_s
from app.serving.steady_state import Shape, Steady, closed_loop, highest_rate, open_load, prompt_share
from app.tables.arrays import Floats
from app.wire.serving_form import ServingLoad


class Times(NamedTuple):
    """A time over requests, seconds: mean and percentiles, NaN where unknown; `chosen`: that of the caller's choice."""

    mean: float
    p50: float = np.nan
    p90: float = np.nan
    p99: float = np.nan
    chosen: float = np.nan


class LoadFigures(NamedTuple):
    """What a load gives; times are None where it is saturated.

    requests_per_s, running  of all engines; decoding: sequences of one engine that decode, on average
    kv_bytes     most bytes of keys and values on a device
    prompt_share  share of the devices' busy time that prompts take beside decoding (`prompt_share`)
    unfinished   requests that the simulation left unanswered
    steps        steps that were simulated
    """

    ttft: Times | None
    tpot: Times | None
    e2e: Times | None
    requests_per_s: float
    running: float
    decoding: float
    kv_bytes: float
    decode_s: float
    mixed_s: float
    highest_rate: float
    cause: str
    prompt_share: float = np.nan
    unfinished: int = 0
    steps: int = 0


def times_of(seconds: Floats, percentile: float) -> Times:
    """Return the mean and the percentiles of times, seconds."""
    return Times(float(seconds.mean()), *np.percentile(seconds, (50, 90, 99, percentile)).tolist())


def measured_figures(figures: LoadFigures, point: ServedPoint, load: ServingLoad) -> LoadFigures:
    """Return the figures with measured means; percentiles and throughput follow in proportion.

    A load that was measured is not saturated, whatever was predicted; then it has no percentiles. Of one whose clients
    have a cap the throughput is the predicted one.
    """
    if figures.e2e is None or figures.ttft is None:
        rate = load.rate_per_s or (load.concurrency or load.burst or 1.0) / point.e2e_s
        return figures._replace(
            ttft=Times(point.ttft_s),
            tpot=Times(point.tpot_s),
            e2e=Times(point.e2e_s),
            requests_per_s=rate,
            highest_rate=max(figures.highest_rate, rate),
        )
    rate = figures.requests_per_s * figures.e2e.mean / point.e2e_s
    return figures._replace(
        ttft=_scaled(figures.ttft, point.ttft_s),
        tpot=None if figures.tpot is None else _scaled(figures.tpot, point.tpot_s),
        e2e=_scaled(figures.e2e, point.e2e_s),
        requests_per_s=figures.requests_per_s if load.max_concurrency else load.rate_per_s or rate,
        highest_rate=max(figures.highest_rate, 0.0 if load.max_concurrency else load.rate_per_s or 0.0),
    )


def with_first_token(figures: LoadFigures, predicted: Times | None, factor: float, load: ServingLoad) -> LoadFigures:
    """Return the figures with `factor` times the predicted times to the first token, and whole requests that follow.

    Those of saturated loads stay.
    """
    if predicted is None or figures.ttft is None or figures.e2e is None:
        return figures
    first_s, before_s = factor * predicted.mean, figures.e2e.mean
    e2e_s = before_s + first_s - figures.ttft.mean
    return figures._replace(
        ttft=_scaled(predicted, first_s),
        e2e=_scaled(figures.e2e, e2e_s),
        requests_per_s=figures.requests_per_s * (1.0 if load.rate_per_s else before_s / e2e_s),
    )


def _scaled(times: Times, mean: float) -> Times:
    return Times(*(one * mean / times.mean for one in times))


_BISECTIONS = 40


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
        self.shape, self.decoded, self.prompted = shape, decoded_shape(shape), prompted_shape(shape_of(pool))
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
        low, high = 0.0, REACHED * self.most
        if high * self.e2e_s(high) <= concurrency:
            return high
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if middle * self.e2e_s(middle) < concurrency else (low, middle)
        return low


def pooled_figures(
    deployment: Deployment, engine: Engine, pool: Deployment, worker: Engine, percentile: float, known_within: float
) -> LoadFigures:
    """Return the figures of a load, by both simulations or by the closed form; `known_within` as in `load_figures`."""
    pools = _Pools(deployment, engine, pool, worker)
    deployment = _at_most(deployment, pools.most, known_within)
    load = deployment.workload.load
    cause = "prefill" if pools.most_prompted < pools.most_decoded else "kv_cache"
    kept = held_bytes(engine.limits, pools.shape.prompt + pools.shape.output)
    in_flight = load.concurrency or load.max_concurrency
    if pools.most == 0.0 or (in_flight is None and (load.rate_per_s or 0.0) >= pools.most):
        return LoadFigures(None, None, None, np.nan, np.nan, 1.0, kept, np.nan, np.nan, pools.most, cause)
    rate = min(load.rate_per_s or np.inf, np.inf if in_flight is None else pools.closed_rate(in_flight))
    first, later = pools.states(rate)
    # Requests beyond those that a closed loop has in flight wait for their first token.
    e2e = pools.e2e_s(rate)
    waits = 0.0 if rate == load.rate_per_s else max((in_flight or 0.0) / rate - e2e, 0.0)
    ttft = Times(first.ttft_s + pools.sent_s + waits)
    by_form = LoadFigures(
        ttft,
        _mean_tpot(deployment, later.tpot_s, pools.shape.output),
        Times(e2e + waits),
        rate,
        pools.engines * later.running,
        later.decoding,
        min(later.running * kept, engine.limits.kv_bytes) / deployment.attention_replicas,
        later.decode_s,
        first.mixed_s,
        pools.most,
        cause,
        pool.devices / deployment.devices,
    )
    if deployment.workload.method == "closed_form":
        return by_form
    return _simulated_pools(deployment, pools, by_form, waits, percentile)


def _simulated_pools(
    deployment: Deployment, pools: _Pools, by_form: LoadFigures, waits: float, percentile: float
) -> LoadFigures:
    lengths, seed, rate = deployment.lengths, int(deployment.workload.seed), by_form.requests_per_s
    running = by_form.running / pools.engines
    prompts = arrivals(lengths, rate / pools.workers, running, seed, pools.prompted.variation)
    answers = arrivals(lengths, rate / pools.engines, running, seed, deployment.variation)
    needed = np.maximum(answers.prompt - 1.0, 0.0)
    first = simulated(pools.worker, prompts._replace(output=np.ones_like(prompts.output)))
    later = simulated(pools.engine, answers._replace(cached=needed, kept=answers.prompt))
    steps = first.steps + later.steps
    done = np.isfinite(first.first_s) & np.isfinite(later.ended_s) & (np.arange(len(needed)) >= answers.warm_up)
    if not done.any():
        return by_form._replace(unfinished=int(len(needed) - answers.warm_up), steps=steps)
    ttft = (first.first_s - first.arrived_s + pools.sent_s + waits)[done]
    decoding, tokens = (later.ended_s - later.first_s)[done], deployment.timed_tokens(answers.output[done])
    several = answers.output[done] > 1.0
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


# Prompts take so much of the time at the highest rate that they are what limits it.
_PREFILL_BOUND = 0.7
# So busy is the host's front end at the highest rate that it is what limits it.
_HOST_BOUND = 0.98


def load_figures(
    deployment: Deployment, engine: Engine, percentile: float = 90.0, known_within: float = 1.0
) -> LoadFigures:
    """Return the figures of the deployment's load on engines of one GPU type, with this percentile of the times too.

    known_within  factor by which the highest rate is known: at one above it by less, times to the first token are
                  those at the highest rate, and times per token those of an engine that is full
    """
    if engine.pool is not None and deployment.pool is not None:
        return pooled_figures(deployment, engine, deployment.pool, engine.pool, percentile, known_within)
    shape, engines, load = shape_of(deployment), deployment.engines, deployment.workload.load
    most = highest_rate(engine.times, engine.limits, shape)
    is_full = load.rate_per_s is not None and load.max_concurrency is None and load.rate_per_s > engines * most
    deployment = _at_most(deployment, engines * most, known_within)
    steady = _steady(deployment, engine, shape)
    cause, bytes_each = _cause(engine, shape, most), admitted_bytes(engine.limits, shape.kept, shape.output)
    if most == 0.0 or not np.isfinite(steady.tpot_s):
        return LoadFigures(None, None, None, np.nan, np.nan, 1.0, bytes_each, np.nan, np.nan, most * engines, cause)
    by_form = LoadFigures(
        Times(steady.ttft_s),
        _mean_tpot(deployment, steady.tpot_s, shape.output),
        Times(steady.e2e_s),
        engines * steady.requests_per_s,
        engines * steady.running,
        steady.decoding,
        steady.running * bytes_each / deployment.attention_replicas,
        steady.decode_s,
        steady.mixed_s,
        engines * most,
        cause,
        prompt_share(engine.times, shape, steady),
    )
    figures = by_form
    if deployment.workload.method != "closed_form":
        figures = _simulated(deployment, engine, deployment.requests(steady.running), by_form, percentile)
    return _of_full(deployment, engine, figures) if is_full else figures


def _of_full(deployment: Deployment, engine: Engine, figures: LoadFigures) -> LoadFigures:
    """Return the figures with tokens that take as long as where as many sequences run as have a place.

    An engine that gets more than it bears fills.
    """
    shape = shape_of(deployment)
    places = most_sequences(engine.limits, shape.kept, shape.output)
    full = closed_loop(engine.times, engine.limits, shape, places)
    tpot = _mean_tpot(deployment, full.tpot_s, shape.output)
    if tpot is None or figures.ttft is None or figures.tpot is None or figures.e2e is None:
        return figures
    slower = max(tpot.mean / figures.tpot.mean, 1.0)
    return figures._replace(
        tpot=_scaled(figures.tpot, slower * figures.tpot.mean),
        e2e=_scaled(figures.e2e, figures.ttft.mean + slower * (figures.e2e.mean - figures.ttft.mean)),
        running=deployment.engines * full.running,
        decoding=full.decoding,
        decode_s=full.decode_s,
        mixed_s=full.mixed_s,
    )


def _mean_tpot(deployment: Deployment, later_s: float, output: float) -> Times | None:
    """Return the mean time per output token by its definition, of `later_s` for each token after the first."""
    return Times(later_s * (output - 1.0) / deployment.timed_tokens(output)) if output > 1.0 else None


def _at_most(deployment: Deployment, most: float, known_within: float) -> Deployment:
    """Return the deployment with a rate that its engines bear, in place of one that they may bear."""
    load, reached = deployment.workload.load, REACHED * most
    if load.rate_per_s is None or load.max_concurrency or not reached < load.rate_per_s <= known_within * most:
        return deployment
    borne = structs.replace(deployment.workload, load=structs.replace(load, rate_per_s=reached))
    return deployment._replace(workload=borne)


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
    cap = float(deployment.most_in_flight or np.inf)
    if load.rate_per_s is not None:
        each = load.rate_per_s / engines
        steady = open_load(engine.times, engine.limits, shape, each)
        if np.isinf(cap):
            return steady
        # Clients at their cap are a closed loop, unless that would send more than arrives.
        capped = closed_loop(engine.times, engine.limits, shape, cap)
        return capped if capped.requests_per_s < each or np.isinf(steady.tpot_s) else steady
    at_once = len(load.trace.arrival_s) if load.trace is not None else int(load.concurrency or load.burst or 1)
    steady = closed_loop(engine.times, engine.limits, shape, min(float(ceil(at_once / engines)), cap))
    return steady if load.concurrency is not None else _at_once(steady, shape, ceil(at_once / engines))


def _at_once(steady: Steady, shape: Shape, count: int) -> Steady:
    """Return the means of requests that arrive together: their prompts one after another, then all decode."""
    prefill = steady.mixed_s * max(steady.running, 1.0) / max(count, 1)
    ttft = 0.5 * (count + 1.0) * prefill
    later = max(shape.output - 1.0, 0.0)
    tpot = steady.decode_s + 0.5 * (count - 1.0) * prefill / max(later, 1.0)
    e2e = ttft + later * tpot
    return steady._replace(ttft_s=ttft, tpot_s=tpot, e2e_s=e2e, requests_per_s=count / e2e)


def _simulated(
    deployment: Deployment, engine: Engine, requests: Requests, by_form: LoadFigures, percentile: float
) -> LoadFigures:
    times = simulated(engine, requests)
    counted = np.arange(len(requests.prompt)) >= requests.warm_up
    done = counted & np.isfinite(times.ended_s)
    if not done.any():
        return by_form._replace(unfinished=int(counted.sum()), steps=times.steps)
    first, ended = times.first_s - times.arrived_s, times.ended_s - times.arrived_s
    several = done & (requests.output > 1.0)
    later = np.maximum(deployment.timed_tokens(requests.output), 1.0)
    e2e = times_of(ended[done], percentile)
    running = times.running * deployment.engines
    load = deployment.workload.load
    rate = load.rate_per_s or float(len(first) / max(np.nanmax(times.ended_s), 1e-9) * deployment.engines)
    if load.concurrency is not None and load.requests is None:
        rate = load.concurrency / e2e.mean
    elif load.max_concurrency is not None:
        rate = min(rate, load.max_concurrency / e2e.mean)
    return LoadFigures(
        times_of(first[done], percentile),
        times_of(((times.ended_s - times.first_s) / later)[several], percentile) if several.any() else None,
        e2e,
        rate,
        running,
        times.decoding,
        times.kv_bytes / deployment.attention_replicas,
        times.decode_s,
        times.mixed_s,
        by_form.highest_rate,
        by_form.cause,
        by_form.prompt_share,
        int((counted & ~done).sum()),
        times.steps,
    )


def sequence_limit(deployment: Deployment, engine: Engine) -> int:
    """Return the most sequences of the mean request that all engines run at once."""
    shape = shape_of(deployment) if deployment.pool is None else decoded_shape(shape_of(deployment))
    each = most_sequences(engine.limits, shape.kept, shape.output)
    return int(deployment.engines * each)
