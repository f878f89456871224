"""Read the bodies of POST /predict and write its answers. Kernels are tried first, as the most frequent kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec
from msgspec import Struct

from app.errors import BadInput, FieldError
from app.wire.decoding import decode, decode_long, decode_plain
from app.wire.graph_form import GRAPH_REQUEST_EXAMPLE, GraphRequest
from app.wire.json_text import EXPLAINED_BYTES, check_json_text
from app.wire.names import did_you_mean, with_json_numbers, with_own_dtypes
from app.wire.network_form import MODEL_EXAMPLE, ModelRequest
from app.wire.operator_forms import (
    FORMS,
    OPERATOR_TABLE_EXAMPLE,
    OPERATORS_EXAMPLE,
    OperatorsRequest,
    OperatorTableRequest,
    TableResponse,
    unknown_op,
)
from app.wire.prediction_form import PREDICT_EXAMPLE, PredictRequest, PredictResponse
from app.wire.serving_form import SERVING_EXAMPLE, ServingRequest, ServingResponse

Request: TypeAlias = (
    PredictRequest | OperatorsRequest | OperatorTableRequest | ModelRequest | GraphRequest | ServingRequest
)
Response: TypeAlias = PredictResponse | TableResponse | ServingResponse

_GPUS = ["nvidia-l4"]

_KERNEL = msgspec.json.Decoder(PredictRequest)
_ENCODER = msgspec.json.Encoder()


class _Workload(Struct):
    kind: str


class _Kind(Struct):
    """The kind of a body, and nothing else of it."""

    workload: _Workload


_PEEK = msgspec.json.Decoder(_Kind)
# Decoder per kind, and a valid request to repair wrong fields from while looking for the next one.
_KINDS: Mapping[str, tuple[msgspec.json.Decoder[Any], dict[str, Any]]] = {
    "kernel": (_KERNEL, PREDICT_EXAMPLE | {"gpus": _GPUS}),
    "operators": (msgspec.json.Decoder(OperatorsRequest), OPERATORS_EXAMPLE | {"gpus": _GPUS}),
    "operator_table": (msgspec.json.Decoder(OperatorTableRequest), OPERATOR_TABLE_EXAMPLE | {"gpu": _GPUS[0]}),
    "model": (msgspec.json.Decoder(ModelRequest), MODEL_EXAMPLE | {"gpus": _GPUS}),
    "graph": (msgspec.json.Decoder(GraphRequest), GRAPH_REQUEST_EXAMPLE | {"gpus": _GPUS}),
    "serving": (msgspec.json.Decoder(ServingRequest), SERVING_EXAMPLE | {"gpus": _GPUS}),
}


def read_request(body: bytes) -> Request:
    """Return the request from JSON. Raises Malformed, or BadInput that names every wrong field."""
    check_json_text(body)
    if (request := _request(body)) is not None:
        return request
    named = with_own_dtypes(body)
    for text in dict.fromkeys((named, with_json_numbers(named))):
        if text != body and (request := _request(text)) is not None:
            return request
    return _explain_refusal(named)


def _request(body: bytes) -> Request | None:
    """Return the request of a valid body; None of any other."""
    try:
        return _KERNEL.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        kind = _PEEK.decode(body).workload.kind
        decoder, _ = _KINDS[kind]
        request: Request = decode_long(decoder, body) if kind == "graph" else decoder.decode(body)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        return None
    return request


def _explain_refusal(body: bytes) -> Request:
    """Raise BadInput for a body that no struct accepts, by the struct of its kind."""
    if len(body) > EXPLAINED_BYTES:
        return _explain_long(body)
    raw = decode_plain(body)
    workload = raw.get("workload") if isinstance(raw, dict) else None
    kind = workload.get("kind") if isinstance(workload, dict) else None
    if isinstance(workload, dict) and not (isinstance(kind, str) and kind in _KINDS):
        _refuse_kind(_unknown_kind(str(kind)) if "kind" in workload else "required field is missing")
    decoder, example = _KINDS[kind or "kernel"]
    if kind == "operators" and isinstance(workload, dict):
        _check_operator_names(workload)
    if kind == "operator_table":
        try:  # the reader of the column reports NaN, which is not JSON, with its row
            return msgspec.convert(raw, OperatorTableRequest)
        except (msgspec.ValidationError, OverflowError):
            pass
    refused: Request = decode(decoder, body, example=example)
    return refused


def _explain_long(body: bytes) -> Request:
    """Raise BadInput with the first error of a long body, which is not decoded for more."""
    try:
        kind = _PEEK.decode(body).workload.kind
    except (msgspec.DecodeError, UnicodeDecodeError):
        kind = "kernel"
    if kind not in _KINDS:
        _refuse_kind(_unknown_kind(kind))
    decoder, example = _KINDS[kind]
    refused: Request = decode(decoder, body, example=example)
    return refused


def _unknown_kind(kind: str) -> str:
    return f"{kind[:100]!r} is unknown{did_you_mean(kind, _KINDS)}"


def _refuse_kind(why: str) -> NoReturn:
    raise BadInput.at(("workload", "kind"), f"{why}; known are: {', '.join(_KINDS)}")


def _check_operator_names(workload: Mapping[str, Any]) -> None:
    """Raise BadInput for unknown operators, before fields are judged by an operator that was not meant."""
    given = workload.get("operators")
    rows = enumerate(given if isinstance(given, list) else ())
    named = [(k, row.get("op")) for k, row in rows if isinstance(row, dict)]
    wrong = [(k, op) for k, op in named if not isinstance(op, str) or op not in FORMS]
    errors = [FieldError(("workload", "operators", k, "op"), unknown_op(op)) for k, op in wrong]
    if errors:
        raise BadInput.of(errors)


def write_response(response: Response) -> bytes:
    """Return the response as JSON. Large ones are encoded in parts: other threads wait while msgspec encodes one."""
    if isinstance(response, PredictResponse) and any(one.operators for one in response.predictions):
        parts: list[Any] = [msgspec.Raw(_ENCODER.encode(one)) for one in response.predictions]
        response = PredictResponse(parts, response.skipped, response.id)
    return _ENCODER.encode(response)
