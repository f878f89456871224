"""`gpucast scale`: predicts throughput over devices and batch sizes (ConvMeter's figures 8 and 9)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.figures import figure
from app.cli.model_workload import model_workload
from app.cli.options import snapshot_of
from app.config import Settings
from app.dashboard.charts.drawing import refuse_other
from app.errors import BadInput, FieldError

if TYPE_CHECKING:
    from app.services.models.scaling import Point


def command(  # noqa: PLR0913 - one parameter per option
    *,
    model: Annotated[str, typer.Option(metavar="NAME|FILE", help="Built-in network, or Hugging Face config.json.")],
    gpu: Annotated[list[str], typer.Option(metavar="NAME", help="GPU (id, alias or name); repeat for several.")],
    devices: Annotated[
        str, typer.Option(metavar="N,...", help="Numbers of data-parallel devices, for example 1,2,4,8.")
    ] = "1",
    batches: Annotated[
        str,
        typer.Option(
            "--batch", "--batches", metavar="N,...", help="Batch sizes per device; with --strong, of the whole step."
        ),
    ] = "1",
    strong: Annotated[
        bool, typer.Option("--strong", help="Strong scaling: split each batch over the devices.")
    ] = False,
    mode: Annotated[str, typer.Option(help="Mode: inference or training.")] = "training",
    sequence: Annotated[int | None, typer.Option(metavar="TOKENS", help="Tokens per sequence.")] = None,
    image_size: Annotated[int | None, typer.Option(metavar="PIXELS", help="Pixels per side of an image.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help="Number format: fp32, bf16, ...")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the workload.")
    ] = None,
    predictor: Annotated[str, typer.Option(metavar="NAME", help="Predictor to answer with.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg|.png", help="Also draw a chart of the curves.")] = None,
) -> None:
    """Predict throughput over numbers of devices and batch sizes."""
    import msgspec

    from app.services.models.scaling import scaling_curves
    from app.wire.network_form import ModelRequest
    from app.wire.predict_body import read_request

    refuse_other(plot)
    counts, sizes = _numbers(devices, "--devices"), _numbers(batches, "--batch")
    options = {"mode": mode, "sequence": sequence, "image_size": image_size, "dtype": dtype}
    workload = model_workload(model, options, fields or [])
    request: Any = {"workload": workload, "gpus": gpu, "predictor": predictor}
    parsed = read_request(msgspec.json.encode(request))
    assert isinstance(parsed, ModelRequest)
    settings = Settings.from_env()
    with snapshot_of(settings, parsed.predictor) as (snapshot, _):
        most = settings.max_batch_rows
        points = scaling_curves(snapshot, parsed, devices=counts, batches=sizes, strong=strong, max_rows=most)
    if plot is not None:
        from app.dashboard.charts.answers import scaling_chart, workload_title

        # The axes have the batch.
        title = workload_title({**request["workload"], "batch": None})
        scaling_chart(points, title, over_devices=len(counts) > 1, strong=strong).write(plot)
    if as_json:
        print(msgspec.json.encode(points).decode())
    else:
        _show(points)


def _numbers(text: str, option: str) -> list[int]:
    warning = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in warning):
        message = f"send whole numbers with commas between them, not {text!r}"
        raise BadInput(f"{option}: {message}", errors=[FieldError((option,), message)])
    return sorted({int(word) for word in warning})


def _show(points: list[Point]) -> None:
    print(f"{'GPU':<26}{'devices':>8}{'batch':>8}{'ms':>12}  {'interval':<22}{'per s':>10}{'efficiency':>12}  fits")
    for point in points:
        interval = f"{figure(point.low_ms)} to {figure(point.high_ms)}"
        times = f"{figure(point.latency_ms):>12}  {interval:<22}{figure(point.throughput_per_s):>10}"
        figures = f"{times}{point.efficiency:>12.0%}"
        print(f"{point.gpu:<26}{point.devices:>8}{point.batch:>8}{figures}  {'yes' if point.fits else 'no'}")
