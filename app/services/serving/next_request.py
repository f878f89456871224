"""Times of the next request of an engine in a given state, for gateways that choose among engines (llm-d)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from weakref import ref

from msgspec import structs

from app.bands.band import EXACT, Band, standard_deviation
from app.engine.engine import Engine as Predictors
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput
from app.runtime.sized_cache import SizedCache
from app.services.serving.deployment import resolve_deployment
from app.services.serving.engines import Engine, engines_on, with_factor
from app.services.serving.loads import refused
from app.services.serving.predict_serving import predict_serving
from app.services.serving.served_points import known_of
from app.serving.steady_state import QueueState, next_times
from app.steps.timing import StepQuery
from app.wire.llm_d_form import MODEL_TYPE, EngineState, NextRequestTimes, PredictorStatus
from app.wire.predict_body import read_request
from app.wire.serving_form import ServedTime, ServingLoad, ServingRequest

_OBJECTIVE, _QUANTILE = "mean", 0.5


@dataclass(frozen=True, slots=True)
class NextRequests:
    """An engine of a deployment, whose requests take as long as its state says; bands are those of its steps."""

    engine: Engine
    output: float
    ttft: Band[float]
    tpot: Band[float]
    coverage: float

    @classmethod
    def of(cls, snapshot: Snapshot, request: ServingRequest, *, max_rows: int) -> NextRequests:
        """Return the engine of a request. Raises BadInput for several GPUs, pools, and models that do not fit."""
        if request.gpu is None:
            raise BadInput("gpus: a gateway asks about one deployment: save a prediction of one gpu.")
        workload = structs.replace(request.workload, load=ServingLoad(concurrency=1), method="closed_form")
        if workload.prefill_pool is not None:
            raise refused("prefill_pool", "a gateway asks about one engine: leave it out")
        if request.workload.load.requests is not None:
            raise refused("load.requests", "the next request is one of a load that goes on: leave it out")
        if request.workload.load.trace is not None:
            raise refused("load.trace", "send input_tokens, output_tokens and another load")
        (answer,) = predict_serving(
            snapshot, structs.replace(request, workload=workload), max_rows=max_rows
        ).predictions
        if answer.serving.ttft_ms is None:
            raise BadInput(f"The model is not served on {answer.gpu}: {'; '.join(answer.warnings)}.")
        rows = GpuRows(snapshot)
        (target,) = rows.targets(request)
        deployment, spec = resolve_deployment(workload), rows.spec(target)
        query = StepQuery(snapshot.engine, rows.table(), [target], request.predictor)
        (engine,) = engines_on(query, deployment, [spec])
        if snapshot.engine.served_points.by_deployment and not rows.is_uncatalogued(target):
            engine = with_factor(engine, known_of(snapshot.engine, workload, spec, target, request.predictor).factor)
        served = answer.serving
        bands = _band(served.ttft_ms), _band(served.tpot_ms)
        return cls(engine, float(workload.output_tokens or 1), *bands, request.coverage)

    def times(self, state: EngineState) -> NextRequestTimes:
        """Return the times of a request in this state."""
        prompt = state.input_token_length
        queue = QueueState(
            running=state.num_request_running,
            waiting=state.num_request_waiting,
            kv_share=state.kv_cache_percentage,
            prompt=prompt,
            cached=prompt * state.prefix_cache_score,
            generated=state.num_tokens_generated,
            output=self.output,
        )
        ttft_s, tpot_s = next_times(self.engine.times, self.engine.limits, queue)
        return NextRequestTimes(
            ttft_ms=1e3 * ttft_s,
            tpot_ms=1e3 * tpot_s,
            ttft_uncertainty=float(standard_deviation(1e3 * ttft_s, self.ttft)),
            tpot_uncertainty=float(standard_deviation(1e3 * tpot_s, self.tpot)),
            ttft_prediction_bounds=list(map(float, self.ttft.ends(1e3 * ttft_s, self.coverage))),
            tpot_prediction_bounds=list(map(float, self.tpot.ends(1e3 * tpot_s, self.coverage))),
            predicted_at=datetime.now(UTC),
            model_type=MODEL_TYPE,
            objective_type=_OBJECTIVE,
            quantile=_QUANTILE,
        )


class _Cached(NamedTuple):
    """An engine, and the predictors that gave its times: others may get their address."""

    predictors: ref[Predictors]
    requests: NextRequests


_cache: SizedCache[_Cached] = SizedCache(16 * 2**20)
# Bytes of an engine's tables, about.
_SIZE = 16 * 2**10


def next_requests(snapshot: Snapshot, kind: str, saved: str, *, max_rows: int) -> NextRequests:
    """Return the engine of a saved prediction, whose route is `kind` and whose request is the JSON `saved`; cached.

    Raises BadInput for a prediction of another kind, and as NextRequests.of.
    """
    key = (id(snapshot.engine), saved)
    known = _cache.get(key)
    if known is not None and known.predictors() is snapshot.engine:
        return known.requests
    request = read_request(saved.encode()) if kind == "predict" else None
    if not isinstance(request, ServingRequest):
        raise BadInput("The saved prediction is not of a served model: save one of POST /predict, kind serving.")
    requests = NextRequests.of(snapshot, request, max_rows=max_rows)
    _cache.put(key, _Cached(ref(snapshot.engine), requests), _SIZE + len(saved))
    return requests


def status() -> PredictorStatus:
    """Return the state of the predictor, which needs no training."""
    exist = {"ttft_model": True, "tpot_model": True}
    return PredictorStatus(model_type=MODEL_TYPE, objective_type=_OBJECTIVE, quantile=_QUANTILE, models_exist=exist)


def _band(time: ServedTime | None) -> Band[float]:
    """Return the band of a time; no width of none."""
    return EXACT if time is None else time.interval.band(time.mean)
