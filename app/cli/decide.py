"""`gpucast compare` and `gpucast plan`: rank GPUs, and choose some for a goal, without a running service."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import msgspec

from app.cli.options import OPTIONS_OF_FIELDS, RequestOptions, with_options
from app.cli.show import cost_unit, figure, print_notes, show_served_plan, show_served_ranking
from app.cli.workload_options import Fields, WorkloadOptions, snapshot_of
from app.config import Settings
from app.dashboard.charts.drawing import refuse_other
from app.wire.compare_form import CompareRequest
from app.wire.job_plan_form import PlanRequest

if TYPE_CHECKING:
    from app.wire.compare_form import Compared, CompareResponse
    from app.wire.job_plan_form import Choice, PlanResponse

Ranking: TypeAlias = Annotated[
    Fields,
    RequestOptions(
        CompareRequest,
        "max_devices",
        rank_by="by",
        prices="price",
        powers_w="power",
        search_parallelism="search",
    ),
]
Goals: TypeAlias = Annotated[
    Fields,
    RequestOptions(
        PlanRequest,
        "steps",
        "percentile",
        "probability",
        "max_devices",
        deadline_s="deadline",
        budget_usd="budget",
        throughput_per_s="throughput",
        ttft_ms="ttft",
        tpot_ms="tpot",
        e2e_ms="e2e",
        dtypes="try_dtype",
        kv_dtypes="try_kv_dtype",
        prices="price",
        powers_w="power",
    ),
]


Request = TypeVar("Request", CompareRequest, PlanRequest)
Answer = TypeVar("Answer")

OPTIONS_OF_FIELDS["deadline_s"] = "--deadline SECONDS, --budget USD or --throughput PER_S"  # a plan needs one


@with_options
def compare(ranking: Ranking, workload: WorkloadOptions) -> None:
    """Rank GPUs (default: all) by the time, throughput, cost or energy of a workload."""
    from app.dashboard.charts.answers import ranking_chart, served_ranking_chart
    from app.services.compare.request import read_compare
    from app.services.compare.served_compare import answer_compare
    from app.wire.compare_form import ServingCompareResponse

    answer, title = _answered(workload, ranking, read_compare, answer_compare)
    if isinstance(answer, ServingCompareResponse):
        table, chart = partial(show_served_ranking, answer), partial(served_ranking_chart, answer, title)
    else:
        table, chart = partial(_show_ranking, answer), partial(ranking_chart, answer, title)
    workload.show(answer, answer.ranking, table, chart)


@with_options
def plan(goals: Goals, workload: WorkloadOptions) -> None:
    """Find the cheapest GPUs (default: of all) that meet a deadline, a budget, a throughput, or limits of serving."""
    from app.dashboard.charts.answers import plan_chart, served_plan_chart
    from app.services.compare.job_plan import answer_plan
    from app.services.compare.request import read_plan
    from app.wire.job_plan_form import ServingPlanResponse

    answer, title = _answered(workload, goals, read_plan, answer_plan)
    if isinstance(answer, ServingPlanResponse):
        table, chart = partial(show_served_plan, answer), partial(served_plan_chart, answer, title)
    else:
        table, chart = partial(_show_plan, answer), partial(plan_chart, answer, title)
    workload.show(answer, answer.choices, table, chart)


def _answered(
    workload: WorkloadOptions, fields: Fields, read: Callable[[bytes], Request], answer: Callable[..., Answer]
) -> tuple[Answer, str]:
    """Return the answer of this installation to the options' request, and its workload in one line."""
    from app.dashboard.charts.answers import workload_title

    refuse_other(workload.plot)
    request = workload.request(gpus=workload.gpus, **fields)
    parsed, settings = read(msgspec.json.encode(request)), Settings.from_env()
    with snapshot_of(settings, parsed.predictor) as (snapshot, graphs):
        answered = answer(snapshot, parsed, max_rows=settings.max_batch_rows, graphs=graphs)
    return answered, workload_title(request["workload"])


def _show_ranking(answer: CompareResponse) -> None:
    unit, runs = cost_unit(row.cost_usd for row in answer.ranking)
    print(f"{'':>4}{'GPU':<28}{'ms':>11}  {'interval':<22}{'per s':>10}{unit:>11}{'J':>11}  fits  tied with")
    for row in answer.ranking:
        interval = f"{figure(row.interval_ms.low)} to {figure(row.interval_ms.high)}"
        cost = None if row.cost_usd is None else runs * row.cost_usd
        figures = f"{figure(row.latency_ms):>11}  {interval:<22}" + "".join(
            f"{figure(value):>{width}}" for value, width in ((row.throughput_per_s, 10), (cost, 11), (row.energy_j, 11))
        )
        name = f"{row.gpu}{f' x{row.devices}' if row.devices > 1 else ''}{' *' if row.pareto else ''}"
        print(f"{row.rank:>3} {name:<28}{figures}  {'yes ' if row.memory.fits else 'no  '}  {_tied(row)}")
    print("* no other GPU is as fast, as cheap and as frugal; tied: statistically tied in the figure ranked by")
    print_notes([(row.gpu, row.warnings) for row in answer.ranking], answer.skipped, answer.notes)


def _tied(row: Compared) -> str:
    first, *others = row.indistinguishable_from or ["-"]
    return f"{first} and {len(others)} more" if others else first


def _show_plan(answer: PlanResponse) -> None:
    print(f"{'':>4}{'GPU':<30}{'sure':>6}{'job, s':>12}{'limit, s':>12}{'USD':>11}{'per s':>11}")
    for choice in answer.choices:
        print(_choice_line(choice))
    print_notes([(choice.gpu, [*choice.missing, *choice.warnings]) for choice in answer.choices])
    if answer.best is None:
        print("none meets the goals; the closest are first")
    for row in answer.sensitivities:
        print(f"{row.gpu} with {row.factor:g} x {row.field}: {row.change:+z.1%} time")
    print_notes([], answer.skipped, answer.notes)


def _choice_line(choice: Choice) -> str:
    name = f"{choice.gpu}{f' x{choice.devices}' if choice.devices > 1 else ''}{' *' if choice.meets else ''}"
    sure = "-" if choice.probability is None else f"{choice.probability:.0%}"
    times = f"{figure(choice.job_s):>12}{figure(choice.time_limit_s):>12}"
    return (
        f"{choice.rank:>3} {name:<30}{sure:>6}{times}{figure(choice.cost_usd):>11}{figure(choice.throughput_per_s):>11}"
    )
