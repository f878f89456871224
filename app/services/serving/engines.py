"""An engine on a GPU type: its step times as the scheduler reads them, and what it admits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, sqrt
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from app.coefficients import Coefficients
from app.engine.engine import Engine as Predictors
from app.services.serving.deployment import Deployment
from app.services.serving.step_tables import Axes, Tables, axes_of, step_tables
from app.serving.engine import (
    ACCEPTED,
    BESIDE_S,
    BESIDE_SEQUENCE_S,
    DRAFTED,
    HOST_SEQUENCE_S,
    HOST_STEP_S,
    LEAST_S,
    PREFILL,
    REPLICAS,
    ROUND,
    SCALARS,
    STAGES,
    TRANSFER_S,
    VERIFIED,
    EngineLimits,
    StepTimes,
    closed_count,
    held_bytes,
)
from app.serving.simulation import MOST_STEPS
from app.serving.steady_state import Shape
from app.stacks.facts import HostTimes
from app.steps.corrections import host_rate
from app.steps.networks import prepare
from app.steps.stages import Memory
from app.steps.timing import StepQuery
from app.tables.arrays import Floats
from app.tables.gpus import GpuSpec
from app.wire.serving_form import (
    LoadSettings,
    PrefixCacheSettings,
    SchedulerSettings,
    ServingSettings,
    SpeculativeSettings,
)


class Settings(NamedTuple):
    """Settings of an engine as used: tokens of a step and sequences of an attention replica, share of the memory.

    wait_steps, wait_tokens  most decode steps that prompts wait for one another, and tokens of them that end the wait
    chunk_tokens  most tokens of prompts in a step
    """

    budget_tokens: int
    sequences: int
    memory_share: float
    wait_steps: float
    wait_tokens: int | None
    chunk_tokens: int


class Engine(NamedTuple):
    """An engine of a deployment on one GPU type.

    memory  bytes on the fullest device without keys and values
    pool    the engine that computes the prompts, where another one does; None: this one does
    """

    times: StepTimes
    limits: EngineLimits
    settings: Settings
    memory: Memory
    kv_capacity_bytes: float
    pool: Engine | None = None


def engines_on(
    query: StepQuery,
    deployment: Deployment,
    specs: Sequence[GpuSpec],
    *,
    room: float = 1.0,
    among: Sequence[GpuSpec] = (),
) -> list[Engine]:
    """Return the deployment's engine on each target of the query, whose specifications are `specs`.

    `room`: their tables hold steps of so many times their budgets (with_limits). `among`: GPU types whose steps they
    hold too.
    """
    settings = [settings_of(deployment, spec) for spec in specs]
    others = [settings_of(deployment, spec) for spec in among]
    tables = step_tables(query, deployment, _axes(deployment, [*settings, *others], room))
    host = query.engine.hosts.of(
        deployment.run.release,
        mixture=deployment.mixture,
        latent=deployment.latent,
        devices=deployment.run.parallelism.devices,
    )
    memories, rates = _memories(deployment, specs, settings), host_rate(query.gpus, "pinned")
    engines = [
        _with_fetching(_engine(deployment, host, settings[k], memories[k], tables, k), deployment, rates[target])
        for k, target in enumerate(query.targets)
    ]
    if deployment.pool is None:
        return engines
    pools = engines_on(query, deployment.pool, specs)
    return [engine._replace(pool=pool) for engine, pool in zip(engines, pools, strict=True)]


def settings_of(deployment: Deployment, spec: GpuSpec) -> Settings:
    """Return the settings that the request gives, else the stack's defaults on this GPU."""
    workload, scheduler = deployment.workload, deployment.scheduler
    large = int(spec.memory_bytes >= scheduler.large_bytes)
    sequences = int(workload.max_sequences or scheduler.sequences[large])
    chunk = None if workload.scheduler is None else workload.scheduler.chunk_tokens
    # The budget of steps of prompts alone is their chunk.
    own_chunk = None if scheduler.mixes else chunk
    budget = int(workload.max_batched_tokens or own_chunk or scheduler.budget_tokens[large])
    if workload.max_batched_tokens is None and scheduler.raises_budget:
        at_once = workload.load.concurrency or workload.load.burst or 0.0
        budget = max(budget, int(deployment.lengths.prompt + min(at_once, sequences)))
    steps, tokens = workload.prefill_wait_steps, workload.prefill_wait_tokens
    if steps is None:
        steps = scheduler.patience if deployment.attention_replicas > 1 else 0.0
    share = workload.memory_share or scheduler.memory_share
    return Settings(
        budget, sequences, share, steps, None if tokens is None else int(tokens), int(min(chunk or budget, budget))
    )


def shown_settings(deployment: Deployment, engine: Engine, predictors: Predictors) -> ServingSettings:
    """Return the settings of an engine and its load as an answer shows them."""
    settings, scheduler, lengths = engine.settings, deployment.scheduler, deployment.lengths
    load = deployment.workload.load
    burstiness = None if load.rate_per_s is None else load.burstiness or 1.0
    return ServingSettings(
        deployment.run.release.stack,
        *settings[:5],
        scheduler.mixes,
        scheduler.splits,
        SchedulerSettings(
            int(scheduler.recv_interval),
            int(scheduler.decode_steps),
            settings.chunk_tokens if scheduler.splits else None,
        ),
        LoadSettings(burstiness, None if load.max_concurrency is None else int(load.max_concurrency)),
        lengths.prompt_spread,
        lengths.output_spread,
        deployment.workload.tpot_definition,
        _shown_speculation(deployment),
        _shown_cache(deployment, engine),
        predictors.hosts.version_of(deployment.host),
        UNSET if predictors.power_cap_w is None else predictors.power_cap_w,
    )


def _waiting_prompts(deployment: Deployment, settings: Settings) -> float:
    """Return how many prompts end the wait for one another; without a number of tokens, one for each replica.

    Where attention has no replicas, no number of prompts does.
    """
    if not settings.wait_steps:
        return 1.0
    if settings.wait_tokens is None:
        return float(deployment.attention_replicas) if deployment.attention_replicas > 1 else np.inf
    shape = shape_of(deployment)
    return float(max(np.ceil(settings.wait_tokens / max(shape.prompt - shape.cached, 1.0)), 1.0))


def _axes(deployment: Deployment, settings: list[Settings], room: float) -> Axes:
    """Return axes that hold the steps of all these settings, and of `room` times their budgets."""
    budget = room * max(one.budget_tokens for one in settings)
    sequences = max(one.sequences for one in settings)
    verified = float(deployment.run.verified)
    lengths = deployment.lengths
    positions = deployment.architecture.stacks[0].embedding.max_positions
    return axes_of(budget, verified * sequences, lengths.prompt, lengths.output, float(positions))


def have_room(deployment: Deployment, specs: Sequence[GpuSpec]) -> list[bool]:
    """Return, for each GPU type, whether the engine's memory holds more than weights and activations.

    Without room for keys and values an engine bears no request.
    """
    settings = [settings_of(deployment, spec) for spec in specs]
    return [capacity > 0.0 for _, capacity in _memories(deployment, specs, settings)]


# Simulations took at most so much less than the steps expected, in 9,000 drawn deployments and loads.
_OVERESTIMATED = 2.0


def expected_steps(deployment: Deployment, specs: Sequence[GpuSpec]) -> int:
    """Return steps that simulating the load on all these GPU types takes at least, before any engine is predicted.

    0 where that is unknown: for arrivals at a rate, which may saturate, traces and pools.
    """
    load, lengths = deployment.workload.load, deployment.lengths
    at_once = ceil((load.concurrency or load.burst or 0) / deployment.engines)
    if not at_once or deployment.pool is not None or deployment.workload.method == "closed_form":
        return 0
    count = closed_count(at_once) if load.concurrency else at_once
    settings = [settings_of(deployment, spec) for spec in specs]
    longest_bytes = prepare(deployment.network, deployment.run).memory.kv_cache  # of the longest request
    shape, verified = shape_of(deployment), deployment.run.verified
    steps = 0.0
    for each, (_, capacity) in zip(settings, _memories(deployment, specs, settings), strict=True):
        if capacity >= longest_bytes:
            prompts = max(shape.prompt - shape.cached, 1.0) / (each.chunk_tokens * deployment.attention_replicas)
            together = min(each.sequences * deployment.attention_replicas, at_once)
            # Sequences that begin together end in as many steps as their outputs have lengths, later ones in more.
            later = max(2.0 / 3.0 * sqrt(count / together), 1.0)
            spread = lengths.output_spread + lengths.drift
            ends = min(1.0 + later * floor(spread * (lengths.output - 1.0) / verified), shape.output / verified)
            share = max(prompts if deployment.scheduler.splits else min(prompts, 1.0), min(ends / together, 1.0))
            steps += min(share * count / _OVERESTIMATED, MOST_STEPS)
    return int(steps)


def _memories(
    deployment: Deployment, specs: Sequence[GpuSpec], settings: Sequence[Settings]
) -> list[tuple[Memory, float]]:
    """Return the memory of a device while it computes a step's prompts, and the bytes left for keys and values."""
    sequences = [int(max(min(each.budget_tokens, deployment.lengths.prompt), 1)) for each in settings]
    needed = {sequence: _memory_of_step(deployment, sequence) for sequence in dict.fromkeys(sequences)}
    memories = [needed[sequence] for sequence in sequences]
    cache = deployment.workload.prefix_cache
    cached = 0.0 if cache is None else cache.gpu_bytes / deployment.run.parallelism.devices
    if deployment.draft is not None:
        own = prepare(deployment.draft.network, deployment.draft.run).memory.weights
        memories = [memory._replace(weights=memory.weights + own) for memory in memories]
    return [
        (memory, max(each.memory_share * spec.memory_bytes - memory.required_bytes - cached, 0.0))
        for memory, each, spec in zip(memories, settings, specs, strict=True)
    ]


def _memory_of_step(deployment: Deployment, sequence: int) -> Memory:
    run = replace(deployment.run, mode="prefill", batch=deployment.attention_replicas, sequence=sequence)
    return prepare(deployment.network, run).memory._replace(kv_cache=0.0)


def _engine(
    deployment: Deployment,
    host: HostTimes,
    settings: Settings,
    room: tuple[Memory, float],
    tables: Tables,
    k: int,
) -> Engine:
    """Return the engine on the k-th GPU type of the tables; `room` as in `_memories`."""
    memory, capacity = room
    replicas, scheduler = deployment.attention_replicas, deployment.scheduler
    limits = EngineLimits(
        budget_tokens=float(settings.budget_tokens * replicas),
        sequences=float(settings.sequences * replicas),
        kv_bytes=capacity * replicas,
        contexts=tables.axes.contexts,
        bytes_at=tables.held_bytes,
        mixes=float(scheduler.mixes),
        splits=float(scheduler.splits),
        reserved=scheduler.reserved,
        gathered=_waiting_prompts(deployment, settings),
        patience=settings.wait_steps,
        chunk_tokens=float(settings.chunk_tokens * replicas),
        recv_steps=scheduler.recv_interval * scheduler.decode_steps,
        round_steps=scheduler.decode_steps,
        request_s=host.request_s,
        serial_s=host.serial_s,
        serial_token_s=host.serial_token_s,
        fetch_token_s=0.0,
        stream_s=deployment.run.release.stream_wait_s,
    )
    return Engine(_times(deployment, host, tables, k), limits, settings, memory, capacity)


def _with_fetching(engine: Engine, deployment: Deployment, rate: float) -> Engine:
    """Return the engine whose requests wait for hits that their host holds, at `rate` bytes per second and device."""
    lengths, limits = deployment.lengths, engine.limits
    if deployment.pool is not None or not lengths.fetched:
        return engine
    token_bytes = held_bytes(limits, lengths.prompt) / lengths.prompt
    fetch_s = lengths.prefix_hit * lengths.fetched * token_bytes / rate / deployment.attention_replicas
    return engine._replace(limits=limits._replace(fetch_token_s=float(fetch_s)))


def with_host(engine: Engine, host: HostTimes) -> Engine:
    """Return the engine, and its pool of prompts, with other times of their hosts."""
    scalars = engine.times.scalars.copy()
    scalars[[HOST_STEP_S, HOST_SEQUENCE_S, PREFILL]] = host.step_s, host.sequence_s, host.prefill
    limits = engine.limits._replace(
        request_s=host.request_s, serial_s=host.serial_s, serial_token_s=host.serial_token_s
    )
    pool = None if engine.pool is None else with_host(engine.pool, host)
    return engine._replace(times=engine.times._replace(scalars=scalars), limits=limits, pool=pool)


def with_limits(engine: Engine, deployment: Deployment, spec: GpuSpec) -> Engine:
    """Return the engine with the token budget and sequences of the deployment's workload, and the memory they leave."""
    settings, replicas = settings_of(deployment, spec), deployment.attention_replicas
    ((memory, capacity),) = _memories(deployment, [spec], [settings])
    limits = engine.limits._replace(
        budget_tokens=float(settings.budget_tokens * replicas),
        chunk_tokens=float(settings.chunk_tokens * replicas),
        sequences=float(settings.sequences * replicas),
        kv_bytes=capacity * replicas,
    )
    return engine._replace(limits=limits, settings=settings, memory=memory, kv_capacity_bytes=capacity)


def with_factor(engine: Engine, factor: float) -> Engine:
    """Return the engine with steps that take `factor` times as long."""
    if factor == 1.0:
        return engine
    times, shift = engine.times, float(np.log(factor))
    parts = ("body", "experts", "head", "decode", "draft", "prefill")
    scalars = times.scalars.copy()
    scalars[[HOST_STEP_S, HOST_SEQUENCE_S, BESIDE_S, BESIDE_SEQUENCE_S]] *= factor
    shifted = {name: getattr(times, name) + shift for name in parts}
    return engine._replace(times=times._replace(scalars=scalars, **shifted))


# Share of the highest rate that a load reaches at most.
REACHED = Coefficients("serving").number("highest_load")


def shape_of(deployment: Deployment) -> Shape:
    """Return the mean request of the load."""
    trace = deployment.workload.load.trace
    if trace is None:
        return Shape(*deployment.lengths.means(), deployment.variation)
    inputs, outputs = np.asarray(trace.input_tokens, float), np.asarray(trace.output_tokens, float)
    prompt = float(np.mean(inputs))
    cached = deployment.lengths.prefix_hit * prompt
    context = float(np.average(inputs + 0.5 * outputs, weights=outputs))
    kept = prompt - (1.0 - deployment.lengths.fetched) * cached
    return Shape(prompt, cached, float(np.mean(outputs)), kept, context, deployment.variation)


def _times(deployment: Deployment, host: HostTimes, tables: Tables, k: int) -> StepTimes:
    axes = Axes(*(np.log(axis) for axis in tables.axes))
    parts: list[Floats] = [np.log(np.maximum(part[k], LEAST_S)) for part in tables[1:7]]
    scalars = np.zeros(SCALARS)
    scalars[REPLICAS] = deployment.attention_replicas
    scalars[STAGES] = deployment.run.parallelism.pipeline
    scalars[TRANSFER_S] = 0.0
    scalars[HOST_STEP_S], scalars[HOST_SEQUENCE_S], scalars[PREFILL] = host.step_s, host.sequence_s, host.prefill
    scalars[[BESIDE_S, BESIDE_SEQUENCE_S]] = deployment.run.release.host_beside
    scalars[VERIFIED], scalars[ACCEPTED] = deployment.run.verified, deployment.kept_tokens
    scalars[DRAFTED] = deployment.run.verified - 1
    scalars[ROUND] = deployment.scheduler.decode_steps
    body, experts, head, decode, draft, prefill = parts
    return StepTimes(
        axes.tokens, body, experts, axes.sequences, head, axes.contexts, decode, draft, axes.chunks, axes.ratios,
        prefill, scalars,
    )  # fmt: skip


def _shown_cache(deployment: Deployment, engine: Engine) -> PrefixCacheSettings | None:
    cache, lengths = deployment.workload.prefix_cache, deployment.lengths
    if cache is None:
        return None
    hit, fetched = lengths.prefix_hit, lengths.fetched
    fetch_ms = (engine.pool or engine).limits.fetch_token_s * shape_of(deployment).prompt * 1e3
    return PrefixCacheSettings(cache.gpu_bytes, cache.host_bytes, hit * (1.0 - fetched), hit * fetched, fetch_ms)


def _shown_speculation(deployment: Deployment) -> SpeculativeSettings | None:
    speculative = deployment.workload.speculative
    if speculative is None:
        return None
    draft = "mtp" if deployment.draft is None else deployment.draft.workload.name or "config"
    return SpeculativeSettings(int(speculative.tokens), deployment.acceptance, deployment.kept_tokens, draft)
