"""JSON structs of POST /plan: seconds for a job, milliseconds for a step, US dollars, joules."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from app.wire.compare_form import COMPARE_EXAMPLE, MOST_DEVICES, WORKLOADS, Split
from app.wire.decoding import decode
from app.wire.kernel_workload import GpuRef
from app.wire.network_form import KvDtype, NetworkDtype, Samples
from app.wire.prediction_form import MAX_GPUS, AnsweredBy, Interval, MemoryUse, Skipped

Positive: TypeAlias = Annotated[float, Meta(ge=1e-12, le=1e15)]
# Number formats to choose among: every pair of them is a search of its own.
MOST_FORMATS = 4
Share: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]


class PlanRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A job, its goals, and the GPUs to choose from. A job has at least one of deadline, budget and throughput.

    The job is `steps` runs of the workload (default 1; one epoch of a network with a `dataset_size`). Training steps
    run one after another on one set of devices; all other steps are independent, and copies share them. `deadline_s`
    and `budget_usd` are for the whole job; `throughput_per_s` counts sequences or images of a network, runs of anything
    else, over all copies. All goals must hold together with `probability`. The time limit holds with
    `limit_probability`. The other fields are those of POST /compare.

    A served model (kind serving, with a load `rate_per_s`) has limits on times of its requests instead: `ttft_ms`,
    `tpot_ms` and `e2e_ms`, which `percentile` of the requests must keep. `max_devices` then is of one engine; there are
    as many engines as the rate needs, and their token budget and most sequences are chosen where the workload leaves
    them out. `dtypes` and `kv_dtypes` are number formats of the weights and of keys and values to choose among, in
    place of the workload's. Splits of the model x pairs of formats x GPUs over 20,000 are refused (413): send fewer
    gpus, dtypes or kv_dtypes, or less max_devices.
    """

    workload: Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": WORKLOADS})]
    gpus: Annotated[list[GpuRef], Meta(min_length=1, max_length=MAX_GPUS)] | Literal["all"] = "all"
    steps: Samples | None = None
    deadline_s: Positive | None = None
    budget_usd: Positive | None = None
    throughput_per_s: Positive | None = None
    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    e2e_ms: Positive | None = None
    percentile: Annotated[float, Meta(ge=1, le=99.9)] = 90
    dtypes: Annotated[list[NetworkDtype], Meta(min_length=1, max_length=MOST_FORMATS)] | None = None
    kv_dtypes: Annotated[list[KvDtype], Meta(min_length=1, max_length=MOST_FORMATS)] | None = None
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
    """An interval in seconds that holds the true time with probability `coverage`."""

    low: float
    high: float
    coverage: float


class Choice(Struct, frozen=True):
    """One GPU type with the count that is cheapest among those that meet the goals, or else comes closest.

    `devices` counts all `copies`, each split as in `parallelism`. `probability` is that of meeting all goals together;
    null if it depends on an unknown price. `missing` lists, per goal, by how much the expected time is too long.
    `time_limit_s` is the limit to request from a scheduler. `cost_usd` and `energy_j` are for the whole job.
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
    """The probability that the job takes less time on one choice than on each of the others, by GPU."""

    gpu: str
    than: dict[str, float]


class Sensitivity(Struct, frozen=True):
    """Effect of `factor` times as much of one figure of the first choice's GPU on a step and on what fits.

    `change` (-0.05: 5 % less time) comes from the physics alone; corrections learned for the actual GPU are not
    changed.
    """

    gpu: str
    field: str
    factor: float
    step_ms: float
    change: float
    fits: bool
    largest_batch: int | None


class PlanResponse(Struct, frozen=True):
    """Choices in order: those that meet the goals, cheapest first; then those that come closest.

    `best` is the first that meets all goals, or null. `faster` compares the first few.
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
    """Return the request from JSON. Raises Malformed, or BadInput that names every wrong field."""
    return decode(_DECODER, body, example=PLAN_EXAMPLE)
