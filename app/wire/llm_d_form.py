"""JSON structs of llm-d.

Its inference gateway sends the state of one engine before a request, in names and meanings of its own, and reads the
request's times from the answer. Fields that later versions send besides are ignored.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from app.wire.examples import EXAMPLES
from app.wire.field_facts import about

# Of one request to /predict/bulk; the gateway sends 100 at most.
MOST_STATES = 1000
# The gateway asks servers of this type over HTTP; of another it computes the times itself, from coefficients.
MODEL_TYPE = "xgboost"
_Count: TypeAlias = Annotated[float, Meta(ge=0, le=2**21)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class EngineState(Struct, kw_only=True, frozen=True):
    """State of an engine, and the request that may be sent to it."""

    kv_cache_percentage: Annotated[_Share, about("Share of the KV cache in use, 0 to 1")]
    input_token_length: Annotated[_Count, about("Tokens of the request's prompt")]
    num_request_waiting: Annotated[_Count, about("Requests that wait in the engine")]
    num_request_running: Annotated[_Count, about("Requests that the engine runs")]
    num_tokens_generated: Annotated[_Count, about("Tokens that the request has generated already")]
    prefix_cache_score: Annotated[_Share, about("Share of the prompt that the engine has cached, 0 to 1")]


class EngineStates(Struct, kw_only=True, frozen=True):
    """States of several engines, or several requests."""

    requests: Annotated[list[EngineState], about("One entry per prediction", min_length=1, max_length=MOST_STATES)]


class NextRequestTimes(Struct, kw_only=True, frozen=True):
    """Mean times of a request in such a state; bounds hold the true mean with the saved prediction's coverage."""

    ttft_ms: Annotated[float, about("Mean time to first token, milliseconds")]
    tpot_ms: Annotated[float, about("Mean time per output token after the first, milliseconds")]
    ttft_uncertainty: Annotated[float, about("Standard deviation of ttft_ms, milliseconds")]
    tpot_uncertainty: Annotated[float, about("Standard deviation of tpot_ms, milliseconds")]
    ttft_prediction_bounds: Annotated[list[float], about("Low and high end of ttft_ms, milliseconds")]
    tpot_prediction_bounds: Annotated[list[float], about("Low and high end of tpot_ms, milliseconds")]
    predicted_at: Annotated[datetime.datetime, about("Time of the answer, UTC")]
    model_type: Annotated[str, about("Always xgboost: of such servers the gateway asks over HTTP")]
    objective_type: Annotated[str, about("What the times are: mean")]
    quantile: Annotated[float, about("Quantile that the times are, 0.5")]
    last_model_load: Annotated[datetime.datetime | None, about("Always null")] = None


class NextRequestsTimes(Struct, kw_only=True, frozen=True):
    """Times of all requests, in their order."""

    predictions: Annotated[list[NextRequestTimes], about("One entry per request, in their order")]
    errors: Annotated[list[str], about("Always empty: a wrong request refuses all")] = []
    total_requests: Annotated[int, about("Number of requests")]
    successful_predictions: Annotated[int, about("Number of answers")]
    failed_predictions: Annotated[int, about("Always 0")] = 0
    processing_time_ms: Annotated[float, about("Time that the answer took, milliseconds")]


class PredictorStatus(Struct, kw_only=True, frozen=True):
    """What the gateway asks before it sends states."""

    is_ready: Annotated[bool, about("Always true: an answer without training")] = True
    model_type: Annotated[str, about("Always xgboost: of such servers the gateway asks over HTTP")]
    objective_type: Annotated[str, about("What the times are: mean")]
    quantile: Annotated[float, about("Quantile that the times are, 0.5")]
    last_model_load: Annotated[datetime.datetime | None, about("Always null")] = None
    training_server_url: Annotated[str, about("Always empty")] = ""
    models_exist: Annotated[dict[str, bool], about("That both times are predicted")]


STATE_EXAMPLE: dict[str, Any] = EXAMPLES["engine_state"]
STATES_EXAMPLE: dict[str, Any] = {"requests": [STATE_EXAMPLE]}
