"""`gpucast plan`: which GPU and how many meet a deadline, a budget or a throughput, without a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.charts import Bar, interval_chart
from app.cli.drawing import Drawing, refuse_other
from app.cli.options import Powers, Prices, WorkloadOptions, by_gpu, snapshot_of, with_options
from app.config import Settings

if TYPE_CHECKING:
    from app.wire.job_plan_form import Choice, PlanResponse

Steps = Annotated[float | None, typer.Option(help="Runs of the workload in the job; unset: 1, or one epoch.")]
Deadline = Annotated[float | None, typer.Option("--deadline", metavar="SECONDS", help="For the whole job.")]
Budget = Annotated[float | None, typer.Option("--budget", metavar="USD", help="For the whole job.")]
Throughput = Annotated[float | None, typer.Option("--throughput", metavar="PER_S", help="Sequences, images or runs.")]
Probability = Annotated[float | None, typer.Option(help="With which all goals must be met; unset: 0.9.")]
MaxDevices = Annotated[int | None, typer.Option(help="At most so many of a GPU; unset: 8.")]


@with_options(WorkloadOptions)
def command(  # noqa: PLR0913 - one parameter per option
    workload: WorkloadOptions,
    *,
    steps: Steps = None,
    deadline: Deadline = None,
    budget: Budget = None,
    throughput: Throughput = None,
    probability: Probability = None,
    price: Prices = None,
    power: Powers = None,
    max_devices: MaxDevices = None,
) -> None:
    """Find the cheapest GPUs (of all, unless some are named) that meet a deadline, a budget or a throughput."""
    import msgspec

    from app.services.compare.job_plan import choose_gpus
    from app.wire.job_plan_form import read_plan

    refuse_other(workload.plot)
    request = workload.asked(
        gpus=workload.gpus,
        steps=steps,
        deadline_s=deadline,
        budget_usd=budget,
        throughput_per_s=throughput,
        probability=probability,
        prices=by_gpu(price, "--price"),
        powers_w=by_gpu(power, "--power"),
        max_devices=max_devices,
    )
    asked = read_plan(msgspec.json.encode(request))
    settings = Settings.from_env()
    with snapshot_of(settings, asked.predictor) as (snapshot, graphs):
        answer = choose_gpus(snapshot, asked, max_rows=settings.max_batch_rows, graphs=graphs)
    workload.show(answer, answer.choices, lambda: _show(answer), lambda: _drawn(answer))


def _show(answer: PlanResponse) -> None:
    print(f"{'':>4}{'GPU':<30}{'sure':>6}{'job, s':>12}{'limit, s':>12}{'USD':>11}{'per s':>11}")
    for one in answer.choices:
        print(_line(one))
    for one in answer.choices:
        for words in (*one.missing, *one.warnings):
            print(f"{one.gpu}: {words}")
    if answer.best is None:
        print("none meets the goals; the closest are first")
    for row in answer.sensitivities:
        print(f"{row.gpu} with {row.factor:g} x {row.field}: {row.change:+z.1%} time")
    for left_out in answer.skipped:
        print(f"{left_out.gpu} skipped: {left_out.reason}")
    for note in answer.notes:
        print(f"note: {note}")


def _line(one: Choice) -> str:
    name = f"{one.gpu}{f' x{one.devices}' if one.devices > 1 else ''}{' *' if one.meets else ''}"
    sure = "-" if one.probability is None else f"{one.probability:.0%}"
    cost = "-" if one.cost_usd is None else f"{one.cost_usd:.4g}"
    per_s = "-" if one.throughput_per_s is None else f"{one.throughput_per_s:.4g}"
    return f"{one.rank:>3} {name:<30}{sure:>6}{one.job_s:>12.4g}{one.time_limit_s:>12.4g}{cost:>11}{per_s:>11}"


def _drawn(answer: PlanResponse) -> Drawing:
    """The job's time with its interval, choices that meet the goals marked."""
    bars = [
        Bar(f"{one.gpu} x{one.devices}", one.job_s, one.job_interval_s.low, one.job_interval_s.high, one.meets)
        for one in answer.choices
    ]
    return interval_chart(bars, title="Time of the job (orange: meets the goals)", x_label="seconds")
