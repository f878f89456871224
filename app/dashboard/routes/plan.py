"""GET /plan: which GPUs to rent for a served model: the answer of POST /plan, and what would change it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from app.api.deps import HolderDep, SettingsDep, as_json
from app.config import SEED_DATA
from app.dashboard.address import EVERY_S, RENTABLE, Address, Pairs, plan_body
from app.dashboard.charts.answers import served_plan_chart, workload_title
from app.dashboard.choices import controls
from app.dashboard.forms import SPLIT, USERS
from app.dashboard.routes.serving import limit_lines, limits_of, model_pairs, serving_address
from app.dashboard.routes.shell import as_picture, command, or_else, page, refused, wants_answer, wants_json, wants_svg
from app.engine.prices import ON_DEMAND, today_utc
from app.engine.snapshot import Snapshot
from app.errors import BadInput, GpucastError
from app.services.compare.job_plan import answer_plan
from app.services.compare.plan_changes import PlanChanges, changes_of
from app.services.compare.request import read_plan
from app.services.compare.served_compare import PERCENTILES
from app.wire.job_plan_form import ServingPlanResponse

# GPUs of the first view where only list prices are known.
_GPUS = ("b200", "h200-sxm-141gb", "h100-sxm5-80gb", "amd-instinct-mi300x")
PRESETS: Mapping[str, Mapping[str, Any]] = json.loads((SEED_DATA / "serving_presets.json").read_text("utf-8"))[
    "presets"
]


class PlanView(Struct, frozen=True):
    """The answer of POST /plan, and what would change its first choice."""

    plan: ServingPlanResponse
    changes: PlanChanges | None


def plan_address(query: Sequence[tuple[str, str]], gpus: tuple[str, ...]) -> Address:
    """Return the address of the page, without what a plan searches: a split, and requests in flight."""
    dropped = {*SPLIT, *(("load", "level") if ("load", "concurrency") in query else ())}
    return serving_address([(name, value) for name, value in query if name not in dropped], gpus)


def rentable(snapshot: Snapshot, address: Address) -> tuple[str, ...]:
    """Return one's own GPUs and those with a price that is typed or stored; where there is none, those of the list.

    Raises BadInput if there are none.
    """
    today, book, term = today_utc(), snapshot.engine.prices, address.common.get("price_term", ON_DEMAND)
    offered = {gpu: price for gpu in book.rows if (price := book.find(gpu, today, term))}
    own = [*address.owned, *address.figures("prices"), *(gpu for gpu, price in offered.items() if not price.shipped)]
    catalog = snapshot.engine.catalog
    gpus = tuple(dict.fromkeys(spec.id if (spec := catalog.find(name)) else name for name in own or offered))
    if not gpus:
        raise BadInput.at(("prices",), "no price is known: put in what you pay, or choose GPUs")
    return gpus


def presets_of(address: Address) -> list[tuple[str, Pairs, bool]]:
    """Return the name of each preset, the query string with its figures, and whether the address has them."""
    listed = []
    for name, figures in PRESETS.items():
        filled = {field: str(figure) for field, figure in figures.items()}
        kept = [(field, value) for field, value in address.pairs if field not in filled]
        given = [(field, value) for field, value in filled.items() if value]
        listed.append((name, [*kept, *given], all(address.text_of(field) == value for field, value in filled.items())))
    return listed


router = APIRouter(include_in_schema=False)


@router.get("/plan")
def show(request: Request, holder: HolderDep, settings: SettingsDep) -> Response:
    """The plan of POST /plan for a served model; an example if the address has no model."""
    snapshot = holder.snapshot
    address = plan_address(
        request.query_params.multi_items(), (RENTABLE,) if snapshot.engine.prices.own.rows else _GPUS
    )
    form = controls(holder.engine, address)
    shown: dict[str, Any] = {
        "form": form,
        "pairs": address.pairs,
        "percentiles": PERCENTILES,
        "presets": presets_of(address),
        "split": SPLIT,
        "users": USERS,
        "every_s": EVERY_S,
        "rentable": RENTABLE,
    }
    try:
        limits = limits_of(address)
        chosen = replace(address, gpus=rentable(snapshot, address)) if RENTABLE in address.gpus else address
        shown |= {"served": chosen.pairs, "elsewhere": model_pairs(chosen)}
        body = plan_body(chosen)
        plan_request = read_plan(msgspec.json.encode(body))
        today = today_utc()
        plan = answer_plan(snapshot, plan_request, max_rows=settings.max_batch_rows, today=today)
        assert isinstance(plan, ServingPlanResponse)
        if wants_svg(request):
            return as_picture(served_plan_chart(plan, workload_title(body["workload"])))
        if wants_json(request):
            return as_json(PlanView(plan, changes_of(snapshot, plan_request, plan, today=today)))
    except GpucastError as error:
        if wants_answer(request):
            raise
        return refused(request, "plan.html", address, error, **shown)
    return page(
        request,
        "plan.html",
        answer=plan,
        first=plan.choices[0],
        later=lambda: or_else(lambda: changes_of(snapshot, plan_request, plan, today=today), None),
        probability=plan_request.probability,
        limits=limits,
        limited=[name for name in ("ttft_ms", "tpot_ms", "e2e_ms") if getattr(limits, name) is not None],
        limit_lines=limit_lines(limits)["speeds"],
        question=command(request, "/plan", body),
        **shown,
    )
