"""A workload on the GPUs of a cluster, of which some may be unable to run it; and a job of many steps on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec

from app.bands.log_normal import probability_within, quantile
from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.services.compare.request import read_compare
from app.wire.compare_form import Compared, CompareRequest, CompareResponse

Compare = Callable[[Snapshot, CompareRequest], CompareResponse]


def compare_each(
    snapshot: Snapshot, compare: Compare, fields: Mapping[str, Any], gpus: Sequence[str]
) -> tuple[dict[str, Compared], dict[str, str]]:
    """Return the figures by GPU, and why the other GPUs cannot run the workload. Raises BadInput if none can.

    `fields` are those of POST /compare. The workload states its split over devices: no others are searched.
    """

    def rows(names: Sequence[str]) -> list[Compared]:
        body = msgspec.json.encode({**fields, "gpus": names, "max_devices": 1})
        return compare(snapshot, read_compare(body)).ranking

    try:
        return {row.gpu: row for row in rows(gpus)}, {}
    except BadInput:
        if len(gpus) == 1:
            raise
    found: dict[str, Compared] = {}
    reasons: dict[str, str] = {}
    first: BadInput | None = None
    for gpu in gpus:  # a GPU without the workload's dtype must not affect the others
        try:
            found |= {row.gpu: row for row in rows([gpu])}
        except BadInput as error:
            reasons[gpu], first = error.detail, first or error
    if not found and first is not None:
        raise first
    return found, reasons


@dataclass(frozen=True, slots=True)
class Job:
    """Runs of a workload, and the goal: `deadline_s`, to be kept with `probability`."""

    steps: float
    deadline_s: float = inf
    probability: float = 0.9


@dataclass(frozen=True, slots=True)
class JobTime:
    """Seconds of a job on one GPU type, and its cost; `missing` says why it misses the goal, empty if it does not.

    The time is `low_s` to `high_s` with the comparison's coverage; `limit_s` is kept with 95 %.
    """

    gpu: str
    devices: int
    job_s: float
    low_s: float
    high_s: float
    limit_s: float
    cost_usd: float | None
    missing: str

    @classmethod
    def of(cls, row: Compared, job: Job) -> JobTime:
        """Return the job's time from the figures of one step: the error of a prediction is the same in every step."""
        steps_s, interval = job.steps / 1e3, row.interval_ms
        limit_s = steps_s * quantile(row.latency_ms, interval.band(row.latency_ms), 0.95)
        cost = None if row.cost_usd is None else job.steps * row.cost_usd
        seconds = (steps_s * row.latency_ms, steps_s * interval.low, steps_s * interval.high)
        return cls(row.gpu, row.devices, *seconds, limit_s, cost, _missing(row, job))


def unfit(row: Compared) -> str:
    """Return why a workload does not fit a device; empty if it does."""
    if row.memory.fits:
        return ""
    needed, has = (size / 2**30 for size in (row.memory.required_bytes, row.memory.capacity_bytes))
    return f"needs {needed:.3g} GiB of memory, has {has:.3g}"


def _missing(row: Compared, job: Job) -> str:
    if reason := unfit(row):
        return reason
    allowed_ms = job.deadline_s / job.steps * 1e3
    likely = probability_within(row.latency_ms, row.interval_ms.band(row.latency_ms), allowed_ms)
    if likely >= job.probability:
        return ""
    takes = job.steps * row.latency_ms / 1e3
    return f"takes {takes:.4g} s, within {job.deadline_s:.4g} s with a probability of only {likely:.2g}"
