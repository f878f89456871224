"""POST /plan: the cheapest type and count of GPU that meets a deadline, a budget or a throughput, and how surely.

Every goal is the most time that a step may take: the probability of all at once is that of the shortest of these. The
error of a prediction is the same in every step, so that a job is as unsure, in proportion, as one of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from math import ceil, inf

import numpy as np
from msgspec import convert, structs

from app.engine.gpu_rows import Snapshot
from app.engine.power import power_notes
from app.errors import BadInput, FieldError
from app.services.compare.compare import Comparing
from app.services.compare.likelihood import Figures, probability_less
from app.services.compare.odds import kept_with, probability_within
from app.services.compare.sensitivity import sensitivities
from app.services.compare.splits import devices_of
from app.services.graphs.stored import Graphs
from app.wire.compare_form import Compared, CompareRequest
from app.wire.job_plan_form import Choice, Faster, IntervalS, PlanRequest, PlanResponse
from app.wire.network_form import NetworkWorkload
from app.wire.prediction_form import Interval

_HOUR_S = 3600.0
# How many choices are compared pair by pair.
_COMPARED = 8
_SHARED = ("workload", "gpus", "max_devices", "prices", "currency", "powers_w", "predictor", "coverage")
_UNPRICED = "no price is known, so the budget cannot be checked: send one in prices, or import a table"
_TRAINING = "training takes its steps one after another: more devices come from splitting a step, not from copies"


def plan(
    snapshot: Snapshot,
    request: PlanRequest,
    *,
    max_rows: int,
    graphs: Graphs | None = None,
    today: date | None = None,
) -> PlanResponse:
    """Answer a request, as `compare` does; NotFound, BadInput, TooLarge or NotTrained say what to send instead."""
    if request.deadline_s is request.budget_usd is request.throughput_per_s is None:
        words = "send deadline_s, budget_usd or throughput_per_s: what the job must meet"
        raise BadInput(f"{words}.", errors=[FieldError(("deadline_s",), words)])
    shared = {name: getattr(request, name) for name in _SHARED}
    asked = convert(shared | {"search_parallelism": True}, CompareRequest)
    comparing = Comparing.of(snapshot, asked, max_rows=max_rows, graphs=graphs, today=today)
    _check_devices(request, comparing.asked.workload)
    found = comparing.predicted(comparing.asked)
    first = {one.gpu: comparing.row(one) for one in found.predictions}
    goals = _goals(request, comparing.asked.workload)
    best: dict[str, Choice] = {}
    for way in [*first.values(), *comparing.searched(first)]:
        for choice in _counts(way, goals):
            if way.gpu not in best or _order(choice) < _order(best[way.gpu]):
                best[way.gpu] = choice
    choices = [structs.replace(one, rank=k + 1) for k, one in enumerate(sorted(best.values(), key=_order))]
    return PlanResponse(
        steps=goals.steps,
        best=choices[0].gpu if choices and choices[0].meets else None,
        choices=choices,
        faster=_faster(choices[:_COMPARED]),
        sensitivities=sensitivities(comparing, choices[0]) if choices else [],
        skipped=found.skipped,
        notes=[*([_TRAINING] if goals.in_turn else []), *power_notes(one.power_source for one in choices)],
    )


def _check_devices(request: PlanRequest, workload: object) -> None:
    """BadInput where the workload is split over more devices than there may be."""
    if isinstance(workload, NetworkWorkload) and (given := devices_of(workload.parallelism)) > request.max_devices:
        words = f"the workload's parallelism takes {given} devices: send at least as many, got {request.max_devices:g}"
        raise BadInput(f"max_devices: {words}.", errors=[FieldError(("max_devices",), words)])


@dataclass(frozen=True, slots=True)
class _Goals:
    """What a job must meet, and how its steps may be shared."""

    request: PlanRequest
    steps: float
    in_turn: bool

    def allowed_ms(self, way: Compared, copies: int) -> dict[str, float | None]:
        """Per goal the most that a step may take; None where that is not known."""
        request, in_turn = self.request, ceil(self.steps / copies)
        allowed: dict[str, float | None] = {}
        if request.deadline_s is not None:
            allowed["deadline_s"] = request.deadline_s / in_turn * 1e3
        if request.budget_usd is not None:
            per_s = None if way.price_usd_per_hour is None else way.devices * copies * way.price_usd_per_hour / _HOUR_S
            dollars = request.budget_usd / in_turn * 1e3
            allowed["budget_usd"] = None if per_s is None else (dollars / per_s if per_s else inf)
        if request.throughput_per_s is not None:
            per_s = (way.throughput_per_s or inf) * copies
            allowed["throughput_per_s"] = way.latency_ms * per_s / request.throughput_per_s
        return allowed


def _goals(request: PlanRequest, workload: object) -> _Goals:
    network = workload if isinstance(workload, NetworkWorkload) else None
    steps = request.steps or 1.0
    if request.steps is None and network is not None and network.dataset_size is not None:
        steps = float(ceil(network.dataset_size / network.batch))
    in_turn = network is not None and network.mode == "training"
    return _Goals(request, steps, in_turn)


def _counts(way: Compared, goals: _Goals) -> Iterator[Choice]:
    """The way on as many copies as there may be: one, and up to the fewest that meet the goals."""
    most = 1 if goals.in_turn else int(min(max(goals.request.max_devices // way.devices, 1), goals.steps))
    for copies in range(1, most + 1):
        choice = _choice(way, copies, goals)
        yield choice
        if choice.meets:
            return


def _choice(way: Compared, copies: int, goals: _Goals) -> Choice:
    allowed = goals.allowed_ms(way, copies)
    known = [ms for ms in allowed.values() if ms is not None]
    sure = probability_within(way.latency_ms, way.interval_ms, min(known, default=inf))
    unpriced = len(known) < len(allowed)
    meets = not unpriced and way.memory.fits and sure >= goals.request.probability
    in_turn = ceil(goals.steps / copies)
    limit_ms = kept_with(way.latency_ms, way.interval_ms, goals.request.limit_probability)
    seconds, devices = in_turn / 1e3, way.devices * copies
    dollars = None if way.price_usd_per_hour is None else devices * way.price_usd_per_hour / _HOUR_S
    return Choice(
        rank=0,
        gpu=way.gpu,
        devices=devices,
        copies=copies,
        parallelism=way.parallelism,
        meets=meets,
        probability=None if unpriced else sure,
        job_s=seconds * way.latency_ms,
        job_interval_s=_seconds(way.interval_ms, seconds),
        time_limit_s=seconds * limit_ms,
        step_ms=way.latency_ms,
        step_interval_ms=way.interval_ms,
        throughput_per_s=None if way.throughput_per_s is None else way.throughput_per_s * copies,
        throughput_interval_per_s=_scaled(way.throughput_interval_per_s, copies),
        cost_usd=None if dollars is None else seconds * way.latency_ms * dollars,
        cost_interval_usd=None if dollars is None else _scaled(way.interval_ms, seconds * dollars),
        energy_j=None if way.energy_j is None else way.energy_j * in_turn * copies,
        energy_interval_j=_scaled(way.energy_interval_j, in_turn * copies),
        power_source=way.power_source,
        price_usd_per_hour=way.price_usd_per_hour,
        price_source=way.price_source,
        memory=way.memory,
        predictor=way.predictor,
        missing=[] if meets else _missing(way, allowed),
        warnings=way.warnings,
    )


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    return None if interval is None else Interval(interval.low * factor, interval.high * factor, interval.coverage)


def _seconds(interval: Interval, factor: float) -> IntervalS:
    return IntervalS(interval.low * factor, interval.high * factor, interval.coverage)


def _missing(way: Compared, allowed_ms: dict[str, float | None]) -> list[str]:
    """What stands in the way, in words."""
    room, words = way.memory, []
    if not room.fits:
        words.append(f"memory: {room.required_bytes:.4g} bytes are needed, a device has {room.capacity_bytes:.4g}")
    for goal, most in allowed_ms.items():
        if most is None:
            words.append(f"{goal}: {_UNPRICED}")
        elif way.latency_ms > most:
            words.append(f"{goal}: the job takes {way.latency_ms / most:.3g} times too long")
        else:
            sure = probability_within(way.latency_ms, way.interval_ms, most)
            words.append(f"{goal}: met with a probability of {sure:.2g}")
    return words


def _order(choice: Choice) -> tuple[bool, bool, float, float, str]:
    """Those that meet the goals, the cheapest (else the fewest device-seconds) first; then the likeliest ones."""
    spent = choice.cost_usd if choice.cost_usd is not None else choice.job_s * choice.devices
    if choice.meets:
        return False, choice.cost_usd is None, spent, choice.job_s, choice.gpu
    likely = -1.0 if choice.probability is None else choice.probability
    return True, not choice.memory.fits, -likely, spent, choice.gpu


def _faster(choices: list[Choice]) -> list[Faster]:
    if not choices:
        return []
    ends = [(one.job_s, one.job_interval_s.low, one.job_interval_s.high) for one in choices]
    middle, low, high = np.array(ends).T
    likely = probability_less(Figures(middle, low, high, choices[0].job_interval_s.coverage))
    return [
        Faster(a.gpu, {b.gpu: float(likely[i, j]) for j, b in enumerate(choices) if j != i})
        for i, a in enumerate(choices)
    ]
