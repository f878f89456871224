"""Resolve a workload of kind `serving`: its network, the run of a step, and its stack."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from app.bands.error_model import Levels
from app.errors import BadInput, FieldError
from app.networks.builtin import find_config
from app.networks.importers import hf
from app.networks.run import Mode, Run
from app.networks.transformers.architecture import Architecture, Attention, AttentionModule, Experts
from app.services.models.resolve_networks import resolve_network
from app.services.serving.loads import LOADS, as_recorded, check_load, check_run, lengths_of, refused
from app.serving.engine import Lengths, Requests, arrivals, burst, closed, trace
from app.stacks.facts import Scheduler
from app.stacks.registry import serving_stacks
from app.stacks.release import host_name, release_of
from app.steps.levels import levels_of
from app.steps.networks import Network, prepare
from app.tables.gpus import GpuTable
from app.wire.network_form import ModelWorkload, ParallelismIn
from app.wire.serving_form import (
    SchedulerFlags,
    ServingParallelism,
    ServingWorkload,
)

# Similarity from which an unknown stack's name is a known one misspelt.
_MISSPELT = 0.75
_LOC = ("workload",)
_MOST_DEVICES = 2**16
_MOST_ARCHITECTURES = 256


class Deployment(NamedTuple):
    """A served model as one engine runs it.

    step          a decode step with one sequence per attention replica
    network, run  the network of `step`, and its run
    engines       engines beside one another, among which requests are dealt
    pool          the engines that compute the prompts, where others do
    draft         the model that drafts tokens for this one to verify; None: none, or multi-token prediction
    lengths       tokens of requests; of a trace their greatest
    """

    workload: ServingWorkload
    step: ModelWorkload
    network: Network
    run: Run
    architecture: Architecture
    engines: int
    lengths: Lengths
    pool: Deployment | None = None
    draft: Deployment | None = None

    @property
    def attention_replicas(self) -> int:
        """Replicas of attention within an engine."""
        return self.run.parallelism.data

    @property
    def scheduler(self) -> Scheduler:
        """How its stack schedules, with the flags that the request gives."""
        scheduler, flags = self.run.release.scheduler, self.workload.scheduler or SchedulerFlags()
        assert scheduler is not None
        return scheduler._replace(
            splits=scheduler.splits or flags.chunk_tokens is not None,
            decode_steps=flags.decode_steps or scheduler.decode_steps,
            recv_interval=flags.recv_interval or scheduler.recv_interval,
        )

    @property
    def variation(self) -> float:
        """Squared coefficient of variation of the times between arrivals at an engine, to which chance deals 1 of n.

        Recorded requests are dealt in turn.
        """
        if (trace := self.workload.load.trace) is not None:
            gaps = np.diff(np.sort(trace.arrival_s)[:: self.engines])
            return float(np.var(gaps) / np.mean(gaps) ** 2) if gaps.any() else 1.0
        return 1.0 + (1.0 / (self.workload.load.burstiness or 1.0) - 1.0) / self.engines

    @property
    def rate_per_s(self) -> float:
        """Requests per second that arrive at all engines, of a trace their mean; infinite for requests all at once."""
        load = self.workload.load
        if load.trace is None:
            return load.rate_per_s or np.inf
        times = load.trace.arrival_s
        span = max(times) - min(times)
        return (len(times) - 1) / span if span else np.inf

    def at_rate(self, rate_per_s: float) -> Deployment:
        """Return it with arrivals at another rate; recorded requests come that much closer to one another."""
        load, trace = self.workload.load, self.workload.load.trace
        if trace is None:
            load = structs.replace(load, rate_per_s=rate_per_s)
        else:
            closer = self.rate_per_s / rate_per_s
            load = structs.replace(
                load, trace=structs.replace(trace, arrival_s=[closer * one for one in trace.arrival_s])
            )
        return self._replace(workload=structs.replace(self.workload, load=load))

    @property
    def most_in_flight(self) -> int:
        """Most requests that clients have in flight at an engine; 0: any number."""
        return ceil((self.workload.load.max_concurrency or 0) / self.engines)

    @property
    def acceptance(self) -> list[float]:
        """Share of the steps in which the k-th drafted token is kept: only after those before it (Leviathan 2023)."""
        speculative = self.workload.speculative
        if speculative is None:
            return []
        of_each, p = speculative.acceptance_by_position, speculative.acceptance or 0.0
        positions = range(int(speculative.tokens))
        return [p ** (k + 1) for k in positions] if of_each is None else [float(of_each[k]) for k in positions]

    @property
    def kept_tokens(self) -> float:
        """Mean tokens of a sequence that a decode step gives: drafted ones that are kept, and one of its own."""
        return 1.0 + sum(self.acceptance)

    def timed_tokens(self, output: Any) -> Any:
        """Return the tokens of answers, a number or an array, over which the time after the first one is taken."""
        return output - 1.0 if self.workload.tpot_definition == "output_minus_one" else output

    def requests(self, running: float) -> Requests:
        """Return the requests that one engine gets, of which about `running` are in flight at once."""
        load, lengths, seed = self.workload.load, self.lengths, int(self.workload.seed)
        if load.trace is not None:
            recorded = (load.trace.arrival_s, load.trace.input_tokens, load.trace.output_tokens)
            arrival, prompt, output = (np.array(column, dtype=np.float64) for column in recorded)
            dealt = np.argsort(arrival, kind="stable")[:: self.engines]
            columns = arrival[dealt], prompt[dealt], output[dealt]
            return trace(*columns, lengths.prefix_hit, self.most_in_flight, lengths.fetched)
        if load.rate_per_s is not None:
            each = load.rate_per_s / self.engines
            return arrivals(lengths, each, running, seed, self.variation, self.most_in_flight)
        at_once = ceil((load.concurrency or load.burst or 1) / self.engines)
        if load.concurrency is None:
            return burst(lengths, at_once, seed)
        return closed(lengths, at_once, seed, ceil((load.requests or 0) / self.engines))

    @property
    def mixture(self) -> bool:
        """Whether any layer has experts."""
        layers = (layer for stack in self.architecture.stacks for layer, _ in stack.layers)
        return any(isinstance(layer.feed_forward, Experts) for layer in layers)

    @property
    def host(self) -> str:
        """Name of its host's times."""
        return host_name(self.run.release.host, mixture=self.mixture)

    @property
    def latent(self) -> bool:
        """Whether any layer has multi-head latent attention."""
        return any(_is_latent(layer.attention) for stack in self.architecture.stacks for layer, _ in stack.layers)

    @property
    def devices(self) -> int:
        """Devices of all engines, those of the pool included."""
        own = self.engines * self.run.parallelism.devices
        return own if self.pool is None else own + self.pool.devices


def _is_latent(attention: object) -> bool:
    if isinstance(attention, AttentionModule):
        return attention.kind in ("mla", "dsa")
    return isinstance(attention, Attention) and attention.latent is not None


def resolve_deployment(workload: ServingWorkload) -> Deployment:
    """Return the deployment. Raises BadInput that names wrong, missing or contradicting fields."""
    _check_software(workload.software)
    check_load(workload.load)
    pooled = _is_pooled(workload)
    check_run(workload, pooled=pooled)
    lengths = lengths_of(structs.replace(workload, output_tokens=0) if pooled else workload)
    split = workload.parallelism
    if split.tensor * split.pipeline * split.replicas > _MOST_DEVICES:
        raise refused("parallelism.replicas", f"all engines together have more than {_MOST_DEVICES:,} devices")
    longest = int(lengths.prompt + lengths.output)
    step = model_workload(workload, "decode", int(split.attention_data), longest)
    try:
        network, run = resolve_network(step, None)
        verified = 1 if workload.speculative is None else int(workload.speculative.tokens) + 1
        run = replace(run, pooled=pooled, verified=verified)
        architecture = _architecture(network, run)
    except BadInput as error:
        raise _as_serving(error, workload) from error
    if len(architecture.stacks) > 1:
        raise refused(
            _given(workload), "serving engines batch decoders: this network has an encoder beside its decoder"
        )
    return Deployment(
        workload=as_recorded(workload, lengths),
        step=step,
        network=network,
        run=run,
        architecture=architecture,
        engines=int(split.replicas),
        lengths=lengths._replace(drift=run.release.drift),
        pool=_pool(workload),
        draft=_draft(workload),
    )


def _is_pooled(workload: ServingWorkload) -> bool:
    """Return whether prompts are embedded or ranked: without output tokens, or by a model that generates none.

    Raises BadInput for what such loads do not have.
    """
    config = workload.config if workload.name is None else find_config(workload.name)
    encodes = config is not None and not _generates(msgspec.json.encode(config))
    if encodes and (workload.output_tokens or workload.load.trace is not None):
        raise refused("output_tokens", "the model generates no tokens: leave it out, or send 0, and no trace")
    pooled = encodes or workload.output_tokens == 0
    for field in ("speculative", "prefill_pool"):
        if pooled and getattr(workload, field) is not None:
            raise refused(field, "prompts alone are computed: leave it out")
    return pooled


def served_levels(gpus: GpuTable, target: int, deployment: Deployment) -> Levels:
    """Return what the error of a deployment's load on a GPU is shared by."""
    load = next(kind for name, kind in LOADS.items() if getattr(deployment.workload.load, name) is not None)
    (levels,) = levels_of(prepare(deployment.network, deployment.run), deployment.run, gpus, [target], load)
    return levels


def _check_software(software: str) -> None:
    """Raise BadInput for software that does not serve by CUDA graphs, and for a serving stack's name misspelt."""
    release, known = release_of(software, "decode"), [stack.name for stack in serving_stacks()]
    misspelt = release.name not in known and get_close_matches(release.name, known, cutoff=_MISSPELT)
    if misspelt or release.eager:
        message = f"{software[:100]!r} is no serving stack with CUDA graphs: use one of {', '.join(known)}"
        raise refused("software", message)


def _pool(workload: ServingWorkload) -> Deployment | None:
    """Return the deployment of the engines that compute the prompts, which generate one token each."""
    pool = workload.prefill_pool
    if pool is None:
        return None
    if workload.load.burst is not None or workload.load.trace is not None:
        raise refused("load", "with prefill_pool send concurrency or rate_per_s")
    try:
        split = structs.replace(pool.parallelism, replicas=pool.replicas or pool.parallelism.replicas)
        changes = {"parallelism": split, "output_tokens": 1, "prefill_pool": None, "speculative": None}
        return resolve_deployment(structs.replace(workload, **changes))
    except BadInput as error:
        errors = [
            FieldError((*_LOC, "prefill_pool", *one.loc[1:]), one.msg) if "parallelism" in one.loc else one
            for one in error.errors
        ]
        if not errors:
            raise
        raise type(error).of(errors) from error


def _draft(workload: ServingWorkload) -> Deployment | None:
    """Return the deployment of a draft model on the devices of an attention replica, None without one.

    Raises BadInput unless the acceptance of every drafted token is given, once, and no later one's is higher.
    """
    speculative = workload.speculative
    if speculative is None:
        return None
    of_each = speculative.acceptance_by_position
    if (speculative.acceptance is None) == (of_each is None):
        raise refused("speculative.acceptance", "send one of acceptance and acceptance_by_position")
    if of_each is not None and (len(of_each) < speculative.tokens or of_each != sorted(of_each, reverse=True)):
        why = f"is the share of steps that keep each of the {speculative.tokens:.0f} drafted tokens: none may rise"
        raise refused("speculative.acceptance_by_position", why)
    draft = speculative.draft
    if draft is None or draft == "mtp":
        return None
    if speculative.draft_share is not None:
        raise refused("speculative.draft_share", "the draft model says what it takes: leave it out")
    split = workload.parallelism
    changes: dict[str, Any] = {
        "name": draft if isinstance(draft, str) else None,
        "config": None if isinstance(draft, str) else draft,
        "parallelism": ServingParallelism(tensor=max(split.tensor // split.attention_data, 1)),
        **dict.fromkeys(("dtype", "speculative", "prefill_pool")),
    }
    try:
        return resolve_deployment(structs.replace(workload, **changes))
    except BadInput as error:
        raise BadInput.of([FieldError((*_LOC, "speculative", "draft"), one.msg) for one in error.errors]) from error


def _given(workload: ServingWorkload) -> str:
    """Return the field that names the network."""
    return "config" if workload.name is None else "name"


def _as_serving(error: BadInput, workload: ServingWorkload) -> BadInput:
    """Return an error of a step with the fields of the deployment that it stems from."""
    field_of = {"sequence": "input_tokens", "mode": _given(workload), "image_size": _given(workload)}
    errors = [FieldError((*one.loc[:-1], field_of.get(str(one.loc[-1]), one.loc[-1])), one.msg) for one in error.errors]
    return type(error).of(errors) if errors else error


def model_workload(workload: ServingWorkload, mode: Mode, batch: int, sequence: int) -> ModelWorkload:
    """Return one step of an engine as a workload of kind `model`; `batch` is over all attention replicas."""
    split = workload.parallelism
    return ModelWorkload(
        kind="model",
        config=workload.config,
        name=workload.name,
        mode=mode,
        batch=batch,
        sequence=sequence,
        dtype=workload.dtype,
        kv_dtype=workload.kv_dtype,
        software=workload.software,
        parallelism=_parallelism(split),
    )


def _parallelism(split: ServingParallelism) -> ParallelismIn:
    fields = {name: getattr(split, name) for name in split.__struct_fields__ if name != "replicas"}
    return structs.replace(ParallelismIn(), **fields)


@lru_cache(_MOST_ARCHITECTURES)
def _generates(config: bytes) -> bool:
    """Return whether a configuration, JSON, is of a model that generates tokens; one that cannot be read counts so."""
    with suppress(BadInput):
        return hf.read(msgspec.json.decode(config)).generates
    return True


@lru_cache(_MOST_ARCHITECTURES)
def _architecture(network: Network, run: Run) -> Architecture:
    """Return the architecture of a network that can run so. Raises BadInput if it cannot."""
    key: Any = network.key  # ("config", JSON) of every network that decodes
    architecture = hf.read(msgspec.json.decode(key[1]))
    network.lower(run)
    return architecture
