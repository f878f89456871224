"""Predict served models (POST /predict, kind `serving`): step times, then the load on them, an answer per GPU type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import exp
from typing import NamedTuple, TypeAlias

import numpy as np

from app.bands.band import EXACT, Band, Served, sum_correlated
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, FieldError
from app.networks.run import Mode
from app.runtime.cancellation import check_cancelled
from app.services.models.network_answers import UNEXPLAINED, StepFacts, TimedNetwork, WidthFacts
from app.services.models.predict_networks import context_notes, known_step, notes_of, rows_for
from app.services.models.resolve_networks import config_of
from app.services.operators.machines import joined_by
from app.services.operators.predict_operators import (
    check_rows,
    require_predictor,
    supported_targets,
    unsupported_dtypes,
)
from app.services.serving.deployment import Deployment, resolve_deployment
from app.services.serving.engines import (
    REACHED,
    Engine,
    engines_on,
    expected_steps,
    shape_of,
    shown_settings,
    with_factor,
)
from app.services.serving.known_times import KnownTime, Uncertainties, near_capacity, uncertainties
from app.services.serving.load_figures import (
    LoadFigures,
    Times,
    load_figures,
    measured_figures,
    sequence_limit,
    with_first_token,
)
from app.services.serving.served_points import Known, known_of
from app.services.serving.simulation_steps import check_predicted
from app.serving.steady_state import Shape
from app.stacks.release import release_of
from app.steps.networks import prepare
from app.steps.timing import StepQuery, time_step
from app.tables.arrays import Ints
from app.tables.gpus import GpuSpec
from app.tables.ops import OpTable
from app.warning_codes import CodedWarning, warning
from app.wire.prediction_form import Interval, MemoryParts, MemoryUse, Skipped
from app.wire.serving_form import (
    KvCacheUse,
    ServedFigures,
    ServedSequences,
    ServedTime,
    ServingPrediction,
    ServingRequest,
    ServingResponse,
    ServingSteps,
)


def served_time(
    times: Times | None, band: Band[float], coverage: float, facts: WidthFacts = UNEXPLAINED
) -> ServedTime | None:
    """Return times, seconds, with the interval of their mean and its facts; None for none."""
    if times is None:
        return None
    p50, p90, p99 = (None if np.isnan(percentile) else 1e3 * percentile for percentile in times[1:4])
    mean = 1e3 * times.mean
    return ServedTime(mean, p50, p90, p99, Interval.of(mean, band, coverage), *facts)


def whole_time(
    times: Times | None, ttft: ServedTime | None, tpot: ServedTime | None, later: float
) -> ServedTime | None:
    """Return the time of a request with `later` tokens after its first, which deviate together with it."""
    if times is None or ttft is None:
        return None
    parts = [(ttft.mean, ttft.interval.band(ttft.mean))]
    if tpot is not None:
        parts.append((later * tpot.mean, tpot.interval.band(tpot.mean)))
    return served_time(times, sum_correlated(parts), ttft.interval.coverage)


_UNKNOWN = Known()


class ServedStep(NamedTuple):
    """A step of a deployment on one GPU: its operators' band, and of decode its other facts."""

    own: Band[float]
    facts: StepFacts | None


# Of a deployment on one GPU: mode, batch over all attention replicas, tokens.
StepKey: TypeAlias = tuple[Mode, int, int]
Steps: TypeAlias = dict[StepKey, ServedStep]


def own_bands(steps: Steps) -> Served:
    """Return the bands of operators in the last steps of one deployment that decode, and in those of prompts."""
    bands = {mode: step.own for (mode, _, _), step in steps.items()}
    return Served(bands.get("decode", EXACT), bands["prefill"])  # embeddings have no steps that decode


def predict_serving(
    snapshot: Snapshot,
    request: ServingRequest,
    *,
    max_rows: int,
    steps: Steps | None = None,
    prompt_shares: dict[str, float] | None = None,
) -> ServingResponse:
    """Return the answer to a request. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead.

    `steps`: steps of the request's one GPU that are predicted already; more are added. `prompt_shares` gets the share
    of the devices' time that prompts take (`LoadFigures.prompt_share`), by GPU.
    """
    engine, rows = snapshot.engine, GpuRows(snapshot)
    targets = rows.targets(request)
    require_predictor(engine, rows, request.predictor, targets)
    deployment = resolve_deployment(request.workload)
    every, split = request.gpus == "all", deployment.run.parallelism
    targets = joined_by(rows, targets, split, every=every) if split.link else targets
    targets, skipped = runnable(snapshot, rows, deployment, targets, every=every)
    skipped += rows.skipped
    if not targets:
        return ServingResponse([], skipped)
    specs = [rows.spec(target) for target in targets]
    check_predicted(len(targets), expected_steps(deployment, specs))
    engines = engines_on(StepQuery(engine, rows.table(), targets, request.predictor), deployment, specs)
    answer = _Answer(snapshot, request, deployment, rows, max_rows, steps)
    predictions, simulated = list[ServingPrediction](), 0
    for target, spec, served in zip(targets, specs, engines, strict=True):
        check_cancelled()
        known = Known()
        if engine.served_points.by_deployment and not rows.is_uncatalogued(target):
            known = known_of(engine, request.workload, spec, target, request.predictor)
        within = answer.known_within(target)
        figures = load_figures(deployment, with_factor(served, known.factor), known_within=within)
        if known.first_factor != 1.0:
            plain = load_figures(deployment, served, known_within=within)
            simulated += plain.steps
            figures = with_first_token(figures, plain.ttft, known.first_factor, request.workload.load)
        simulated += figures.steps
        check_predicted(len(targets), simulated)
        predictions.append(answer.on(target, served, figures, known))
        if prompt_shares is not None:
            prompt_shares[spec.id] = figures.prompt_share
    return ServingResponse(predictions, skipped)


def predict_served(
    snapshot: Snapshot,
    request: ServingRequest,
    deployment: Deployment,
    spec: GpuSpec,
    engine: Engine,
    figures: LoadFigures | None = None,
    steps: Steps | None = None,
) -> ServingPrediction:
    """Return the answer of a request for one GPU whose engine is known, and perhaps the figures of its load.

    `steps`: steps of the engine that are predicted already; more are added.
    """
    assert request.gpu is not None
    rows = GpuRows(snapshot)
    answer = _Answer(snapshot, request, deployment, rows, 2**62, steps)
    return answer.on(rows.row(request.gpu, ("gpu",)), engine, figures or load_figures(deployment, engine))


def runnable(
    snapshot: Snapshot, rows: GpuRows, deployment: Deployment, targets: list[int], *, every: bool
) -> tuple[list[int], list[Skipped]]:
    """Return the targets that compute in the model's number formats, and of `every` GPU the others, skipped.

    Raises BadInput for GPUs that were named and do not.
    """
    step = prepare(deployment.network, deployment.run)
    refusal = None if every else partial(_refusal, step.distinct.table)
    table, assumed = step.distinct.table, deployment.run.assumed
    return supported_targets(snapshot.engine, table, step.work, rows.table(), targets, refusal, assumed=assumed)


def _refusal(table: OpTable, gpu: str, missing: Ints) -> BadInput:
    """That a GPU lacks a number format of the model."""
    reason = unsupported_dtypes(gpu, table, missing)
    return BadInput(f"The model cannot run: {reason}.", errors=[FieldError(("workload", "dtype"), reason)])


def _key(deployment: Deployment, mode: Mode, sequences: float, tokens: float) -> StepKey:
    """Return a step of an engine, of so many sequences over all attention replicas."""
    replicas = deployment.attention_replicas
    return mode, replicas * max(round(sequences / replicas), 1), max(round(tokens), 1)


class _Answer(NamedTuple):
    """Renders the figures of a deployment; `known`: steps of the request's one GPU, of which more are added."""

    snapshot: Snapshot
    request: ServingRequest
    deployment: Deployment
    rows: GpuRows
    max_rows: int
    known: Steps | None = None

    def on(self, target: int, engine: Engine, figures: LoadFigures, known: Known = _UNKNOWN) -> ServingPrediction:
        """Return the answer of the GPU type in this row, whose loads were measured as `known` says."""
        deployment, spec = self.deployment, self.rows.spec(target)
        shape = shape_of(deployment)
        together = figures.decoding
        if deployment.run.pooled:
            together = np.fmin(figures.running / deployment.engines, engine.settings.budget_tokens / shape.prompt)
        facts, token, first = self._steps(target, together, shape)
        errors = [self.snapshot.engine.error_models[name] for name in ("tpot", "ttft")]
        token = token.learned(errors[0], known.uploads.get("tpot", ()))
        first = first.learned(errors[1], known.uploads.get("ttft", ()))
        load = deployment.workload.load
        is_sent = load.trace is not None or figures.requests_per_s >= REACHED * (load.rate_per_s or np.inf)
        if is_sent and figures.e2e is not None and np.isfinite(deployment.rate_per_s):  # whole, in spite of a cap
            token, first = near_capacity(deployment, engine, token, first)
        bands = Served(token.band, first.band)
        if known.exact is not None:
            figures = measured_figures(figures, known.exact, load)
            bands = known.bands
        coverage = self.request.coverage
        shown = self.request.detail and known.exact is None
        tpot, ttft = (
            served_time(times, band, coverage, of.facts(error, facts.support) if shown else UNEXPLAINED)
            for times, band, of, error in (
                (figures.tpot, bands.token, token, errors[0]),
                (figures.ttft, bands.first, first, errors[1]),
            )
        )
        e2e = whole_time(figures.e2e, ttft, tpot, max(deployment.timed_tokens(shape.output), 0.0))
        warnings = self._warnings(facts, engine, figures)
        return ServingPrediction(
            gpu=spec.id,
            latency_ms=None if e2e is None else e2e.mean,
            interval_ms=None if e2e is None else e2e.interval,
            bound=facts.bound,  # type: ignore[arg-type]
            predictor=facts.predictor,
            support=facts.support if known.exact is None else "measured",  # type: ignore[arg-type]
            memory=self._memory(engine, spec.memory_bytes, figures),
            breakdown=facts.breakdown,
            warnings=[each.text for each in warnings],
            warning_codes=warnings,
            devices=deployment.devices,
            serving=self._figures(engine, figures, (ttft, tpot, e2e)),
        )

    def _steps(self, target: int, decoding: float, shape: Shape) -> tuple[StepFacts, KnownTime, KnownTime]:
        """Return the facts of a decode step of so many sequences, and how well both times of the load are known.

        Its steps and those of prompts are predicted together.
        """
        deployment, known = self.deployment, {} if self.known is None else self.known
        pool = deployment.pool or deployment
        mode: Mode = "prefill" if deployment.run.pooled else "decode"
        decode = _key(deployment, mode, decoding, shape.prompt if deployment.run.pooled else shape.context)
        prefill = _key(pool, "prefill", 1.0, max(shape.prompt - shape.cached, 1.0))
        if missing := {key: of for key, of in ((decode, deployment), (prefill, pool)) if key not in known}:
            known |= self._predicted(target, missing)
        facts = known[decode].facts
        assert facts is not None
        token, first = self._uncertainties(target)
        return facts, KnownTime(token, known[decode].own), KnownTime(first, known[prefill].own)

    def _uncertainties(self, target: int) -> Uncertainties:
        return uncertainties(self.snapshot.engine, self.rows.table(), target, self.deployment)

    def known_within(self, target: int) -> float:
        """Return the factor by which the highest rate is known: a token's, to either side, without operators' own."""
        band = self._uncertainties(target)[0].band(EXACT)
        return exp(0.5 * (band.below + band.above))

    def _predicted(self, target: int, steps: Mapping[StepKey, Deployment]) -> Steps:
        """Return the steps on one GPU, each of a deployment."""
        engine, rows, gpus = self.snapshot.engine, self.rows, self.rows.table()
        query = StepQuery(engine, gpus, [target], self.request.predictor)
        runs = [
            replace(of.run, mode=mode, batch=batch, sequence=tokens, release=release_of(of.workload.software, mode))
            for (mode, batch, tokens), of in steps.items()
        ]
        ready = [rows_for(query.predictor, of.network, run) for of, run in zip(steps.values(), runs, strict=True)]
        tables = [each.distinct.table for each in ready]
        for each, table, run in zip(ready, tables, runs, strict=True):
            check_rows(each.workload.ops.kind.size, 1, max_rows=self.max_rows, detail=False)
            refusal = partial(_refusal, table)
            supported_targets(engine, table, each.work, gpus, [target], refusal, assumed=run.assumed)
        alone = query.predict_each(list(zip(tables, runs, strict=True)))
        known: Steps = {}
        for (key, of), run, each, answer in zip(steps.items(), runs, ready, alone, strict=True):
            step = time_step(query, each, run, launched=False, alone=answer)
            step = known_step(step, query, rows, of.network, run, launched=False)
            facts = None
            if run.mode == "decode" or run.pooled:
                facts = TimedNetwork(query, rows, run, each, step).facts(0)
                facts = facts._replace(warnings=[*notes_of(of.step, each, run, launched=False), *facts.warnings])
            own = step.band if step.measured[0] else step.own
            known[key] = ServedStep(Band(float(own.below[0]), float(own.above[0])), facts)
        return known

    def _memory(self, engine: Engine, capacity: float, figures: LoadFigures) -> MemoryUse:
        memory = engine.memory._replace(kv_cache=min(figures.kv_bytes, engine.kv_capacity_bytes))
        fits = engine.kv_capacity_bytes > 0.0 and figures.highest_rate > 0.0
        return MemoryUse(memory.required_bytes, capacity, fits, MemoryParts(*memory.breakdown))

    def _warnings(self, decode: StepFacts, engine: Engine, figures: LoadFigures) -> list[CodedWarning]:
        messages = [each for each in decode.warnings if each.code not in ("software_assumed", "context_too_long")]
        config, lengths = config_of(self.deployment.step), self.deployment.lengths
        messages += context_notes(config or {}, int(lengths.prompt + lengths.output))
        if engine.kv_capacity_bytes == 0.0:
            text = "the weights leave no memory for keys and values: split the model over more devices"
            messages.append(warning("kv_cache_absent", text))
        elif figures.highest_rate == 0.0:
            text = "not one request fits in the memory that the weights leave"
            messages.append(warning("request_too_large", text))
        load = self.deployment.workload.load
        rate = load.rate_per_s
        if load.max_concurrency and rate and figures.requests_per_s < REACHED * rate:
            text = f"max_concurrency lets clients send {figures.requests_per_s:.4g} requests a second of {rate:.4g}"
            messages.append(warning("concurrency_capped", text))
        elif rate is not None and figures.e2e is not None and rate > figures.highest_rate:
            text = f"the rate is over the highest predicted, {figures.highest_rate:.4g} a second, by under its error"
            messages.append(warning("near_capacity", text))
        if figures.unfinished:
            text = f"{figures.unfinished} requests were not answered when the simulation ended: figures lack them"
            messages.append(warning("requests_unfinished", text))
        return messages

    def _figures(
        self,
        engine: Engine,
        figures: LoadFigures,
        spreads: tuple[ServedTime | None, ServedTime | None, ServedTime | None],
    ) -> ServedFigures:
        deployment, shape, workload = self.deployment, shape_of(self.deployment), self.deployment.workload
        saturated = figures.e2e is None
        steps_s = (np.nan if deployment.run.pooled else figures.decode_s, figures.mixed_s)
        tokens = None if saturated else figures.requests_per_s * shape.output
        return ServedFigures(
            *spreads,
            output_tokens_per_s=tokens,
            output_tokens_per_s_per_gpu=None if tokens is None else tokens / deployment.devices,
            requests_per_s=None if saturated else figures.requests_per_s,
            sequences=ServedSequences(None if saturated else figures.running, sequence_limit(deployment, engine)),
            kv_cache=KvCacheUse(figures.kv_bytes, engine.kv_capacity_bytes),
            step_ms=ServingSteps(*(1e3 * one if np.isfinite(one) and one > 0.0 else None for one in steps_s)),
            saturated=saturated,
            saturated_by=figures.cause if saturated else None,  # type: ignore[arg-type]
            highest_rate_per_s=figures.highest_rate,
            method=workload.method,
            settings=shown_settings(deployment, engine, self.snapshot.engine),
        )
