"""Predict served models (POST /predict, kind `serving`): step times, then the load on them, an answer per GPU type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from msgspec import structs

from app.bands.band import Band, sum_correlated
from app.bands.widths import OTHER_FIRST, SHIFTED_LOAD, Served, served_by
from app.engine.gpu_rows import GpuRows
from app.engine.serving_hosts import host_name
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError
from app.networks.run import Mode
from app.runtime.cancellation import check_cancelled
from app.services.models.predict_networks import predict_network
from app.services.operators.common import require_predictor, supported_targets, unsupported_dtypes
from app.services.serving.deployment import Deployment, model_workload, resolve_deployment
from app.services.serving.engines import Engine, engines_on, shape_of, with_factor
from app.services.serving.load_figures import (
    LoadFigures,
    Times,
    check_predicted,
    load_figures,
    measured_figures,
    sequence_limit,
)
from app.services.serving.served_points import Known, known_of
from app.steps.networks import prepare
from app.steps.timing import StepQuery
from app.tables.arrays import Ints
from app.tables.gpus import GpuSpec
from app.tables.ops import OpTable
from app.warning_codes import CodedWarning, texts, warning
from app.wire.kernel_workload import GpuRef
from app.wire.network_form import ModelRequest
from app.wire.prediction_form import Interval, MemoryParts, MemoryUse, Prediction, Skipped
from app.wire.serving_form import (
    KvCacheUse,
    ServedFigures,
    ServedSequences,
    ServedTime,
    ServingLoad,
    ServingPrediction,
    ServingRequest,
    ServingResponse,
    ServingSettings,
    ServingSteps,
)


def milliseconds(seconds: float) -> float | None:
    """Return milliseconds, or None for no time."""
    return seconds * 1e3 if np.isfinite(seconds) and seconds > 0.0 else None


def served_time(times: Times | None, band: Band[float], coverage: float) -> ServedTime | None:
    """Return times, seconds, with the interval of their mean; None for none."""
    if times is None:
        return None
    p50, p90, p99 = (None if np.isnan(percentile) else 1e3 * percentile for percentile in times[1:4])
    mean = 1e3 * times.mean
    return ServedTime(mean, p50, p90, p99, Interval.of(mean, band, coverage))


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
# Steps of a deployment on one GPU: mode, batch over all attention replicas, tokens.
Steps: TypeAlias = dict[tuple[Mode, int, int], Prediction]
# Codes of warnings about a decode step that do not hold of the deployment.
_OF_STEP = ("memory_exceeded", "software_assumed")


def predict_serving(snapshot: Snapshot, request: ServingRequest, *, max_rows: int) -> ServingResponse:
    """Return the answer to a request. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    return _predict(snapshot, request, max_rows, None)


def predict_loads(
    snapshot: Snapshot, request: ServingRequest, loads: Sequence[ServingLoad], *, max_rows: int, steps: Steps
) -> list[ServingPrediction]:
    """Return the answers of a request for each GPU to these loads in place of its own.

    `steps`: steps of the request that are predicted already; more are added.
    """
    requests = (structs.replace(request, workload=structs.replace(request.workload, load=load)) for load in loads)
    return [_predict(snapshot, each, max_rows, steps).predictions[0] for each in requests]


def _predict(snapshot: Snapshot, request: ServingRequest, max_rows: int, steps: Steps | None) -> ServingResponse:
    engine, rows = snapshot.engine, GpuRows(snapshot)
    targets = rows.targets(request)
    refs = _refs(request, rows, targets)
    require_predictor(engine, rows, request.predictor, targets)
    deployment = resolve_deployment(request.workload)
    targets, skipped = runnable(snapshot, rows, deployment, targets, every=request.gpus == "all")
    if not targets:
        return ServingResponse([], skipped)
    check_predicted(len(targets), 0)
    specs = [rows.spec(target) for target in targets]
    engines = engines_on(StepQuery(engine, rows.table(), targets, request.predictor), deployment, specs)
    answer = _Answer(snapshot, request, deployment, max_rows, steps)
    predictions, simulated = list[ServingPrediction](), 0
    for target, spec, served in zip(targets, specs, engines, strict=True):
        check_cancelled()
        known = Known()
        if not rows.is_uncatalogued(target):
            known = known_of(engine, request.workload, spec, target, request.predictor)
        figures = load_figures(deployment, with_factor(served, known.factor))
        simulated += figures.steps
        check_predicted(len(targets), simulated)
        predictions.append(answer.on(refs[target], spec, served, figures, known))
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
    answer = _Answer(snapshot, request, deployment, max_rows=2**62, steps=steps)
    return answer.on(request.gpu, spec, engine, figures or load_figures(deployment, engine))


def runnable(
    snapshot: Snapshot, rows: GpuRows, deployment: Deployment, targets: list[int], *, every: bool
) -> tuple[list[int], list[Skipped]]:
    """Return the targets that compute in the model's number formats, and of `every` GPU the others, skipped.

    Raises BadInput for GPUs that were named and do not.
    """
    step = prepare(deployment.network, deployment.run)
    refusal = None if every else partial(_refusal, step.distinct.table)
    return supported_targets(snapshot.engine, step.distinct.table, step.work, rows.table(), targets, refusal)


def _refs(request: ServingRequest, rows: GpuRows, targets: Sequence[int]) -> Mapping[int, GpuRef]:
    """Return the GPUs by their rows, as the request names them."""
    if request.gpus == "all":
        return {target: rows.id(target) for target in targets}
    named = request.gpus if request.gpu is None else [request.gpu]
    return dict(zip(targets, named or (), strict=True))


def _refusal(table: OpTable, gpu: str, missing: Ints) -> BadInput:
    """That a GPU lacks a number format of the model."""
    reason = unsupported_dtypes(gpu, table, missing)
    return BadInput(f"The model cannot run: {reason}.", errors=[FieldError(("workload", "dtype"), reason)])


def _bands(deployment: Deployment, decode: Prediction, prefill: Prediction) -> Served:
    """Return the bands of a load's times: those of its steps, and what the stack's host and scheduler add."""
    release = deployment.release
    added, assumption = served_by(release.host), release.assumption
    token = decode.interval_ms.band(decode.latency_ms).widened(added.token)
    first = prefill.interval_ms.band(prefill.latency_ms).widened(added.first)
    return Served(token, first if assumption is None else first.widened(OTHER_FIRST[assumption.other]))


class _Answer:
    """Renders the figures of a deployment."""

    def __init__(
        self,
        snapshot: Snapshot,
        request: ServingRequest,
        deployment: Deployment,
        max_rows: int,
        steps: Steps | None = None,
    ) -> None:
        """`steps`: steps of the request's one GPU that are predicted already; more are added."""
        self._snapshot, self._request, self._deployment, self._max_rows = snapshot, request, deployment, max_rows
        self._known_steps = steps

    def on(
        self, gpu: GpuRef, spec: GpuSpec, engine: Engine, figures: LoadFigures, known: Known = _UNKNOWN
    ) -> ServingPrediction:
        """Return the answer of one GPU type, whose loads were measured as `known` says."""
        deployment = self._deployment
        shape = shape_of(deployment)
        decode = self._step(gpu, deployment, "decode", figures.decoding, shape.context)
        prefill = self._step(gpu, deployment.pool or deployment, "prefill", 1.0, max(shape.prompt - shape.cached, 1.0))
        bands = _bands(deployment, decode, prefill)
        if known.exact is not None:
            figures = measured_figures(figures, known.exact, deployment.workload.load)
            bands = known.bands
        elif known.factor != 1.0:
            bands = bands._replace(token=bands.token.narrower(SHIFTED_LOAD))
        coverage = self._request.coverage
        tpot, ttft = served_time(figures.tpot, bands.token, coverage), served_time(figures.ttft, bands.first, coverage)
        e2e = whole_time(figures.e2e, ttft, tpot, max(shape.output - 1.0, 0.0))
        warnings = self._warnings(decode, engine, figures)
        return ServingPrediction(
            gpu=spec.id,
            latency_ms=None if e2e is None else e2e.mean,
            interval_ms=None if e2e is None else e2e.interval,
            bound=decode.bound,
            predictor=decode.predictor,
            support=decode.support if known.exact is None else "measured",
            memory=self._memory(engine, spec.memory_bytes, figures),
            breakdown=decode.breakdown,
            warnings=texts(warnings),
            warning_codes=warnings,
            devices=deployment.devices,
            serving=self._figures(engine, figures, (ttft, tpot, e2e)),
        )

    def _step(self, gpu: GpuRef, deployment: Deployment, mode: Mode, sequences: float, tokens: float) -> Prediction:
        """Return the prediction of one step of an engine, of so many sequences over all attention replicas."""
        replicas = deployment.attention_replicas
        batch, sequence = replicas * max(round(sequences / replicas), 1), max(round(tokens), 1)
        key = (mode, batch, sequence)
        if self._known_steps is not None and key in self._known_steps:
            return self._known_steps[key]
        workload = model_workload(deployment.workload, mode, batch, sequence)
        served = self._request
        request = ModelRequest(gpu=gpu, workload=workload, predictor=served.predictor, coverage=served.coverage)
        (prediction,) = predict_network(self._snapshot, request, max_rows=self._max_rows, advise=False).predictions
        if self._known_steps is not None:
            self._known_steps[key] = prediction
        return prediction

    def _memory(self, engine: Engine, capacity: float, figures: LoadFigures) -> MemoryUse:
        memory = engine.memory._replace(kv_cache=min(figures.kv_bytes, engine.kv_capacity_bytes))
        fits = engine.kv_capacity_bytes > 0.0 and figures.highest_rate > 0.0
        return MemoryUse(memory.required_bytes, capacity, fits, MemoryParts(*memory))

    def _warnings(self, decode: Prediction, engine: Engine, figures: LoadFigures) -> list[CodedWarning]:
        messages = [each for each in decode.warning_codes if each.code not in _OF_STEP]
        if engine.kv_capacity_bytes == 0.0:
            text = "the weights leave no memory for keys and values: split the model over more devices"
            messages.append(warning("kv_cache_absent", text))
        elif figures.highest_rate == 0.0:
            text = "not one request fits in the memory that the weights leave"
            messages.append(warning("request_too_large", text))
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
        deployment, shape = self._deployment, shape_of(self._deployment)
        workload = deployment.workload
        saturated = figures.e2e is None
        tokens = None if saturated else figures.requests_per_s * shape.output
        return ServedFigures(
            *spreads,
            output_tokens_per_s=tokens,
            output_tokens_per_s_per_gpu=None if tokens is None else tokens / deployment.devices,
            requests_per_s=None if saturated else figures.requests_per_s,
            sequences=ServedSequences(None if saturated else figures.running, sequence_limit(deployment, engine)),
            kv_cache=KvCacheUse(figures.kv_bytes, engine.kv_capacity_bytes),
            step_ms=ServingSteps(milliseconds(figures.decode_s), milliseconds(figures.mixed_s)),
            saturated=saturated,
            saturated_by=figures.cause if saturated else None,  # type: ignore[arg-type]
            highest_rate_per_s=figures.highest_rate,
            method=workload.method,
            settings=ServingSettings(
                deployment.release.stack,
                *engine.settings,
                deployment.scheduler.mixes,
                deployment.scheduler.splits,
                self._snapshot.engine.hosts.version_of(
                    host_name(deployment.release.host, latent=deployment.architecture.latent)
                ),
            ),
        )
