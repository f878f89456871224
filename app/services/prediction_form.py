"""POST /predict as the wire has it: milliseconds and bytes, names and units of the HTTP contract."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from app.errors import BadInput, FieldError
from app.services.decoding import decode, plain
from app.services.workloads import (
    KERNEL_EXAMPLE,
    LATER_KINDS,
    SERVED_KINDS,
    GpuRef,
    KernelWorkload,
)

MAX_GPUS = 500


class PredictRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: KernelWorkload
    gpu: GpuRef | None = None
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] | None = None
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    detail: Annotated[bool, Meta(description="Add one row per operator")] = False


class Interval(Struct, frozen=True):
    """Where the true time lies with the probability `coverage`, milliseconds."""

    low: float
    high: float
    coverage: float


class AnsweredBy(Struct, frozen=True):
    """The predictor that answered, and its version."""

    name: str
    version: str


class MemoryUse(Struct, frozen=True):
    """Distinct bytes that the workload touches, beside the device's memory."""

    required_bytes: float
    capacity_bytes: float
    fits: bool


class Share(Struct, frozen=True):
    """A group of operators and its part of the time."""

    group: str
    latency_ms: float
    share: float
    operators: int


class OperatorRow(Struct, frozen=True):
    """One operator in detail; `limit_ms` is the hardware limit, `blocks_per_sm` how many are resident at once."""

    op: str
    name: str
    latency_ms: float
    low_ms: float
    high_ms: float
    limit_ms: float
    bound: str
    flops: float
    bytes: float
    blocks_per_sm: float


class Prediction(Struct, frozen=True, omit_defaults=True):
    """The answer for one GPU; `operators` only with `detail`."""

    gpu: str
    latency_ms: float
    interval_ms: Interval
    bound: Literal["compute", "memory", "launch", "communication"]
    predictor: AnsweredBy
    support: Literal["measured", "interpolated", "extrapolated"]
    memory: MemoryUse
    breakdown: list[Share]
    warnings: list[str]
    operators: list[OperatorRow] | None = None


class Skipped(Struct, frozen=True):
    """A GPU of "all" that cannot run the workload, and why."""

    gpu: str
    reason: str


class PredictResponse(Struct, frozen=True, omit_defaults=True):
    """One entry per GPU in the order asked; `skipped` names those of "all" that cannot run the workload."""

    predictions: list[Prediction]
    skipped: list[Skipped] = []


PREDICT_EXAMPLE: dict[str, Any] = {
    "gpu": "nvidia-l4",
    "workload": KERNEL_EXAMPLE,
    "predictor": "auto",
    "coverage": 0.8,
    "detail": False,
}
_MENDS = {**PREDICT_EXAMPLE, "gpus": ["nvidia-l4"]}
_DECODER = msgspec.json.Decoder(PredictRequest)
_ENCODER = msgspec.json.Encoder()


def read_request(body: bytes) -> PredictRequest:
    """From JSON; Malformed or BadInput that names every wrong field."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        refuse_kind(plain(body), ("workload", "kind"))
        return decode(_DECODER, body, example=_MENDS)


def refuse_kind(raw: Any, loc: tuple[str, ...]) -> None:
    """BadInput if the workload is of a kind not served here, before its fields are judged by a kernel's."""
    kind = raw
    for part in loc:
        kind = kind.get(part) if isinstance(kind, dict) else None
    if isinstance(kind, str) and kind not in SERVED_KINDS:
        known = "a kind of workload that this version does not serve" if kind in LATER_KINDS else "unknown"
        message = f"{kind[:100]!r} is {known}; it serves: {', '.join(SERVED_KINDS)}"
        raise BadInput(f"{'.'.join(loc)}: {message}", errors=[FieldError(loc, message)])


def write_response(response: PredictResponse) -> bytes:
    """As JSON."""
    return _ENCODER.encode(response)
