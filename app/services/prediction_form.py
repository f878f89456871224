"""POST /predict as the wire has it: milliseconds and bytes, names and units of the HTTP contract."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.services.workloads import KERNEL_EXAMPLE, GpuRef, KernelWorkload

MAX_GPUS = 500


class Asking(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One workload on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    gpu: GpuRef | None = None
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] | None = None
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    detail: Annotated[bool, Meta(description="Add one row per operator")] = False


class PredictRequest(Asking, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A kernel on one GPU (`gpu`) or on several (`gpus`: a list, or "all" of the catalogue)."""

    workload: KernelWorkload


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


class OperatorRow(Struct, frozen=True, omit_defaults=True):
    """One operator in detail; `limit_ms` is the hardware limit.

    A kernel has its `name` and `blocks_per_sm`, how many are resident at once. A deep-learning operator has its
    `count`: its times, FLOPs and bytes are those of all repetitions together.
    """

    op: str
    latency_ms: float
    low_ms: float
    high_ms: float
    limit_ms: float
    bound: str
    flops: float
    bytes: float
    name: str | UnsetType = UNSET
    blocks_per_sm: float | UnsetType = UNSET
    group: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    count: float | UnsetType = UNSET
    support: str | UnsetType = UNSET
    predictor: str | UnsetType = UNSET


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
