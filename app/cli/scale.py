"""`gpucast scale`: how throughput grows with devices and with the batch (ConvMeter's figures 8 and 9)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.charts import line_chart
from app.cli.drawing import Drawing, refuse_other
from app.cli.models import model_workload
from app.cli.options import snapshot_of
from app.config import Settings
from app.errors import BadInput, FieldError

if TYPE_CHECKING:
    from app.services.models.scaling import Point


def command(  # noqa: PLR0913 - one parameter per option
    *,
    model: Annotated[str, typer.Option(help="A built-in network, or a Hugging Face config.json.")],
    gpu: Annotated[list[str], typer.Option(help="A GPU by any of its names; again for more.")],
    devices: Annotated[str, typer.Option(help="Numbers of data-parallel devices, such as 1,2,4,8.")] = "1",
    batches: Annotated[str, typer.Option(help="Batches per device; with --strong of the whole step.")] = "1",
    strong: Annotated[bool, typer.Option("--strong", help="Split each batch over the devices.")] = False,
    mode: Annotated[str, typer.Option(help="inference or training.")] = "training",
    sequence: Annotated[int | None, typer.Option(help="Tokens per sequence.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels of one side.")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, ...")] = None,
    fields: Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE")] = None,
    predictor: Annotated[str, typer.Option(help="auto, or a predictor's name.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg|.png", help="Draw the curves.")] = None,
) -> None:
    """Predict throughput over numbers of devices and batch sizes."""
    import msgspec

    from app.services.models.scaling import curves
    from app.wire.network_form import ModelRequest
    from app.wire.predict_body import read_request

    refuse_other(plot)
    counts, sizes = _numbers(devices, "--devices"), _numbers(batches, "--batches")
    options = {"mode": mode, "sequence": sequence, "image_size": image_size, "dtype": dtype}
    workload = model_workload(model, options, fields or [])
    request: Any = {"workload": workload, "gpus": gpu, "predictor": predictor}
    asked = read_request(msgspec.json.encode(request))
    assert isinstance(asked, ModelRequest)
    settings = Settings.from_env()
    with snapshot_of(settings, asked.predictor) as (snapshot, _):
        most = settings.max_batch_rows
        points = curves(snapshot, asked, devices=counts, batches=sizes, strong=strong, max_rows=most)
    if plot is not None:
        _drawn(points, model, over_devices=len(counts) > 1).write(plot)
    if as_json:
        print(msgspec.json.encode(points).decode())
    else:
        _show(points)


def _numbers(text: str, option: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        message = f"send whole numbers with commas between them, not {text!r}"
        raise BadInput(f"{option}: {message}", errors=[FieldError((option,), message)])
    return sorted({int(word) for word in words})


def _show(points: list[Point]) -> None:
    print(f"{'GPU':<26}{'devices':>8}{'batch':>8}{'ms':>12}  {'interval':<22}{'per s':>10}{'efficiency':>12}  fits")
    for one in points:
        interval = f"{one.low_ms:.4g} to {one.high_ms:.4g}"
        figures = f"{one.latency_ms:>12.4g}  {interval:<22}{one.throughput_per_s:>10.4g}{one.efficiency:>12.0%}"
        print(f"{one.gpu:<26}{one.devices:>8}{one.batch:>8}{figures}  {'yes' if one.fits else 'no'}")


def _drawn(points: list[Point], model: str, *, over_devices: bool) -> Drawing:
    """Throughput over devices, a line per batch each; with one number of devices over the batch."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in points:
        each = one.batch // one.devices if over_devices else 0
        name = f"{one.gpu}, {each} each" if over_devices else one.gpu
        lines.setdefault(name, []).append((one.devices if over_devices else one.batch, one.throughput_per_s))
    words = {"x_label": "devices" if over_devices else "batch", "y_label": "sequences or images per second"}
    return line_chart(lines, title=Path(model).stem, **words)
