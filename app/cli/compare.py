"""`gpucast compare`: a workload on many GPUs in time, throughput, money and energy, without a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.charts import Bar, interval_chart
from app.cli.drawing import Drawing, refuse_other
from app.cli.options import (
    AsJson,
    Batch,
    Coverage,
    Csv,
    Dtype,
    Fields,
    File,
    Gpus,
    ImageSize,
    Measured,
    Mode,
    Model,
    Plot,
    Powers,
    Predictor,
    Prices,
    Sequence,
    by_gpu,
    gpus_of,
    request_of,
    snapshot_of,
)
from app.config import Settings
from app.wire.rankings import RANKINGS

if TYPE_CHECKING:
    from app.wire.compare_form import Compared, CompareResponse

_UNITS = {"latency": "milliseconds", "throughput": "per second", "cost": "US dollars", "energy": "joules"}
_NAMES = {"latency": "Latency", "throughput": "Throughput", "cost": "Cost", "energy": "Energy"}


def command(  # noqa: PLR0913 - one parameter per option
    file: File = None,
    *,
    gpu: Gpus = None,
    by: Annotated[str | None, typer.Option(help=f"{', '.join(RANKINGS)}.")] = None,
    price: Prices = None,
    power: Powers = None,
    search: Annotated[bool, typer.Option("--search", help="Try other splits over devices too.")] = False,
    max_devices: Annotated[int | None, typer.Option(help="At most so many of a GPU; unset: 8.")] = None,
    model: Model = None,
    mode: Mode = None,
    batch: Batch = None,
    sequence: Sequence = None,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    fields: Fields = None,
    measured: Measured = None,
    predictor: Predictor = None,
    coverage: Coverage = None,
    as_json: AsJson = False,
    csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Rank GPUs (all, unless some are named) by what a workload takes on them: time, money or energy."""
    import msgspec

    from app.cli.tables import as_csv
    from app.services.compare.compare import compare
    from app.services.compare.request import read_compare

    refuse_other(plot)
    how = {"mode": mode, "batch": batch, "sequence": sequence, "image_size": image_size, "dtype": dtype}
    said = {
        "gpus": gpus_of(gpu) if gpu else None,
        "rank_by": by,
        "prices": by_gpu(price, "--price"),
        "powers_w": by_gpu(power, "--power"),
        "search_parallelism": search or None,
        "max_devices": max_devices,
        "predictor": predictor,
        "coverage": coverage,
    }
    request = read_compare(msgspec.json.encode(request_of(file, model, how, fields or [], measured or [], said)))
    settings = Settings.from_env()
    with snapshot_of(settings) as (snapshot, graphs):
        answer = compare(snapshot, request, max_rows=settings.max_batch_rows, graphs=graphs)
    if plot is not None:
        _drawn(answer).write(plot)
    if as_json:
        print(msgspec.json.encode(answer).decode())
    elif csv:
        print(as_csv(answer.ranking), end="")
    else:
        _show(answer)


def _show(answer: CompareResponse) -> None:
    print(f"{'':>4}{'GPU':<28}{'ms':>11}  {'interval':<22}{'per s':>10}{'USD':>11}{'J':>11}  fits  alike")
    for row in answer.ranking:
        interval = f"{row.interval_ms.low:.4g} to {row.interval_ms.high:.4g}"
        figures = f"{row.latency_ms:>11.4g}  {interval:<22}" + "".join(
            f"{_figure(value):>{width}}"
            for value, width in ((row.throughput_per_s, 10), (row.cost_usd, 11), (row.energy_j, 11))
        )
        name = f"{row.gpu}{f' x{row.devices}' if row.devices > 1 else ''}{' *' if row.pareto else ''}"
        print(f"{row.rank:>3} {name:<28}{figures}  {'yes ' if row.memory.fits else 'no  '}  {_alike(row)}")
    print("* no other GPU is as fast, as cheap and as frugal; alike: cannot be told apart by the figure ranked by")
    for row in answer.ranking:
        for words in row.warnings:
            print(f"{row.gpu}: {words}")
    for left_out in answer.skipped:
        print(f"{left_out.gpu} skipped: {left_out.reason}")
    for note in answer.notes:
        print(f"note: {note}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _alike(row: Compared) -> str:
    first, *others = row.indistinguishable_from or ["-"]
    return f"{first} and {len(others)} more" if others else first


def _drawn(answer: CompareResponse) -> Drawing:
    """The figure ranked by with its interval, those of the Pareto set marked."""
    from app.services.compare.compare import figure_of

    rank_by = answer.rank_by
    found = [(row, *figure_of(row, rank_by)) for row in answer.ranking]
    bars = [Bar(row.gpu, figure, ends.low, ends.high, row.pareto) for row, figure, ends in found if figure and ends]
    return interval_chart(bars, title=f"{_NAMES[rank_by]} (orange: Pareto set)", x_label=_UNITS[rank_by])
