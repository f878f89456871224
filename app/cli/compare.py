"""`gpucast compare`: ranks GPUs by time, throughput, cost or energy of a workload, without a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.figures import cost_unit, figure, print_notes
from app.cli.options import Powers, Prices, WorkloadOptions, by_gpu, snapshot_of, with_options
from app.cli.served import show_served_ranking
from app.config import Settings
from app.dashboard.charts.drawing import refuse_other
from app.wire.rankings import RANKINGS, SERVED_RANKINGS

if TYPE_CHECKING:
    from app.wire.compare_form import Compared, CompareResponse


@with_options(WorkloadOptions)
def command(
    workload: WorkloadOptions,
    *,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIGURE", help=f"Figure to rank by: {', '.join((*RANKINGS, *SERVED_RANKINGS))}."),
    ] = None,
    price: Prices = None,
    power: Powers = None,
    search: Annotated[bool, typer.Option("--search", help="Also try other splits over devices.")] = False,
    max_devices: Annotated[int | None, typer.Option(help="Largest number of devices of one GPU (default: 8).")] = None,
) -> None:
    """Rank GPUs (default: all) by the time, throughput, cost or energy of a workload."""
    import msgspec

    from app.services.compare.answers import answer_compare
    from app.services.compare.request import read_compare
    from app.wire.served_choice_form import ServingCompareResponse

    refuse_other(workload.plot)
    request = workload.full_request(
        gpus=workload.gpus,
        rank_by=by,
        prices=by_gpu(price, "--price"),
        powers_w=by_gpu(power, "--power"),
        search_parallelism=search or None,
        max_devices=max_devices,
    )
    parsed = read_compare(msgspec.json.encode(request))
    settings = Settings.from_env()
    with snapshot_of(settings, parsed.predictor) as (snapshot, graphs):
        answer = answer_compare(snapshot, parsed, max_rows=settings.max_batch_rows, graphs=graphs)
    from app.dashboard.charts.answers import ranking_chart, workload_title

    title = workload_title(request["workload"])
    if isinstance(answer, ServingCompareResponse):
        show_served_ranking(workload, answer, title)
        return
    ranked = answer
    workload.show(ranked, ranked.ranking, lambda: _show(ranked), lambda: ranking_chart(ranked, title))


def _show(answer: CompareResponse) -> None:
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
