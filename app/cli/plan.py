"""`gpucast plan`: chooses GPUs for a deadline, a budget or a throughput, without a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.figures import figure, print_notes
from app.cli.options import Powers, Prices, WorkloadOptions, by_gpu, snapshot_of, with_options
from app.cli.served import show_served_plan
from app.config import Settings
from app.dashboard.charts.drawing import refuse_other

if TYPE_CHECKING:
    from app.wire.job_plan_form import Choice, PlanResponse

Steps = Annotated[
    float | None, typer.Option(metavar="RUNS", help="Runs of the workload per job (default: 1, or one epoch).")
]
Deadline = Annotated[
    float | None, typer.Option("--deadline", metavar="SECONDS", help="Longest time of the whole job, seconds.")
]
Budget = Annotated[
    float | None, typer.Option("--budget", metavar="USD", help="Highest cost of the whole job, US dollars.")
]
Throughput = Annotated[
    float | None,
    typer.Option("--throughput", metavar="PER_S", help="Lowest throughput: sequences, images or runs per second."),
]
Probability = Annotated[
    float | None, typer.Option(help="Probability that every goal must be met with, 0 to 1 (default: 0.9).")
]
Ttft = Annotated[float | None, typer.Option("--ttft", metavar="MS", help="Longest time to first token (kind serving).")]
Tpot = Annotated[
    float | None, typer.Option("--tpot", metavar="MS", help="Longest time per output token (kind serving).")
]
E2e = Annotated[float | None, typer.Option("--e2e", metavar="MS", help="Longest time of a request (kind serving).")]
Percentile = Annotated[
    float | None, typer.Option(metavar="PERCENT", help="Percentage of requests that keep these times (default: 90).")
]
TryDtypes = Annotated[
    list[str] | None,
    typer.Option(metavar="DTYPE", help="Number format of the weights to choose among; repeat (kind serving)."),
]
TryKvDtypes = Annotated[
    list[str] | None,
    typer.Option(metavar="DTYPE", help="Number format of keys and values to choose among; repeat (kind serving)."),
]
MaxDevices = Annotated[int | None, typer.Option(help="Largest number of devices of one GPU (default: 8).")]


@with_options(WorkloadOptions)
def command(  # noqa: PLR0913 - one parameter per option
    workload: WorkloadOptions,
    *,
    steps: Steps = None,
    deadline: Deadline = None,
    budget: Budget = None,
    throughput: Throughput = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    e2e: E2e = None,
    percentile: Percentile = None,
    try_dtype: TryDtypes = None,
    try_kv_dtype: TryKvDtypes = None,
    probability: Probability = None,
    price: Prices = None,
    power: Powers = None,
    max_devices: MaxDevices = None,
) -> None:
    """Find the cheapest GPUs (default: of all) that meet a deadline, a budget, a throughput, or limits of serving."""
    import msgspec

    from app.services.compare.answers import answer_plan
    from app.wire.job_plan_form import read_plan
    from app.wire.served_choice_form import ServingPlanResponse

    refuse_other(workload.plot)
    request = workload.full_request(
        gpus=workload.gpus,
        steps=steps,
        deadline_s=deadline,
        budget_usd=budget,
        throughput_per_s=throughput,
        ttft_ms=ttft,
        tpot_ms=tpot,
        e2e_ms=e2e,
        percentile=percentile,
        dtypes=try_dtype or None,
        kv_dtypes=try_kv_dtype or None,
        probability=probability,
        prices=by_gpu(price, "--price"),
        powers_w=by_gpu(power, "--power"),
        max_devices=max_devices,
    )
    parsed = read_plan(msgspec.json.encode(request))
    settings = Settings.from_env()
    with snapshot_of(settings, parsed.predictor) as (snapshot, graphs):
        answer = answer_plan(snapshot, parsed, max_rows=settings.max_batch_rows, graphs=graphs)
    from app.dashboard.charts.answers import plan_chart, workload_title

    title = workload_title(request["workload"])
    if isinstance(answer, ServingPlanResponse):
        show_served_plan(workload, answer, title)
        return
    planned = answer
    workload.show(planned, planned.choices, lambda: _show(planned), lambda: plan_chart(planned, title))


def _show(answer: PlanResponse) -> None:
    print(f"{'':>4}{'GPU':<30}{'sure':>6}{'job, s':>12}{'limit, s':>12}{'USD':>11}{'per s':>11}")
    for choice in answer.choices:
        print(_line(choice))
    print_notes([(choice.gpu, [*choice.missing, *choice.warnings]) for choice in answer.choices])
    if answer.best is None:
        print("none meets the goals; the closest are first")
    for row in answer.sensitivities:
        print(f"{row.gpu} with {row.factor:g} x {row.field}: {row.change:+z.1%} time")
    print_notes([], answer.skipped, answer.notes)


def _line(choice: Choice) -> str:
    name = f"{choice.gpu}{f' x{choice.devices}' if choice.devices > 1 else ''}{' *' if choice.meets else ''}"
    sure = "-" if choice.probability is None else f"{choice.probability:.0%}"
    times = f"{figure(choice.job_s):>12}{figure(choice.time_limit_s):>12}"
    return (
        f"{choice.rank:>3} {name:<30}{sure:>6}{times}{figure(choice.cost_usd):>11}{figure(choice.throughput_per_s):>11}"
    )
