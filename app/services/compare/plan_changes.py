"""What would change the first choice of a served model's plan: rates, prices, and keys and values in FP8."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated

from msgspec import Struct, structs

from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.services.compare.job_plan import answer_plan, to_compare_request
from app.services.compare.request import MONTH_HOURS, resolve_candidates, to_predict_request
from app.services.compare.served_compare import as_deployed
from app.services.compare.served_plan import highest_rate_within
from app.wire.field_facts import about
from app.wire.job_plan_form import PlanRequest, ServedChoice, ServingPlanResponse
from app.wire.serving_form import ServingRequest

# Choices that are planned again with other keys and values.
_REPLANNED = 3


class PlanChanges(Struct, frozen=True):
    """What would make another choice the first one."""

    highest_rate_per_s: Annotated[float, about("Highest rate at which the first choice keeps the limits")]
    second: Annotated[str | None, about("GPU of the next choice that keeps the limits and has a price; null: none")]
    second_usd_per_hour: Annotated[float | None, about("Price of one device below which the second is the cheapest")]
    first_usd_per_hour: Annotated[float | None, about("Price of one device of the first above which the second is")]
    with_fp8_kv: Annotated[
        ServedChoice | None, about("First choice with keys and values in FP8; null: the request has their format")
    ]


def changes_of(
    snapshot: Snapshot, request: PlanRequest, answer: ServingPlanResponse, *, today: date
) -> PlanChanges | None:
    """Return what would change the answer to a request; None where nothing keeps the limits."""
    keeping = [choice for choice in answer.choices if choice.meets]
    if not keeping:
        return None
    comparison, snapshot = to_compare_request(request), snapshot.under(request.power_cap_w)
    predict_request = to_predict_request(comparison)
    assert isinstance(predict_request, ServingRequest)
    candidates = {one.spec.id: one for one in resolve_candidates(snapshot, comparison, predict_request, today)}
    first, *others = keeping
    deployed = structs.replace(predict_request, workload=as_deployed(predict_request.workload, first))
    tried = [candidates[choice.gpu].ref for choice in keeping[:_REPLANNED]]
    return PlanChanges(
        highest_rate_within(snapshot, request, deployed, candidates[first.gpu], first),
        *_prices(first, others, request.duty_cycle),
        _with_fp8_kv(snapshot, structs.replace(request, gpus=tried), today),
    )


def _prices(
    first: ServedChoice, others: Sequence[ServedChoice], duty_cycle: float | None
) -> tuple[str | None, float | None, float | None]:
    """Return the next choice with a price, and the prices of its devices and of the first's that make it the first."""
    # Idle hours of owned devices count among busy ones.
    hours = MONTH_HOURS * (1.0 if duty_cycle is None else duty_cycle)
    for second in others:
        if first.cost.monthly_usd is not None and second.cost.monthly_usd is not None:
            devices = second.devices * hours, first.devices * hours
            return second.gpu, first.cost.monthly_usd / devices[0], second.cost.monthly_usd / devices[1]
    return None, None, None


def _with_fp8_kv(snapshot: Snapshot, request: PlanRequest, today: date) -> ServedChoice | None:
    if request.kv_dtypes is not None or request.workload.get("kv_dtype") is not None:
        return None
    try:
        answer = answer_plan(snapshot, structs.replace(request, kv_dtypes=["fp8"]), max_rows=0, today=today)
    except BadInput:  # a model without keys and values in this format
        return None
    assert isinstance(answer, ServingPlanResponse)
    return answer.choices[0] if answer.best else None
