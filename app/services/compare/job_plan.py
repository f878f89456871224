"""Plan a job (POST /plan): the cheapest GPU type and count that meet a deadline, budget or throughput.

Every goal is a limit on the step time, so the probability of meeting all of them is that of the lowest limit. The
prediction error is the same in every step, so a job has the same relative uncertainty as one step. Sensitivities are
predictions for the best GPU with a field of its data sheet changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from math import ceil, inf
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType, convert, structs

from app.bands.band import Band, probability_less, probability_within, quantile
from app.engine.engine import untrained
from app.engine.power import power_notes
from app.engine.prices import today_utc
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError
from app.services.compare.compare import Comparison, device_count
from app.services.compare.request import errors_in_common, to_predict_request, to_single_request
from app.services.compare.served_plan import SERVED_GOALS, plan_served, refuse_given
from app.services.compare.units import unfit
from app.services.graphs.graph_store import Graphs
from app.services.models.network_answers import goodput
from app.tables.complete import revise, spec_to_dict
from app.tables.gpus import GpuSpec
from app.wire.compare_form import Compared, CompareRequest
from app.wire.graph_form import NetworkWorkload
from app.wire.job_plan_form import (
    Faster,
    IntervalS,
    JobChoice,
    PlanRequest,
    PlanResponse,
    Sensitivity,
    ServingPlanResponse,
)
from app.wire.network_form import FailuresIn
from app.wire.prediction_form import Interval, Prediction
from app.wire.serving_form import ServingRequest

_HOUR_S = 3600.0
# Number of choices that are compared pairwise.
_COMPARED = 8
_SHARED = (
    "workload",
    "gpus",
    "max_devices",
    "duty_cycle",
    "prices",
    "price_term",
    "owned",
    "usd_per_kwh",
    "currency",
    "powers_w",
    "predictor",
    "coverage",
    "strict_names",
    "power_cap_w",
)
_UNPRICED = "no price is known, so the budget cannot be checked: send one in prices, or import a price table"
_TRAINING = "training steps run one after another: more devices help by splitting a step, not by copies"


def answer_plan(
    snapshot: Snapshot,
    request: PlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> PlanResponse | ServingPlanResponse:
    """Return the ranked choices. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    snapshot = snapshot.under(request.power_cap_w)
    if request.workload.get("kind") == "serving":
        comparison = to_compare_request(request)
        predict_request = to_predict_request(comparison)
        assert isinstance(predict_request, ServingRequest)
        return plan_served(snapshot, request, comparison, predict_request, today=today or today_utc())
    return choose_gpus(snapshot, request, max_rows=max_rows, graphs=graphs, today=today)


def choose_gpus(
    snapshot: Snapshot,
    request: PlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> PlanResponse:
    """Return the ranked choices. Raises NotFound, BadInput, TooLarge or NotTrained with what to send instead."""
    compare_request = to_compare_request(request)
    predict_request = to_single_request(compare_request)
    if request.deadline_s is request.budget_usd is request.throughput_per_s is None:
        message = "send deadline_s, budget_usd or throughput_per_s, a goal of the job"
        raise BadInput(f"{message}.", errors=[FieldError(("deadline_s",), message)])
    refuse_given(request, ("dtypes", "kv_dtypes"), "is of served models: set dtype of the workload")
    refuse_given(request, SERVED_GOALS, "is a limit of served models: send a workload of kind serving")
    comparison = Comparison.of(
        snapshot, compare_request, predict_request, max_rows=max_rows, graphs=graphs, today=today
    )
    _check_devices(request, comparison.predict_request.workload)
    answer = comparison.predict(comparison.predict_request)
    first = {prediction.gpu: comparison.row(prediction) for prediction in answer.predictions}
    goals = _goals(request, comparison.predict_request.workload)
    best: dict[str, JobChoice] = {}
    for option in [*first.values(), *comparison.search_splits(first)]:
        for choice in _copies(option, goals):
            if option.gpu not in best or _order(choice) < _order(best[option.gpu]):
                best[option.gpu] = choice
    choices = [structs.replace(choice, rank=k + 1) for k, choice in enumerate(sorted(best.values(), key=_order))]
    return PlanResponse(
        steps=goals.steps,
        best=choices[0].gpu if choices and choices[0].meets else None,
        choices=choices,
        faster=_pairwise(choices[:_COMPARED], errors_in_common(snapshot, comparison.predict_request.workload, graphs)),
        sensitivities=sensitivities(comparison, choices[0]) if choices else [],
        skipped=answer.skipped,
        notes=[*([_TRAINING] if goals.sequential else []), *power_notes(choice.power_source for choice in choices)],
    )


def to_compare_request(request: PlanRequest) -> CompareRequest:
    """Return the comparison of all splits that a plan chooses from."""
    shared = {name: getattr(request, name) for name in _SHARED}
    return convert(shared | {"search_parallelism": True}, CompareRequest)


def _check_devices(request: PlanRequest, workload: object) -> None:
    """Raise BadInput if the workload's split needs more devices than allowed."""
    if isinstance(workload, NetworkWorkload) and (count := device_count(workload.parallelism)) > request.max_devices:
        message = f"the workload's parallelism takes {count} devices, more than {request.max_devices:g}"
        raise BadInput.at(("max_devices",), message, end=".")


@dataclass(frozen=True, slots=True)
class _Goals:
    """Goals of a job, and its steps; `sequential` if they must run one after another, among `failures` of devices."""

    request: PlanRequest
    steps: float
    sequential: bool
    failures: FailuresIn | None = None

    def rounds(self, option: Compared, copies: int) -> float:
        """Return how many steps' times the job takes: its steps, and what failures of the devices cost."""
        among = goodput(self.failures, option.devices * copies, UNSET)
        return ceil(self.steps / copies) * (1.0 if isinstance(among, UnsetType) else among.expected_over_ideal)

    def allowed_ms(self, option: Compared, copies: int) -> dict[str, float | None]:
        """Return, per goal, the longest step that meets it, ms; None if unknown."""
        request, rounds = self.request, self.rounds(option, copies)
        allowed: dict[str, float | None] = {}
        if request.deadline_s is not None:
            allowed["deadline_s"] = request.deadline_s / rounds * 1e3
        if request.budget_usd is not None:
            per_s = (
                None
                if option.price_usd_per_hour is None
                else option.devices * copies * option.price_usd_per_hour / _HOUR_S
            )
            dollars = request.budget_usd / rounds * 1e3
            allowed["budget_usd"] = None if per_s is None else (dollars / per_s if per_s else inf)
        if request.throughput_per_s is not None:
            per_s = (option.throughput_per_s or inf) * copies
            allowed["throughput_per_s"] = option.latency_ms * per_s / request.throughput_per_s
        return allowed


def _goals(request: PlanRequest, workload: object) -> _Goals:
    network = workload if isinstance(workload, NetworkWorkload) else None
    steps = request.steps or 1.0
    if request.steps is None and network is not None and network.dataset_size is not None:
        steps = float(ceil(network.dataset_size / network.batch))
    sequential = network is not None and network.mode == "training"
    return _Goals(request, steps, sequential, None if network is None else network.failures)


def _copies(option: Compared, goals: _Goals) -> Iterator[JobChoice]:
    """Yield the option with 1 copy, 2 copies, ... up to the fewest that meet the goals."""
    most = 1 if goals.sequential else int(min(max(goals.request.max_devices // option.devices, 1), goals.steps))
    for copies in range(1, most + 1):
        choice = _choice(option, copies, goals)
        yield choice
        if choice.meets:
            return


def _choice(option: Compared, copies: int, goals: _Goals) -> JobChoice:
    allowed = goals.allowed_ms(option, copies)
    known = [ms for ms in allowed.values() if ms is not None]
    band = option.interval_ms.band(option.latency_ms)
    probability = probability_within(option.latency_ms, band, min(known, default=inf))
    unpriced = len(known) < len(allowed)
    meets = not unpriced and option.memory.fits and probability >= goals.request.probability
    rounds = goals.rounds(option, copies)
    limit_ms = quantile(option.latency_ms, band, goals.request.limit_probability)
    seconds, devices = rounds / 1e3, option.devices * copies
    dollars = None if option.price_usd_per_hour is None else devices * option.price_usd_per_hour / _HOUR_S
    return JobChoice(
        rank=0,
        gpu=option.gpu,
        devices=devices,
        copies=copies,
        parallelism=option.parallelism,
        meets=meets,
        probability=None if unpriced else probability,
        job_s=seconds * option.latency_ms,
        job_interval_s=_seconds(option.interval_ms, seconds),
        time_limit_s=seconds * limit_ms,
        step_ms=option.latency_ms,
        step_interval_ms=option.interval_ms,
        throughput_per_s=None if option.throughput_per_s is None else option.throughput_per_s * copies,
        throughput_interval_per_s=_scaled(option.throughput_interval_per_s, copies),
        cost_usd=None if dollars is None else seconds * option.latency_ms * dollars,
        cost_interval_usd=_scaled(option.cost_interval_usd, rounds * copies),
        energy_j=None if option.energy_j is None else option.energy_j * rounds * copies,
        energy_interval_j=_scaled(option.energy_interval_j, rounds * copies),
        power_source=option.power_source,
        price_usd_per_hour=option.price_usd_per_hour,
        price_source=option.price_source,
        memory=option.memory,
        predictor=option.predictor,
        missing=[] if meets else _missing(option, allowed),
        warnings=option.warnings,
        warning_codes=option.warning_codes,
    )


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else interval.scaled(factor)


def _seconds(interval: Interval, factor: float) -> IntervalS:
    return IntervalS(interval.low * factor, interval.high * factor, interval.coverage)


def _missing(option: Compared, allowed_ms: dict[str, float | None]) -> list[str]:
    shortage = unfit(option.memory)
    messages = [f"memory: {option.devices} x {option.gpu} {shortage} each"] if shortage else []
    for goal, most in allowed_ms.items():
        if most is None:
            messages.append(f"{goal}: {_UNPRICED}")
        elif option.latency_ms > most:
            messages.append(f"{goal}: the job takes {option.latency_ms / most:.3g} times too long")
        else:
            band = option.interval_ms.band(option.latency_ms)
            probability = probability_within(option.latency_ms, band, most)
            messages.append(f"{goal}: met with a probability of {probability:.2g}")
    return messages


def _order(choice: JobChoice) -> tuple[bool, bool, float, float, str]:
    """Sort key: choices that meet the goals by cost (else device-seconds), then the others by probability."""
    spent = choice.cost_usd if choice.cost_usd is not None else choice.job_s * choice.devices
    if choice.meets:
        return False, choice.cost_usd is None, spent, choice.job_s, choice.gpu
    likely = -1.0 if choice.probability is None else choice.probability
    return True, not choice.memory.fits, -likely, spent, choice.gpu


def _pairwise(choices: list[JobChoice], common: float) -> list[Faster]:
    if not choices:
        return []
    ends = [(choice.job_s, choice.job_interval_s.low, choice.job_interval_s.high) for choice in choices]
    middle, low, high = np.array(ends).T
    likely = probability_less(middle, Band.of(middle, low, high, choices[0].job_interval_s.coverage), common)
    return [
        Faster(a.gpu, {b.gpu: float(likely[i, j]) for j, b in enumerate(choices) if j != i})
        for i, a in enumerate(choices)
    ]


FACTOR = 1.1
# Fields of a GPU, and measured rates that scale with each.
FIELDS: dict[str, tuple[str, ...]] = {
    "memory_bandwidth_bytes_per_s": ("triad_bandwidth_bytes_per_s", "sustained_bandwidth_bytes_per_s"),
    "boost_clock_hz": ("base_clock_hz", "sustained_compute_flops"),
    "memory_bytes": (),
    "l2_bytes": (),
    "board_power_w": (),
    "link_bandwidth_bytes_per_s": (),
}


def sensitivities(comparison: Comparison, choice: JobChoice) -> list[Sensitivity]:
    """Return a step on the choice's GPU with more of each figure in its specification, with the same split."""
    spec = comparison.candidates[choice.gpu].spec
    fields = [name for name in FIELDS if getattr(spec, name) is not None]
    # The unchanged GPU gets another name too: measurements of the actual GPU do not apply to a changed one.
    specs = [
        _modified_spec(spec, "as-is", {}),
        *(_modified_spec(spec, name, dict(_scaled_fields(spec, name))) for name in fields),
    ]
    request = comparison.predict_request
    workload: Any = request.workload
    if isinstance(workload, NetworkWorkload) and choice.parallelism is not None:
        parallelism = structs.replace(workload.parallelism, **structs.asdict(choice.parallelism))
        workload = structs.replace(workload, parallelism=parallelism)
    physics = replace(comparison, snapshot=_physics_only(comparison.snapshot))
    predictions = physics.predict(structs.replace(request, workload=workload, gpus=specs)).predictions
    return [
        _sensitivity(choice, name, predictions[0], prediction)
        for name, prediction in zip(fields, predictions[1:], strict=True)
    ]


def _physics_only(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with untrained predictors, where they can answer untrained."""
    engine = snapshot.engine
    return Snapshot.of(replace(engine, served={**engine.served, **untrained()}))


def _scaled_fields(spec: GpuSpec, name: str) -> Iterator[tuple[str, float]]:
    for field in (name, *FIELDS[name]):
        figure = getattr(spec, field)
        if figure is not None:
            yield field, figure * FACTOR


def _modified_spec(spec: GpuSpec, suffix: str, changes: dict[str, float]) -> dict[str, Any]:
    """Return the GPU with changes, as an inline specification."""
    changed = spec_to_dict(revise(spec, changes))
    return changed | {"id": f"{spec.id}-{suffix}".replace("_", "-"), "name": f"{spec.name}, {suffix}", "aliases": []}


def _sensitivity(choice: JobChoice, field: str, before: Prediction, after: Prediction) -> Sensitivity:
    ratio = after.latency_ms / before.latency_ms if before.latency_ms > 0 else 1.0
    batch = None if after.largest_batch is UNSET else after.largest_batch
    return Sensitivity(choice.gpu, field, FACTOR, choice.step_ms * ratio, ratio - 1.0, after.memory.fits, batch)
