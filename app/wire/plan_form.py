"""POST /plan as the wire has it: seconds for a job, milliseconds for a step, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from app.wire.compare_form import COMPARE_EXAMPLE, MOST_DEVICES, WORKLOADS, Split
from app.wire.decoding import decode
from app.wire.kernel_workload import GpuRef
from app.wire.models.requests import Samples
from app.wire.prediction_form import MAX_GPUS, AnsweredBy, Interval, MemoryUse, Skipped

Positive: TypeAlias = Annotated[float, Meta(ge=1e-12, le=1e15)]
Share: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]


class PlanRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A job, what it must meet, and the GPUs to choose from; at least one of deadline, budget and throughput.

    The job is `steps` runs of the workload (default 1; of a network with a `dataset_size` one epoch). Steps of a
    training follow one another on one set of devices; those of anything else are independent, and copies share them.
    `deadline_s` and `budget_usd` are for the whole job, `throughput_per_s` counts sequences or images of a network,
    runs of anything else, of all copies together. All goals must hold at once with `probability`. The time limit is
    what the job keeps with `limit_probability`. The other fields are those of POST /compare.
    """

    workload: Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": WORKLOADS})]
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] = "all"
    steps: Samples | None = None
    deadline_s: Positive | None = None
    budget_usd: Positive | None = None
    throughput_per_s: Positive | None = None
    probability: Share = 0.9
    limit_probability: Share = 0.95
    max_devices: Annotated[float, Meta(ge=1, le=MOST_DEVICES, multiple_of=1, extra_json_schema={"type": "integer"})] = 8
    prices: dict[str, float] = {}
    currency: Annotated[str, Meta(description="only USD: no exchange rate is known here")] = "USD"
    powers_w: dict[str, float] = {}
    predictor: Annotated[str, Meta(min_length=1, max_length=100)] = "auto"
    coverage: Annotated[float, Meta(gt=0, lt=1, description="Share of true times the interval should hold")] = 0.8
    save: Annotated[bool, Meta(description="Keep the answer: it gets an `id`, for GET /predictions/{id}")] = False


class IntervalS(Struct, frozen=True):
    """An interval in seconds, which holds the true time with probability `coverage`."""

    low: float
    high: float
    coverage: float


class Choice(Struct, frozen=True):
    """One type of GPU with the count of it that is cheapest among those that meet the goals, or else comes closest.

    `devices` are those of all `copies`, each split as `parallelism` says. `probability` is that of every goal being
    met at once; null where it hangs on an unknown price. `missing` says, goal by goal, by how much the expected time
    is too long. `time_limit_s` is what to ask a scheduler for. `cost_usd` and `energy_j` are the whole job's.
    """

    rank: int
    gpu: str
    devices: int
    copies: int
    parallelism: Split | None
    meets: bool
    probability: float | None
    job_s: float
    job_interval_s: IntervalS
    time_limit_s: float
    step_ms: float
    step_interval_ms: Interval
    throughput_per_s: float | None
    throughput_interval_per_s: Interval | None
    cost_usd: float | None
    cost_interval_usd: Interval | None
    energy_j: float | None
    energy_interval_j: Interval | None
    power_source: str | None
    price_usd_per_hour: float | None
    price_source: str | None
    memory: MemoryUse
    predictor: AnsweredBy
    missing: list[str]
    warnings: list[str]


class Faster(Struct, frozen=True):
    """The probability that the job takes less time on one choice than on others, by their GPUs."""

    gpu: str
    than: dict[str, float]


class Sensitivity(Struct, frozen=True):
    """What `factor` times as much of one figure of the first choice's GPU would do to a step and to what fits.

    `change` (-0.05: 5 % less time) is what the physics says: corrections learned of the GPU as it is stay as they are.
    """

    gpu: str
    field: str
    factor: float
    step_ms: float
    change: float
    fits: bool
    largest_batch: int | None


class PlanResponse(Struct, frozen=True):
    """Choices in their order: those that meet the goals, cheapest first; then those that come closest.

    `best` is the first that meets them all, null where none does. `faster` compares the first few.
    """

    steps: float
    best: str | None
    choices: list[Choice]
    faster: list[Faster]
    sensitivities: list[Sensitivity]
    skipped: list[Skipped]
    notes: list[str]
    id: int | UnsetType = UNSET


PLAN_EXAMPLE: dict[str, Any] = {
    "workload": COMPARE_EXAMPLE["workload"],
    "gpus": ["nvidia-l4", "a100-sxm4-80gb", "h100-sxm5-80gb"],
    "steps": 10000,
    "deadline_s": 3600.0,
    "budget_usd": 20.0,
    "probability": 0.9,
    "max_devices": 8,
    "prices": {"nvidia-l4": 0.8, "a100-sxm4-80gb": 1.5, "h100-sxm5-80gb": 3.0},
}

_DECODER = msgspec.json.Decoder(PlanRequest)


def read_plan(body: bytes) -> PlanRequest:
    """From JSON; Malformed or BadInput that names every wrong field."""
    return decode(_DECODER, body, example=PLAN_EXAMPLE)
