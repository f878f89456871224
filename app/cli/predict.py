"""`gpucast predict`, `compare`, `plan` and `sweep`: answers about workloads, with or without a running service."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import msgspec
import typer

from app.cli.options import OPTIONS_OF_FIELDS, RequestOptions, with_options
from app.cli.show import cost_unit, figure, print_notes, show_served, show_served_plan, show_served_ranking
from app.cli.workload_options import Answer, EachGpu, Fields, WorkloadOptions, snapshot_of
from app.config import Settings
from app.dashboard.charts.drawing import Drawing, refuse_other
from app.runtime.service_file import answer_of_service
from app.services.sweep import CHUNK_ROWS
from app.wire.compare_form import CompareRequest
from app.wire.job_plan_form import PlanRequest

if TYPE_CHECKING:
    from app.wire.compare_form import Compared, CompareResponse
    from app.wire.job_plan_form import JobChoice, PlanResponse
    from app.wire.prediction_form import Prediction, PredictResponse
    from app.wire.serving_form import ServingResponse

Ranking: TypeAlias = Annotated[
    Fields,
    RequestOptions(
        CompareRequest,
        "max_devices",
        "duty_cycle",
        "price_term",
        "owned",
        "usd_per_kwh",
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
        "duty_cycle",
        "price_term",
        "owned",
        "usd_per_kwh",
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
Answered = TypeVar("Answered")

OPTIONS_OF_FIELDS["deadline_s"] = "--deadline SECONDS, --budget USD or --throughput PER_S"  # a plan needs one


@with_options
def compare(ranking: Ranking, workload: WorkloadOptions) -> None:
    """Rank GPUs (default: all) by the time, throughput, cost or energy of a workload."""
    from app.dashboard.charts.answers import chart_of
    from app.services.compare.request import read_compare
    from app.services.compare.served_compare import answer_compare
    from app.wire.compare_form import ServingCompareResponse

    answer, title = _answered(workload, ranking, read_compare, answer_compare)
    if isinstance(answer, ServingCompareResponse):
        table = partial(show_served_ranking, answer)
    else:
        table = partial(_show_ranking, answer)
    workload.show(answer, answer.ranking, table, partial(chart_of, answer, title))


@with_options
def plan(goals: Goals, workload: WorkloadOptions) -> None:
    """Find the cheapest GPUs (default: of all) that meet a deadline, a budget, a throughput, or limits of serving."""
    from app.dashboard.charts.answers import chart_of
    from app.services.compare.job_plan import answer_plan
    from app.services.compare.request import read_plan
    from app.wire.job_plan_form import ServingPlanResponse

    answer, title = _answered(workload, goals, read_plan, answer_plan)
    if isinstance(answer, ServingPlanResponse):
        table = partial(show_served_plan, answer)
    else:
        table = partial(_show_plan, answer)
    workload.show(answer, answer.choices, table, partial(chart_of, answer, title))


def _answered(
    workload: WorkloadOptions, fields: Fields, read: Callable[[bytes], Request], answer: Callable[..., Answered]
) -> tuple[Answered, str]:
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


def _choice_line(choice: JobChoice) -> str:
    name = f"{choice.gpu}{f' x{choice.devices}' if choice.devices > 1 else ''}{' *' if choice.meets else ''}"
    sure = "-" if choice.probability is None else f"{choice.probability:.0%}"
    times = f"{figure(choice.job_s):>12}{figure(choice.time_limit_s):>12}"
    return (
        f"{choice.rank:>3} {name:<30}{sure:>6}{times}{figure(choice.cost_usd):>11}{figure(choice.throughput_per_s):>11}"
    )


_COLUMNS = f"{'GPU':<26}{'ms':>12}  {'interval':<27}{'bound':<9}{'support':<14}predictor"


@with_options
def predict(
    workload: WorkloadOptions,
    *,
    detail: Annotated[bool, typer.Option("--detail", help="Include a row per operator (with --json).")] = False,
) -> None:
    """Predict the time of a kernel, a list of operators or a network on one GPU, several or all."""
    import msgspec

    from app.wire.prediction_form import PredictResponse

    refuse_other(workload.plot)
    request = workload.request(detail=detail or None)
    if workload.gpus is not None:
        request.pop("gpu", None)
        request["gpus"] = workload.gpus
    body, settings = msgspec.json.encode(request), Settings.from_env()
    answer = predict_body(settings, body)
    kind = request["workload"].get("kind")
    if kind == "operator_table":
        print(answer.decode())
        return

    def drawn(response: PredictResponse | ServingResponse) -> Drawing:
        from app.dashboard.charts.answers import prediction_chart, workload_title

        return prediction_chart(response, workload_title(request["workload"]))

    if kind == "serving":
        from app.wire.serving_form import ServingResponse

        served = msgspec.json.decode(answer, type=ServingResponse)
        workload.show(served, served.predictions, lambda: show_served(served), lambda: drawn(served))
    else:
        predicted = msgspec.json.decode(answer, type=PredictResponse)
        workload.show(predicted, predicted.predictions, lambda: _show(predicted), lambda: drawn(predicted))


def predict_body(settings: Settings, body: bytes) -> bytes:
    """Return the answer of POST /predict: of the running service of this installation, else computed here."""
    return answer_of_service(settings, "/predict", body) or _computed(settings, body)


def _computed(settings: Settings, body: bytes) -> bytes:
    from app.wire.graph_form import GraphRequest
    from app.wire.predict_body import read_request, write_response

    request = read_request(body)
    stored_graphs = isinstance(request, GraphRequest)
    with snapshot_of(settings, request.predictor, stored_graphs=stored_graphs) as (snapshot, graphs):
        from app.services.dispatch import predict_workload

        return write_response(predict_workload(snapshot, request, max_rows=settings.max_batch_rows, graphs=graphs))


def _show(response: PredictResponse) -> None:
    print(_COLUMNS)
    for item in response.predictions:
        print(_line(item))
    print_notes([(item.gpu, item.warnings) for item in response.predictions], response.skipped)


def _line(item: Prediction) -> str:
    interval = f"{figure(item.interval_ms.low)} to {figure(item.interval_ms.high)} ({item.interval_ms.coverage:.0%})"
    answered = f"{item.predictor.name} {item.predictor.version}"
    return f"{item.gpu:<26}{figure(item.latency_ms):>12}  {interval:<27}{item.bound:<9}{item.support:<14}{answered}"


@with_options
def sweep(
    source: Annotated[
        Path,
        typer.Argument(
            help="Parquet file with the columns of POST /predict/batch, or a JSON grid of all combinations: "
            '{"op": "linear", "dtype": "bf16", "m": [1, 64], "n": [1024, 4096], "k": 4096}. '
            "For models, columns are the fields of POST /predict's workload (docs/reference/models.md, Sweeps)."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Folder for the answers; an interrupted sweep resumes.")],
    *,
    gpu: EachGpu,
    answer: Answer,
    chunk_rows: Annotated[
        int, typer.Option(min=1, max=1 << 24, metavar="ROWS", help="Rows per Parquet file.")
    ] = CHUNK_ROWS,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the workers of this Dask scheduler.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Delete earlier answers and start over.")] = False,
) -> None:
    """Predict a table of operators or models on one or more GPUs."""
    from app.bootstrap.assemble import installed_snapshot
    from app.services.sweep.chunks import chunk_path, missing_chunks, plan_sweep, run_locally, run_on_dask
    from app.services.sweep.sweep_rows import open_rows
    from app.wire.decoding import convert
    from app.wire.prediction_form import PREDICT_EXAMPLE, BaseRequest

    request = convert(answer, BaseRequest, example=PREDICT_EXAMPLE)
    snapshot, refused = installed_snapshot(Settings.from_env())
    for problem in refused:
        print(f"gpucast: {problem}", file=sys.stderr)
    rows = open_rows(source)
    plan = plan_sweep(snapshot, rows, gpu, request.predictor, request.coverage, chunk_rows=chunk_rows)
    left = missing_chunks(plan, folder, restart=restart)
    done = plan.chunks - len(left)
    print(f"{plan.rows:,} rows on {', '.join(plan.gpus)}: {done} of {plan.chunks} chunks are done", file=sys.stderr)
    if dask is None:
        answered = run_locally(snapshot, rows, plan, folder, left)
    else:
        answered = run_on_dask(dask, source.resolve(), plan, folder.resolve(), left, open_snapshot=installed_snapshot)
    with typer.progressbar(length=plan.chunks, label="chunks", file=sys.stderr) as bar:
        bar.update(done)
        for _ in answered:
            bar.update(1)
    print(
        f"{folder}: {plan.chunks} files, {chunk_path(folder, 0).name} the first; {plan.rows * len(plan.gpus):,} answers"
    )
