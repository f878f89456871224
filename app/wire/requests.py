"""Bodies of POST /predict in and out: a kernel first, for it is asked most; then the other kinds of workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec
from msgspec import Struct

from app.errors import MAX_ERRORS, BadInput, FieldError
from app.wire.decoding import decode, plain, summary
from app.wire.json_text import refuse_unsound
from app.wire.models.requests import GRAPH_REQUEST_EXAMPLE, MODEL_EXAMPLE, GraphRequest, ModelRequest
from app.wire.operators.forms import FORMS, unknown_op
from app.wire.operators.requests import (
    OPERATOR_TABLE_EXAMPLE,
    OPERATORS_EXAMPLE,
    OperatorsRequest,
    OperatorTableRequest,
    TableResponse,
)
from app.wire.prediction_form import PREDICT_EXAMPLE, PredictRequest, PredictResponse

Request: TypeAlias = PredictRequest | OperatorsRequest | OperatorTableRequest | ModelRequest | GraphRequest
Response: TypeAlias = PredictResponse | TableResponse

_GPUS = ["nvidia-l4"]

_KERNEL = msgspec.json.Decoder(PredictRequest)
_ENCODER = msgspec.json.Encoder()


class _Workload(Struct):
    kind: str


class _Kind(Struct):
    """A body of which only the kind is read."""

    workload: _Workload


_PEEK = msgspec.json.Decoder(_Kind)
# Per kind: its form, and a valid request from which wrong fields are mended to look for the next one.
_KINDS: Mapping[str, tuple[msgspec.json.Decoder[Any], dict[str, Any]]] = {
    "kernel": (_KERNEL, PREDICT_EXAMPLE | {"gpus": _GPUS}),
    "operators": (msgspec.json.Decoder(OperatorsRequest), OPERATORS_EXAMPLE | {"gpus": _GPUS}),
    "operator_table": (msgspec.json.Decoder(OperatorTableRequest), OPERATOR_TABLE_EXAMPLE | {"gpu": _GPUS[0]}),
    "model": (msgspec.json.Decoder(ModelRequest), MODEL_EXAMPLE | {"gpus": _GPUS}),
    "graph": (msgspec.json.Decoder(GraphRequest), GRAPH_REQUEST_EXAMPLE | {"gpus": _GPUS}),
}


def read_request(body: bytes) -> Request:
    """From JSON; Malformed or BadInput that names every wrong field."""
    refuse_unsound(body)
    try:
        return _KERNEL.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        decoder, _ = _KINDS[_PEEK.decode(body).workload.kind]
        request: Request = decoder.decode(body)
        return request
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return _looked_at_again(body)


def _looked_at_again(body: bytes) -> Request:
    """A body that no form takes: what is wrong with it, by the form of its kind."""
    raw = plain(body)
    workload = raw.get("workload") if isinstance(raw, dict) else None
    kind = workload.get("kind") if isinstance(workload, dict) else None
    if isinstance(workload, dict) and not (isinstance(kind, str) and kind in _KINDS):
        _refuse_kind(f"{str(kind)[:100]!r} is unknown" if "kind" in workload else "required field is missing")
    decoder, example = _KINDS[kind or "kernel"]
    if kind == "operators" and isinstance(workload, dict):
        _refuse_unknown(workload)
    if kind == "operator_table":
        try:  # NaN, which is no JSON, is named with its row by whoever reads the column
            return msgspec.convert(raw, OperatorTableRequest)
        except (msgspec.ValidationError, OverflowError):
            pass
    refused: Request = decode(decoder, body, example=example)
    return refused


def _refuse_kind(why: str) -> NoReturn:
    message = f"{why}; known are: {', '.join(_KINDS)}"
    loc = ("workload", "kind")
    raise BadInput(f"{'.'.join(loc)}: {message}", errors=[FieldError(loc, message)])


def _refuse_unknown(workload: Mapping[str, Any]) -> None:
    """BadInput that names every unknown operator, before fields are judged by an operator that was not meant."""
    given = workload.get("operators")
    rows = enumerate(given if isinstance(given, list) else ())
    named = [(k, row.get("op")) for k, row in rows if isinstance(row, dict)]
    wrong = [(k, op) for k, op in named if not isinstance(op, str) or op not in FORMS]
    errors = [FieldError(("workload", "operators", k, "op"), unknown_op(op)) for k, op in wrong]
    if errors:
        raise BadInput(summary(errors), errors=errors[:MAX_ERRORS])


def write_response(response: Response) -> bytes:
    """As JSON."""
    return _ENCODER.encode(response)
