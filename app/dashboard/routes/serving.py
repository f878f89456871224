"""GET /serving: an LLM behind a serving engine: POST /compare under the load, and the curves around it.

Where no split is typed, the deployments under a rate are those that POST /plan finds for the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Struct, structs
from starlette.responses import Response

from app.api.deps import DatabaseDep, HolderDep, SettingsDep, as_json
from app.dashboard.address import Address, compare_body, plan_body
from app.dashboard.charts.answers import (
    served_curves_chart,
    served_plan_chart,
    served_ranking_chart,
    workload_title,
)
from app.dashboard.charts.drawing import Drawing
from app.dashboard.charts.measured import measured_loads
from app.dashboard.choices import controls
from app.dashboard.forms import SERVING
from app.dashboard.routes.shell import as_picture, command, or_else, page, refused, wants_answer, wants_json, wants_svg
from app.engine.prices import today_utc
from app.engine.snapshot import Snapshot
from app.errors import BadInput, FieldError, GpucastError
from app.services.compare.job_plan import to_compare_request
from app.services.compare.request import read_compare, read_plan, resolve_candidates, to_predict_request
from app.services.compare.served_compare import PERCENTILES, Curves, LoadLimits, compare_served, served_curves
from app.services.compare.served_plan import plan_served
from app.services.compare.units import duration
from app.wire.compare_form import MOST_DEVICES, ComparedServing, ServingCompareResponse
from app.wire.job_plan_form import PlanRequest, ServedChoice, ServingPlanResponse
from app.wire.serving_form import ServingRequest, ServingWorkload

# Most GPU types with curves: for readable charts, and answers within a second.
MOST_CURVES = 6
_GPUS = ("h100-sxm5-80gb", "h200-sxm-141gb")
_LIMITS = {"ttft_ms": "500", "tpot_ms": "50", "percentile": "90"}
# Workloads of other pages whose model this one takes over.
_MODELS = ("model", SERVING)


class ServingView(Struct, frozen=True):
    """The answer of POST /compare, or of POST /plan where the split is searched, and the curves of its first GPUs."""

    comparison: ServingCompareResponse | None
    plan: ServingPlanResponse | None
    curves: list[Curves]

    @property
    def rows(self) -> Sequence[ComparedServing | ServedChoice]:
        """The deployments in order."""
        return self.plan.choices if self.plan is not None else self.comparison.ranking if self.comparison else ()


def serving_address(query: Sequence[tuple[str, str]], gpus: tuple[str, ...] = _GPUS) -> Address:
    """Return the address of the page; without a load with the usual limits, without a model and `gpus` an example."""
    values = dict(query)
    if values.get("kind", SERVING) not in _MODELS:
        query = [(name, value) for name, value in query if name in ("gpu", "spec", "predictor", "prices", "powers")]
    address = Address.of([*query, ("kind", SERVING)], (SERVING,), gpus)
    first = {} if values.get("level") else _LIMITS
    return replace(address, common={**first, **address.common})


def model_pairs(address: Address) -> list[tuple[str, str]]:
    """Return the address of the same model and GPUs on the pages of single steps."""
    kept = [(name, address.typed[name]) for name in ("name", "config", "dtype", "tensor") if name in address.typed]
    prompt = address.typed.get("input_tokens", "")
    step = [("mode", "prefill"), ("batch", "1"), ("sequence", prompt)]
    return [("kind", "model"), *kept, *step, *address.shared_pairs]


def serving_body(address: Address) -> dict[str, Any]:
    """Return the POST /compare request of an address. Raises BadInput that names unreadable controls."""
    body = compare_body(address)
    split = body["workload"].get("parallelism", {})
    if "tensor" in split and "max_devices" not in body:  # no other number of GPUs than is given
        sizes = [split.get(name, 1) for name in ("tensor", "pipeline")]
        devices = sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 1
        body["max_devices"] = min(max(devices, 1), MOST_DEVICES)
    if "rank_by" not in address.common:
        body["rank_by"] = "cost_per_million_tokens" if "prices" in body else "tokens_per_s_per_gpu"
    return body


def limits_of(address: Address) -> LoadLimits:
    """Return the limits of an address. Raises BadInput that names the control."""
    times = {name: _limit(address, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
    percentile = address.common.get("percentile", "90")
    if percentile not in map(str, PERCENTILES):
        raise _refused(("percentile",), f"must be one of {', '.join(map(str, PERCENTILES))}, got {percentile[:40]!r}")
    return LoadLimits(**times, percentile=int(percentile))


def _limit(address: Address, name: str) -> float | None:
    if name not in address.common:
        return None
    value = address.number(name)
    if isinstance(value, str) or not 0 < value <= 1e9:
        raise _refused((name,), f"expected a time in milliseconds over 0, got {str(value)[:40]!r}: empty for no limit")
    return float(value)


def _refused(loc: tuple[str, ...], message: str) -> BadInput:
    return BadInput(f"{loc[-1]}: {message}", errors=[FieldError(loc, message)])


def serving_view(
    snapshot: Snapshot, body: bytes, limits: LoadLimits, *, searched: bool, max_rows: int
) -> tuple[ServingView, Callable[[], list[Curves]]]:
    """Return the figures of the page, and what computes its curves: of POST /plan if `searched`, else of POST /compare.

    Raises NotFound, BadInput, TooLarge or NotTrained.
    """
    today = today_utc()
    request = read_plan(body) if searched else read_compare(body)
    compared = to_compare_request(request) if isinstance(request, PlanRequest) else request
    served = to_predict_request(compared)
    assert isinstance(served, ServingRequest)
    if isinstance(request, PlanRequest):
        view = ServingView(None, plan_served(snapshot, request, compared, served, today=today), [])
    else:
        view = ServingView(compare_served(snapshot, request, served, max_rows=max_rows, today=today), None, [])
    refs = {one.spec.id: one.ref for one in resolve_candidates(snapshot, compared, served, today)}
    drawn = [row for row in view.rows if row.memory.fits][:MOST_CURVES]

    def curves() -> list[Curves]:
        return [served_curves(snapshot, served, refs[row.gpu], row, limits, max_rows=max_rows) for row in drawn]

    return view, curves


def limit_lines(limits: LoadLimits) -> dict[str, list[tuple[str, float, str]]]:
    """Return the limits as lines across the charts of speeds and of rates: axis, value and text."""
    tpot, ttft = limits.tpot_ms, limits.ttft_ms
    return {
        "speeds": [("x", 1e3 / tpot, f"limit: TPOT {duration(tpot)}")] if tpot else [],
        "rates": [("y", ttft, f"limit: TTFT {duration(ttft)}")] if ttft else [],
    }


def _marks(curves: Sequence[Curves], named: Callable[[Curves], str]) -> dict[str, list[dict[str, Any]]]:
    """Return the points of the highest rate within the limits on both charts, with the cost where a price is known."""
    marks: dict[str, list[dict[str, Any]]] = {"speeds": [], "rates": []}
    for one, best in ((one, one.best) for one in curves if one.best is not None):
        cost = best.cost_per_million_tokens
        worth = f", {cost:.2f} USD per 1M tokens" if cost is not None else ""
        mark = {"group": named(one), "text": f"{named(one)}, most within the limits{worth}"}
        marks["rates"].append(mark | {"x": best.load, "y": best.ttft_at_ms})
        if best.tokens_per_s_per_user is not None:
            marks["speeds"].append(mark | {"x": best.tokens_per_s_per_user, "y": best.tokens_per_s_per_gpu})
    return marks


def cheapest(curves: Sequence[Curves]) -> Curves | None:
    """Return the GPU type that keeps the limits at the least cost, or where no price is known the most tokens."""
    able = [one for one in curves if one.best is not None]
    priced = [one for one in able if one.best is not None and one.best.cost_per_million_tokens is not None]
    if priced:
        return min(priced, key=lambda one: one.best.cost_per_million_tokens)  # type: ignore[union-attr,arg-type,return-value]
    return max(able, key=lambda one: one.best.tokens_per_s_per_gpu, default=None)  # type: ignore[union-attr]


def with_replicas(row: ComparedServing | ServedChoice, rate: float | None) -> int | None:
    """Return how many engines bear the rate that saturates a row; None where more engines do not help."""
    highest = row.serving.highest_rate_per_s
    if rate is None or highest <= 0.0:
        return None
    return row.parallelism.replicas * int(-(-rate // (0.9 * highest)))


router = APIRouter(include_in_schema=False)


@router.get("/serving")
def show(request: Request, holder: HolderDep, settings: SettingsDep, database: DatabaseDep) -> Response:
    """The comparison of POST /compare, kind `serving`, with curves; an example if the address has no model."""
    address = serving_address(request.query_params.multi_items())
    form = controls(holder.engine, address)
    shown: dict[str, Any] = {
        "form": form,
        "pairs": address.pairs,
        "served": address.pairs,
        "elsewhere": model_pairs(address),
        "percentiles": PERCENTILES,
        "most": MOST_CURVES,
    }
    try:
        limits = limits_of(address)
        searched = address.is_searched
        body = plan_body(address) if searched else serving_body(address)
        encoded, most = msgspec.json.encode(body), settings.max_batch_rows
        view, curves = serving_view(holder.snapshot, encoded, limits, searched=searched, max_rows=most)
        if wants_answer(request) or not searched:  # without a plan, curves say which is the cheapest
            view = structs.replace(view, curves=curves())
    except GpucastError as error:
        if wants_answer(request):
            raise
        return refused(request, "serving.html", address, error, **shown)
    if wants_json(request):
        return as_json(view)
    if wants_svg(request):
        return as_picture(_drawn(view, body["workload"], request.query_params.get("chart") == "ranking"))
    planned = view.plan.choices[0] if view.plan and view.plan.best else None
    best = None if view.plan else cheapest(view.curves)

    def named(one: Curves) -> str:
        return f"{form.name_of(one.gpu)}\u00a0×\u00a0{one.devices}"  # noqa: RUF001

    workload = msgspec.convert(body["workload"], ServingWorkload)

    def later(curves: list[Curves]) -> dict[str, Any]:
        measured = measured_loads(database, workload, curves, {one.gpu: named(one) for one in curves})
        return {"curves": curves, "marks": _marks(curves, named), "measured": measured}

    return page(
        request,
        "serving.html",
        answer=view.plan or view.comparison,
        rows=view.rows,
        planned=planned,
        searched=searched,
        later=lambda: later(view.curves or or_else(curves, [])),
        limits=limits,
        best=best,
        limit_lines=limit_lines(limits),
        named=named,
        more_replicas=lambda row: with_replicas(row, body["workload"]["load"].get("rate_per_s")),
        question=command(request, "/plan" if searched else "/compare", body),
        **shown,
    )


def _drawn(view: ServingView, workload: dict[str, Any], ranking: bool) -> Drawing:
    """Return the chart of the ranking under the load, or of the curves over loads."""
    if ranking and view.plan is not None:
        return served_plan_chart(view.plan, workload_title(workload))
    if ranking and view.comparison is not None:
        return served_ranking_chart(view.comparison, workload_title(workload))
    return served_curves_chart(view.curves, workload_title({**workload, "load": None}))
